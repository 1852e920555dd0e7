"""Tiny random llamas with their intermediates, as a Hugging Face folder and as GGUF.

Run: python scripts/golden/llama.py testdata      (torch 2.13 CPU, transformers 5.24, safetensors, gguf)

Writes
  llama_scaled/            llama-3 RoPE scaling (all three bands occur), untied, grouped heads, one file
  llama_plain/             no scaling, tied, as many key/value heads as query heads, two shards with an index
  llama_*.reference.safetensors   input_ids [B,T], embed, layer.{i} (raw outputs, from hooks), final_norm, logits
  llama_scaled.gguf        the first model as llama.cpp's converter writes it: q/k rows permuted, rope_freqs, F32
  llama_types.gguf         one matrix in every block type that is read, and llama_types.safetensors: its values

Every pair of dimensions differs, so that a transposed reshape fails; norms are randomised, because initial ones are 1.
"""
import math
import os
import shutil
import sys

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

# transformers asks CUDA on every forward; the CPU answer, without needing its libraries.
torch.cuda.is_current_stream_capturing = lambda: False

OUT = sys.argv[1] if len(sys.argv) > 1 else "testdata"

SCALED = LlamaConfig(
    vocab_size=130, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, head_dim=24, rms_norm_eps=1e-5, tie_word_embeddings=False, max_position_embeddings=512,
    bos_token_id=1, eos_token_id=[2, 5],
    rope_parameters=dict(rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                         original_max_position_embeddings=64))
PLAIN = LlamaConfig(
    vocab_size=150, hidden_size=36, intermediate_size=52, num_hidden_layers=4, num_attention_heads=3,
    num_key_value_heads=3, head_dim=14, rms_norm_eps=1e-6, tie_word_embeddings=True, max_position_embeddings=256,
    bos_token_id=1, eos_token_id=2, rope_parameters=dict(rope_type="default", rope_theta=1e4))


def build(config, seed):
    torch.manual_seed(seed)
    config._attn_implementation = "eager"
    model = LlamaForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if "norm" in name:
                p.copy_(1 + 0.3 * noise)
            else:
                p.copy_(noise * (1.0 if "embed" in name else 1.5 / math.sqrt(p.shape[1])))
    return model


def reference(model, ids):
    seen = {}

    def keep(name):
        def hook(_module, _inputs, output):
            output = output[0] if isinstance(output, tuple) else output
            seen[name] = output.detach().clone().contiguous()
        return hook

    inner = model.model
    hooks = [inner.embed_tokens.register_forward_hook(keep("embed")), inner.norm.register_forward_hook(keep("final_norm"))]
    hooks += [layer.register_forward_hook(keep(f"layer.{i}")) for i, layer in enumerate(inner.layers)]
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits
    for hook in hooks:
        hook.remove()
    return {"input_ids": ids, "logits": logits.contiguous(), **seen}


def save(name, model, batch, length, shard):
    folder = os.path.join(OUT, name)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, max_shard_size=shard)
    ids = torch.randint(0, model.config.vocab_size, (batch, length), generator=torch.Generator().manual_seed(9))
    ref = reference(model, ids)
    save_file(ref, os.path.join(OUT, f"{name}.reference.safetensors"))
    print(name, {k: tuple(v.shape) for k, v in ref.items()}, "logits std", ref["logits"].std().item())


def permute(w, heads):
    """What llama.cpp's converter does to q and k, so that its rotary pairs are neighbours."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def rope_factors(config):
    rope = config.rope_parameters
    dim = config.head_dim
    out = []
    for i in range(0, dim, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / dim)
        original = rope["original_max_position_embeddings"]
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        if wavelength < original / high:
            out.append(1.0)
        elif wavelength > original / low:
            out.append(rope["factor"])
        else:
            smooth = (original / wavelength - low) / (high - low)
            out.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    bands = {1.0: 0, rope["factor"]: 0}
    assert all(f in out for f in bands) and any(1 < f < rope["factor"] for f in out), out
    return np.array(out, dtype=np.float32)


def write_gguf(path, model):
    c = model.config
    w = gguf.GGUFWriter(path, "llama")
    w.add_block_count(c.num_hidden_layers)
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_key_length(c.head_dim)
    w.add_value_length(c.head_dim)
    w.add_rope_dimension_count(c.head_dim)
    w.add_rope_freq_base(c.rope_parameters["rope_theta"])
    # The converter forgets this; without it the reader tries 8192, the published models' value.
    w.add_rope_scaling_orig_ctx_len(c.rope_parameters["original_max_position_embeddings"])
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_vocab_size(c.vocab_size)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("smollm")
    w.add_token_list([f"t{i}" for i in range(c.vocab_size)])
    w.add_token_types([1] * c.vocab_size)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_eot_token_id(5)
    names = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
             "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
             "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    top = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
           "lm_head.weight": "output.weight"}
    for name, value in model.state_dict().items():
        value = value.numpy()
        if name in top:
            w.add_tensor(top[name], value)
            continue
        layer, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
        if part == "self_attn.q_proj":
            value = permute(value, c.num_attention_heads)
        if part == "self_attn.k_proj":
            value = permute(value, c.num_key_value_heads)
        w.add_tensor(f"blk.{layer}.{names[part]}.weight", np.ascontiguousarray(value))
    w.add_tensor("rope_freqs.weight", rope_factors(c))
    finish(w)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_types(path):
    """The same matrix in every type, quantised and dequantised by the gguf package."""
    rng = np.random.default_rng(3)
    matrix = (rng.standard_normal((7, 96)) * np.exp(rng.standard_normal((7, 1)))).astype(np.float32)
    matrix[0, :32] = 0  # a block without scale
    w = gguf.GGUFWriter(path, "llama")
    expected = {}
    for kind in ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0"]:
        kind_id = gguf.GGMLQuantizationType[kind]
        data = gguf.quants.quantize(matrix, kind_id)
        if kind == "F16":
            w.add_tensor(kind, data)
        else:
            w.add_tensor(kind, data, raw_dtype=kind_id)
        expected[kind] = torch.from_numpy(np.array(gguf.quants.dequantize(data, kind_id), dtype=np.float32))
        assert expected[kind].shape == matrix.shape
    finish(w)
    save_file(expected, path.replace(".gguf", ".safetensors"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.makedirs(OUT, exist_ok=True)
    scaled, plain = build(SCALED, 1), build(PLAIN, 2)
    save("llama_scaled", scaled, 2, 71, "10GB")
    save("llama_plain", plain, 2, 45, "120KB")
    write_gguf(os.path.join(OUT, "llama_scaled.gguf"), scaled)
    write_types(os.path.join(OUT, "llama_types.gguf"))
    for root, _, files in os.walk(OUT):
        for f in files:
            size = os.path.getsize(os.path.join(root, f))
            if f.startswith(("llama", "model")) or "llama" in root:
                print(f"{size:8d} {os.path.join(root, f)}")
