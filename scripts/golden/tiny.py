"""What the scripts that make tiny random targets share: randomising, tracing, writing a folder, checking a reference.

Used by targets.py, hybrids.py and gpt_oss.py (torch 2.13 CPU, transformers 5.24, safetensors 0.8; f32, one thread,
eager attention, eager experts). A folder is written from plain tensors and then loaded by transformers again: the
reference comes from that loaded model, so that config.json, names and values are all part of what is checked.
"""
import copy
import json
import math
import os
import shutil

import torch
from safetensors.torch import save_file

# transformers asks CUDA on every forward; the CPU answer, without needing its libraries.
torch.cuda.is_current_stream_capturing = lambda: False
torch.set_num_threads(1)

MAX_FILE = 300_000
MIN_MARGIN = 1e-3
# What every saved config holds and no published one does.
NOISE = ("_name_or_path", "chunk_size_feed_forward", "id2label", "label2id", "is_encoder_decoder", "output_attentions",
         "output_hidden_states", "return_dict", "problem_type", "_experts_implementation")


def build(cls, config, seed, half=False):
    """A model with every parameter informative; `half` rounds matrices to values that f16 holds exactly."""
    torch.manual_seed(seed)
    eager(config)
    model = cls(config).eval()
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            randomise(name, p, generator)
            if half and p.dim() == 2:
                p.copy_(p.half().float())
    return model


def eager(config):
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    for part in ("text_config", "vision_config"):
        if getattr(config, part, None) is not None:
            eager(getattr(config, part))
    return config


def randomise(name, p, generator):
    leaf = name.split(".")[-1]
    noise = torch.randn(p.shape, generator=generator)
    if leaf == "A_log":
        p.copy_(torch.empty_like(p).uniform_(0.01, 16, generator=generator).log())
    elif leaf == "dt_bias":
        p.copy_(1.5 * noise - 2)
    elif "norm" in name and leaf == "weight":
        p.add_(0.3 * noise)  # transformers starts plain norms at 1 and zero-centred ones at 0
    elif "bias" in leaf:
        p.copy_(0.5 * noise)
    elif leaf == "sinks" or "embed" in name:
        p.copy_(noise)
    elif "conv1d" in name:
        p.copy_(0.4 * noise)
    elif name.endswith((".mlp.gate.weight", ".router.weight")):
        p.copy_(2 * noise / math.sqrt(p.shape[-1]))
    else:
        p.copy_(1.5 * noise / math.sqrt(p.shape[2] if p.dim() == 3 else p[0].numel()))


def trace(model, ids):
    """`embed`, raw `layer.{i}`, `final_norm` and `logits` by hooks, and the router logits seen on the way."""
    seen, routers = {}, []

    def keep(name):
        def hook(_module, _inputs, output):
            output = output[0] if isinstance(output, tuple) else output
            seen[name] = output.detach().clone().contiguous()
        return hook

    inner = getattr(model.model, "language_model", model.model)
    hooks = [inner.embed_tokens.register_forward_hook(keep("embed")), inner.norm.register_forward_hook(keep("final_norm"))]
    hooks += [layer.register_forward_hook(keep(f"layer.{i}")) for i, layer in enumerate(inner.layers)]
    hooks += [m.register_forward_hook(lambda m, _i, o: routers.append((m.top_k, o[0].detach())))
              for m in model.modules() if type(m).__name__.endswith("TopKRouter")]
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits
    for hook in hooks:
        hook.remove()
    return {"input_ids": ids, "logits": logits.contiguous(), **seen}, routers


def margin(routers):
    """The smallest gap between the last expert chosen and the first one not: a tie would flip experts."""
    out = math.inf
    for k, logits in routers:
        top = logits.topk(k + 1, dim=-1).values
        out = min(out, (top[:, k - 1] - top[:, k]).min().item())
    return out


