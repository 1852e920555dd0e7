"""Greedy continuations of the real SmolLM2-135M-Instruct (GGUF, Q4_1) by PyTorch transformers on the dequantised weights.

Run: python scripts/golden/smollm2_greedy.py SmolLM2-135M-Instruct.Q4_1.gguf testdata/smollm2_greedy.json

Dequantises with the gguf package, undoes the converter's q/k row permutation, runs LlamaForCausalLM in f32 with its cache
and takes the first maximum, 64 tokens per prompt whatever the end-of-text ids. `gaps` holds the difference of the two
largest logits at every step: where another implementation differs, the gap says whether that is a near-tie.
"""
import hashlib
import json
import sys

import gguf
import jinja2
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

# transformers asks CUDA on every forward; the CPU answer, without needing its libraries.
torch.cuda.is_current_stream_capturing = lambda: False

PROMPTS = [
    "Write a Python function that counts the vowels in a string.",
    "Explain in three sentences why the sky looks blue.",
    "List five things to check before a long bicycle tour.",
    "Rewrite this more politely: Send me the report now.",
    "A shop sells pencils at 4 for 1 euro. How much do 18 pencils cost?",
    "What is the difference between a list and a tuple in Python?",
    "Write a short poem about a lighthouse in winter.",
    "Turn this into a bullet list: we need milk, two loaves of bread and 12 eggs.",
    "Give me a shell command that finds all files larger than 10 MB.",
    "Describe how bread rises, for a child of eight.",
]
NEW_TOKENS = 64


def tokenizer(fields):
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ", 1)) for m in fields["tokenizer.ggml.merges"].contents()]
    assert fields["tokenizer.ggml.pre"].contents() == "smollm"
    kinds = fields["tokenizer.ggml.token_type"].contents()
    tok = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([t for t, kind in zip(tokens, kinds) if kind == 3])
    return tok


def unpermute(w, heads):
    return w.reshape(heads, w.shape[0] // heads // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def load(reader):
    field = lambda key: reader.fields[f"llama.{key}"].contents()
    heads, kv_heads = field("attention.head_count"), field("attention.head_count_kv")
    config = LlamaConfig(
        vocab_size=field("vocab_size"), hidden_size=field("embedding_length"), intermediate_size=field("feed_forward_length"),
        num_hidden_layers=field("block_count"), num_attention_heads=heads, num_key_value_heads=kv_heads,
        rms_norm_eps=1e-5, max_position_embeddings=field("context_length"), tie_word_embeddings=True,
        rope_parameters=dict(rope_type="default", rope_theta=float(field("rope.freq_base"))))
    assert abs(field("attention.layer_norm_rms_epsilon") - 1e-5) < 1e-12
    config._attn_implementation = "eager"
    names = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
             "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
             "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    state = {}
    for tensor in reader.tensors:
        value = np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        parts = tensor.name.split(".")
        if parts[0] == "blk":
            if parts[2] == "attn_q":
                value = unpermute(value, heads)
            if parts[2] == "attn_k":
                value = unpermute(value, kv_heads)
            name = f"model.layers.{parts[1]}.{names[parts[2]]}.weight"
        else:
            name = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}[tensor.name]
        state[name] = torch.from_numpy(np.ascontiguousarray(value))
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model = LlamaForCausalLM(config).eval()
    model.load_state_dict(state, strict=True)
    return model


def main(path, out):
    reader = gguf.GGUFReader(path)
    tok, model = tokenizer(reader.fields), load(reader)
    template = jinja2.Environment().from_string(reader.fields["tokenizer.chat_template"].contents())
    runs = []
    for text in PROMPTS:
        rendered = template.render(messages=[{"role": "user", "content": text}], add_generation_prompt=True)
        prompt_ids = tok.encode(rendered, add_special_tokens=False).ids
        ids, cache, output, gaps = torch.tensor([prompt_ids]), None, [], []
        with torch.no_grad():
            for _ in range(NEW_TOKENS):
                step = model(input_ids=ids, past_key_values=cache, use_cache=True)
                cache, logits = step.past_key_values, step.logits[0, -1]
                top = torch.topk(logits, 2).values
                output.append(int(torch.argmax(logits)))
                gaps.append(float(f"{(top[0] - top[1]).item():.6g}"))
                ids = torch.tensor([[output[-1]]])
        print(f"smallest gap {min(gaps):.2e}: {tok.decode(output)[:90]!r}", file=sys.stderr)
        runs.append({"text": text, "rendered": rendered, "prompt_ids": prompt_ids, "output_ids": output,
                     "output_text": tok.decode(output, skip_special_tokens=False), "gaps": gaps})
    digest = hashlib.sha256(open(path, "rb").read()).hexdigest()
    with open(out, "w") as f:
        json.dump({"model_sha256": digest, "runs": runs}, f, indent=None, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], sys.argv[2])
