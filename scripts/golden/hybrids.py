"""Tiny random Qwen3.5 hybrids (gated delta rule and gated attention) with their intermediates.

Run: python scripts/golden/hybrids.py testdata      (torch 2.13 CPU, transformers 5.24, safetensors 0.8)

Writes folders and NAME.reference.safetensors (input_ids, embed, layer.{i} raw from hooks, final_norm, logits)
  qwen3_5             text only, flat, untied; explicit `layer_types` that no interval gives; T 150
  qwen3_5_nested      `text_config` beside a vision tower, prefix `model.language_model.`, tied; layer kinds by
                      `full_attention_interval` 3 only, no `partial_rotary_factor` (default 0.25); tensors
                      `model.visual.*` and `mtp.*` to be ignored; two shards; matrices exact in f16 (targets_gguf.py)
  qwen3_5_moe         flat, routed experts in fused tensors and a gated shared expert
  qwen3_5_moe_split   the same model with a tensor per expert; it has the reference of qwen3_5_moe

Three value heads share a key head, key and value widths differ, a full-attention layer lies in the middle, and A_log,
dt_bias, the convolution and all norms are random.
"""
import os
import sys

import torch
from transformers import (Qwen3_5Config, Qwen3_5ForCausalLM, Qwen3_5ForConditionalGeneration, Qwen3_5MoeForCausalLM,
                          Qwen3_5MoeTextConfig, Qwen3_5TextConfig)

from targets import per_expert
from tiny import build, config_of, load, published_moe, tensors_of, trace, write, write_folder

OUT = sys.argv[1] if len(sys.argv) > 1 else "testdata"


def rope(section):
    return dict(rope_type="default", rope_theta=1e7, partial_rotary_factor=0.25, mrope_interleaved=True,
                mrope_section=section)


COMMON = dict(rms_norm_eps=1e-6, max_position_embeddings=512, bos_token_id=None, eos_token_id=2,
              linear_num_key_heads=2, linear_num_value_heads=6, linear_conv_kernel_dim=4)
FLAT = Qwen3_5TextConfig(
    vocab_size=66, hidden_size=24, intermediate_size=52, num_hidden_layers=5, num_attention_heads=4,
    num_key_value_heads=2, head_dim=32, linear_key_head_dim=8, linear_value_head_dim=10, tie_word_embeddings=False,
    layer_types=["linear_attention", "full_attention", "linear_attention", "linear_attention", "full_attention"],
    rope_parameters=rope([2, 1, 1]), **COMMON)
TEXT = dict(
    vocab_size=120, hidden_size=28, intermediate_size=44, num_hidden_layers=5, num_attention_heads=6,
    num_key_value_heads=2, head_dim=24, linear_key_head_dim=12, linear_value_head_dim=10, tie_word_embeddings=True,
    full_attention_interval=3, rope_parameters=rope([1, 1, 1]), **COMMON)
VISION = dict(depth=1, hidden_size=16, intermediate_size=20, num_heads=2, patch_size=2, spatial_merge_size=2,
              temporal_patch_size=2, out_hidden_size=28, num_position_embeddings=9)
NESTED = Qwen3_5Config(text_config=TEXT, vision_config=VISION, tie_word_embeddings=True, image_token_id=116,
                       video_token_id=117, vision_start_token_id=114, vision_end_token_id=115)
MOE = Qwen3_5MoeTextConfig(
    vocab_size=90, hidden_size=24, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
    linear_key_head_dim=8, linear_value_head_dim=10, tie_word_embeddings=False, num_experts=7, num_experts_per_tok=3,
    moe_intermediate_size=14, shared_expert_intermediate_size=22, full_attention_interval=3,
    rope_parameters=rope([2, 1, 1]), **COMMON)

# Keys of the published files that transformers does not save.
PUBLISHED = dict(attn_output_gate=True, mamba_ssm_dtype="float32", output_gate_type="swish")


def nested(model):
    """config.json and tensors as published: prefix, vision tower, and a part of the block for multi-token prediction."""
    config = config_of(model, language_model_only=False)
    text = config["text_config"]
    del text["layer_types"], text["rope_parameters"]["partial_rotary_factor"]
    text.pop("partial_rotary_factor", None)
    text.update(PUBLISHED, full_attention_interval=3, mtp_num_hidden_layers=1, mtp_use_dedicated_embeddings=False)
    hidden = text["hidden_size"]
    generator = torch.Generator().manual_seed(0)
    tensors = tensors_of(model)
    tensors["mtp.fc.weight"] = torch.randn(hidden, 2 * hidden, generator=generator)
    tensors["mtp.norm.weight"] = torch.randn(hidden, generator=generator)
    tensors["mtp.layers.0.input_layernorm.weight"] = torch.randn(hidden, generator=generator)
    assert all(k.startswith(("model.language_model.", "model.visual.", "mtp.")) for k in tensors)
    return config, tensors


if __name__ == "__main__":
    os.makedirs(OUT, exist_ok=True)
    model = build(Qwen3_5ForCausalLM, FLAT, 31)
    write(OUT, "qwen3_5", model, 150, config_of(model, **PUBLISHED))

    model = build(Qwen3_5ForConditionalGeneration, NESTED, 33, half=True)
    full = [hasattr(layer, "self_attn") for layer in model.model.language_model.layers]
    assert full == [False, False, True, False, False], full
    write(OUT, "qwen3_5_nested", model, 75, *nested(model), shards=2)

    model = build(Qwen3_5MoeForCausalLM, MOE, 35)
    config = published_moe(config_of(model, **PUBLISHED))
    reference = write(OUT, "qwen3_5_moe", model, 75, config)
    folder = write_folder(OUT, "qwen3_5_moe_split", config, per_expert(tensors_of(model)))
    again, _ = trace(load(Qwen3_5MoeForCausalLM, folder), reference["input_ids"])
    assert all(torch.equal(again[k], reference[k]) for k in again)