def relative(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


def write_folder(out, name, config, tensors, shards=1):
    """config.json and model.safetensors, or shards with their index as published."""
    folder = os.path.join(out, name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f, indent=2, sort_keys=True)
        f.write("\n")
    tensors = {k: v.detach().clone().contiguous() for k, v in tensors.items()}
    if shards == 1:
        save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    else:
        total, used = sum(v.nbytes for v in tensors.values()), 0
        parts, places = [{} for _ in range(shards)], {}
        for key, value in tensors.items():
            shard = min(used * shards // total, shards - 1)
            used += value.nbytes
            parts[shard][key] = value
            places[key] = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        for shard, part in enumerate(parts):
            path = os.path.join(folder, f"model-{shard + 1:05}-of-{shards:05}.safetensors")
            save_file(part, path, metadata={"format": "pt"})
        with open(os.path.join(folder, "model.safetensors.index.json"), "w") as f:
            json.dump({"metadata": {"total_size": total}, "weight_map": places}, f, indent=2, sort_keys=True)
            f.write("\n")
    for file in os.listdir(folder):
        size = os.path.getsize(os.path.join(folder, file))
        assert size < MAX_FILE, (name, file, size)
    return folder


def tensors_of(model):
    """The state dict without the head where it is the embedding."""
    text = model.config.get_text_config()
    return {k: v for k, v in model.state_dict().items() if not (text.tie_word_embeddings and k == "lm_head.weight")}


def config_of(model, **changes):
    """config.json as saved, changed: a value of None removes the key."""
    config = json.loads(model.config.to_json_string(use_diff=False))
    config["architectures"] = [type(model).__name__]
    config["dtype"] = "float32"
    for part in (config, config.get("text_config"), config.get("vision_config")):
        for key in NOISE if part else ():
            part.pop(key, None)
        if part not in (config, None):
            del part["architectures"], part["dtype"]
    for key, value in changes.items():
        if value is None:
            config.pop(key, None)
        else:
            config[key] = value
    return config


def published_moe(config):
    """The number of experts under the published key, which transformers 5 renames when it saves."""
    config["num_experts"] = config.pop("num_local_experts", None) or config["num_experts"]
    return config


def old_rope(config):
    """`rope_theta` and `rope_scaling`, as files older than transformers 5 spell `rope_parameters`."""
    rope = dict(config.pop("rope_parameters"))
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    return config


def write_reference(out, name, model, length, batch=2):
    """The reference of `model` on the first ids (by seed) without a near-tie of experts."""
    vocab = model.config.get_text_config().vocab_size
    for seed in range(9, 200):
        ids = torch.randint(0, vocab, (batch, length), generator=torch.Generator().manual_seed(seed))
        reference, routers = trace(model, ids)
        if margin(routers) > MIN_MARGIN:
            break
    else:
        raise AssertionError(f"{name}: every choice of ids has a near-tie of experts")
    path = os.path.join(out, f"{name}.reference.safetensors")
    save_file(reference, path)
    assert os.path.getsize(path) < MAX_FILE, (name, os.path.getsize(path))
    exact, _ = trace(copy.deepcopy(model).double(), ids)
    worst = max(relative(reference[k], exact[k]) for k in reference if k != "input_ids")
    print(f"{name}: ids seed {seed}, T {length}, layers {len(reference) - 4}, logits std {reference['logits'].std():.2f}, "
          f"router margin {margin(routers):.1e}, f32 against f64 {worst:.1e}, reference {os.path.getsize(path)} B")
    return reference


def load(cls, folder, **kwargs):
    model, info = cls.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                      experts_implementation="eager", output_loading_info=True, **kwargs)
    assert not info["missing_keys"] and not info["mismatched_keys"], info
    return model.eval()


def write(out, name, model, length, config=None, tensors=None, shards=1):
    """Folder and reference; what transformers reads back must be the model that was meant."""
    folder = write_folder(out, name, config or config_of(model), tensors or tensors_of(model), shards)
    loaded = load(type(model), folder)
    reference = write_reference(out, name, loaded, length)
    meant, _ = trace(model, reference["input_ids"])
    assert all(torch.equal(meant[k], reference[k]) for k in meant), name
    return reference
