"""Tiny random Qwen2, Qwen3 and Qwen3-MoE targets with their intermediates.

Run: python scripts/golden/targets.py testdata      (torch 2.13 CPU, transformers 5.24, safetensors 0.8)

Writes folders and NAME.reference.safetensors (input_ids [2,75], embed, layer.{i} raw from hooks, final_norm, logits)
  qwen2             tied, biases on q, k, v, `rope_theta` spelling
  qwen2_untied      untied, eps 1e-5, a `sliding_window` that `use_sliding_window` false switches off
  qwen3             tied, head_dim is not hidden / heads, q and k norms; matrices are exact in f16 (see targets_gguf.py)
  qwen3_moe         every layer sparse, renormalised weights, per-expert names, `num_experts` as published
  qwen3_moe_mixed   norm_topk_prob false, decoder_sparse_step 2 and mlp_only_layers: dense, sparse, dense, dense, dense,
                    sparse; `num_local_experts` as transformers 5 saves it

Every pair of dimensions differs where the architecture allows it, and norms and biases are randomised. The ids are
chosen so that no token has a near-tie between experts. The reference is what transformers computes from the folder.
"""
import os
import sys

from transformers import (Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig,
                          Qwen3MoeForCausalLM)

from tiny import build, config_of, old_rope, published_moe, tensors_of, write

OUT = sys.argv[1] if len(sys.argv) > 1 else "testdata"
ROPE = dict(rope_parameters=dict(rope_type="default", rope_theta=1e6), max_position_embeddings=512,
            bos_token_id=1, eos_token_id=2)

QWEN2 = Qwen2Config(
    vocab_size=150, hidden_size=48, intermediate_size=76, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, rms_norm_eps=1e-6, tie_word_embeddings=True, **ROPE)
QWEN2_UNTIED = Qwen2Config(
    vocab_size=90, hidden_size=60, intermediate_size=84, num_hidden_layers=2, num_attention_heads=6,
    num_key_value_heads=3, rms_norm_eps=1e-5, tie_word_embeddings=False, **ROPE)
QWEN3 = Qwen3Config(
    vocab_size=140, hidden_size=40, intermediate_size=72, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-6, tie_word_embeddings=True, **ROPE)
QWEN3_MOE = Qwen3MoeConfig(
    vocab_size=130, hidden_size=36, intermediate_size=52, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, head_dim=14, rms_norm_eps=1e-6, tie_word_embeddings=False, num_experts=7,
    num_experts_per_tok=3, moe_intermediate_size=18, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[],
    **ROPE)
QWEN3_MOE_MIXED = Qwen3MoeConfig(
    vocab_size=110, hidden_size=28, intermediate_size=44, num_hidden_layers=6, num_attention_heads=4,
    num_key_value_heads=2, head_dim=10, rms_norm_eps=1e-6, tie_word_embeddings=False, num_experts=6,
    num_experts_per_tok=2, moe_intermediate_size=18, norm_topk_prob=False, decoder_sparse_step=2, mlp_only_layers=[3],
    **ROPE)


def per_expert(tensors):
    """`mlp.experts.E.{gate,up,down}_proj.weight`, as published, from transformers' fused tensors."""
    out = {}
    for name, value in tensors.items():
        head, _, leaf = name.rpartition(".")
        if leaf == "gate_up_proj":
            for e, both in enumerate(value):
                gate, up = both.chunk(2)
                out[f"{head}.{e}.gate_proj.weight"], out[f"{head}.{e}.up_proj.weight"] = gate, up
        elif leaf == "down_proj":
            out.update({f"{head}.{e}.down_proj.weight": down for e, down in enumerate(value)})
        else:
            out[name] = value
    return out


if __name__ == "__main__":
    os.makedirs(OUT, exist_ok=True)
    model = build(Qwen2ForCausalLM, QWEN2, 11)
    write(OUT, "qwen2", model, 75, old_rope(config_of(model)))

    model = build(Qwen2ForCausalLM, QWEN2_UNTIED, 13)
    window = dict(use_sliding_window=False, sliding_window=16, max_window_layers=1, layer_types=None)
    write(OUT, "qwen2_untied", model, 75, config_of(model, **window))

    model = build(Qwen3ForCausalLM, QWEN3, 15, half=True)
    write(OUT, "qwen3", model, 75, old_rope(config_of(model)))

    model = build(Qwen3MoeForCausalLM, QWEN3_MOE, 17)
    write(OUT, "qwen3_moe", model, 75, published_moe(old_rope(config_of(model))), per_expert(tensors_of(model)))

    model = build(Qwen3MoeForCausalLM, QWEN3_MOE_MIXED, 19)
    dense = [type(layer.mlp).__name__ == "Qwen3MoeMLP" for layer in model.model.layers]
    assert dense == [True, False, True, True, True, False], dense
    write(OUT, "qwen3_moe_mixed", model, 75, config_of(model), per_expert(tensors_of(model)))
