"""Tiny random gpt-oss targets with their intermediates, experts in plain and in MXFP4 form.

Run: python scripts/golden/gpt_oss.py testdata      (torch 2.13 CPU, transformers 5.24, safetensors 0.8)

Writes folders and NAME.reference.safetensors (input_ids [2,75], embed, layer.{i} raw from hooks, final_norm, logits)
  gpt_oss           experts as [E, in, out], f32; two shards; four layers, window 16 on the even ones, YaRN, sinks
  gpt_oss_mxfp4     experts as `*_blocks` and `*_scales`, all else bf16, `rope_scaling` spelling as published; the
                    reference is computed in f32 on the dequantised weights

Sinks, biases and router are random, and the gain of gate and up takes some of them past the clamp at 7.
"""
import os
import sys

import torch
from transformers import GptOssConfig, GptOssForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tiny import build, config_of, eager, old_rope, trace, write, write_folder, write_reference

OUT = sys.argv[1] if len(sys.argv) > 1 else "testdata"


def config(**sizes):
    return GptOssConfig(
        num_attention_heads=4, num_key_value_heads=2, sliding_window=16, max_position_embeddings=2048,
        rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False,
        rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=32.0, beta_fast=32.0, beta_slow=1.0,
                             truncate=False, original_max_position_embeddings=64), **sizes)


PLAIN = config(vocab_size=100, hidden_size=36, intermediate_size=26, num_hidden_layers=4, head_dim=16,
               num_local_experts=5, num_experts_per_tok=2)
PACKED = config(vocab_size=110, hidden_size=64, intermediate_size=96, num_hidden_layers=3, head_dim=20,
                num_local_experts=5, num_experts_per_tok=3)
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def clamped(model, ids):
    """Share of gate and up values that the clamp changes."""
    seen = []
    hooks = []
    for layer in model.model.layers:
        experts = layer.mlp.experts
        before = experts._apply_gate

        def count(gate_up, before=before, limit=experts.limit):
            gate, up = gate_up[..., ::2], gate_up[..., 1::2]
            seen.append(((gate > limit).float().mean() + (up.abs() > limit).float().mean()).item() / 2)
            return before(gate_up)
        experts._apply_gate = count
        hooks.append((experts, before))
    trace(model, ids)
    for experts, before in hooks:
        experts._apply_gate = before
    return sum(seen) / len(seen)


def louder_experts(model):
    """[E, in, out]: fan-in is the middle axis here."""
    with torch.no_grad():
        for layer in model.model.layers:
            experts = layer.mlp.experts
            for p, gain in ((experts.gate_up_proj, 3.0), (experts.down_proj, 0.5)):
                p.copy_(p / p.std() * gain / p.shape[1] ** 0.5)


def dequantise(blocks, scales):
    """MXFP4 [E, out, K/32, 16] and [E, out, K/32] to f32 [E, out, K]: low nibble first, scale 2^(s-127)."""
    table = torch.tensor(E2M1 + [-x for x in E2M1])
    pairs = torch.stack([blocks & 15, blocks >> 4], dim=-1).flatten(-2)
    values = table[pairs.long()] * torch.exp2(scales.double() - 127).unsqueeze(-1)
    return values.flatten(-2).float()


def packed(seed):
    """A model on dequantised experts, and the tensors of its published form."""
    model = build(GptOssForCausalLM, PACKED, seed)
    generator = torch.Generator().manual_seed(seed + 2)
    tensors = {}
    with torch.no_grad():
        for name, p in model.named_parameters():
            leaf = name.rsplit(".", 1)[-1]
            if leaf not in ("gate_up_proj", "down_proj"):
                p.copy_(p.bfloat16().float())
                tensors[name] = p.bfloat16()
                continue
            experts, inputs, outputs = p.shape
            # Random nibbles have an rms of about 2.9; four neighbouring scales make the place of each one matter.
            low = 122 if leaf == "gate_up_proj" else 119
            blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), generator=generator, dtype=torch.uint8)
            scales = torch.randint(low, low + 4, (experts, outputs, inputs // 32), generator=generator, dtype=torch.uint8)
            scales[0, 0, 0] = 0  # the smallest scale is subnormal in f32
            value = dequantise(blocks, scales)
            theirs = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
            assert torch.equal(theirs, value.transpose(1, 2)), name
            p.copy_(value.transpose(1, 2))
            tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = blocks, scales
    return model, tensors


if __name__ == "__main__":
    os.makedirs(OUT, exist_ok=True)
    model = build(GptOssForCausalLM, PLAIN, 21)
    louder_experts(model)
    reference = write(OUT, "gpt_oss", model, 75, config_of(model), shards=2)
    print(f"gpt_oss: {clamped(model, reference['input_ids']):.1%} of gates and ups clamped")

    model, tensors = packed(23)
    published = old_rope(config_of(model, dtype="bfloat16", initial_context_length=64))
    published["quantization_config"] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
    }
    folder = write_folder(OUT, "gpt_oss_mxfp4", published, tensors)
    # Their loader for this form wants more packages; the values are compared above, here config.json is read back.
    again = GptOssForCausalLM(eager(GptOssConfig.from_pretrained(folder))).eval()
    again.load_state_dict(model.state_dict())
    reference = write_reference(OUT, "gpt_oss_mxfp4", again, 75)
    meant, _ = trace(model, reference["input_ids"])
    assert all(torch.equal(meant[k], reference[k]) for k in meant)
    print(f"gpt_oss_mxfp4: {clamped(model, reference['input_ids']):.1%} of gates and ups clamped")
