#!/usr/bin/env python3
"""testdata/rope.safetensors: RoPE frequencies, and cosines and sines, by transformers' own functions.

Per case: `{case}.inv_freq` [head_dim / 2], `{case}.attention_factor` [1], and at `positions` [P] `{case}.cos` and
`{case}.sin` [P, head_dim / 2] as a llama model computes them (angle = f32 position * f32 frequency).
The cases are repeated in crates/draftsman-kernels/tests/it/norms.rs.

Made with torch 2.13, transformers 5.24, safetensors 0.6.
"""

import sys

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
CASES = {
    "plain": (64, 1e5, None),
    "plain_qwen": (128, 1e7, None),
    "linear": (64, 1e4, {"rope_type": "linear", "factor": 2.5}),
    "llama3": (128, 5e5, LLAMA3),
    "llama3_factor32": (64, 5e5, LLAMA3 | {"factor": 32.0}),
    "llama3_tiny": (16, 1e4, LLAMA3 | {"original_max_position_embeddings": 64}),
    "yarn_gpt_oss": (64, 150000.0, {
        "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": 4096,
    }),
    "yarn_kimi": (128, 50000.0, {
        "rope_type": "yarn", "factor": 64.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
        "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096,
    }),
    "yarn_mscale": (64, 10000.0, {
        "rope_type": "yarn", "factor": 40.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 0.707,
        "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096,
    }),
    "yarn_given_factor": (32, 10000.0, {
        "rope_type": "yarn", "factor": 4.0, "attention_factor": 1.25, "original_max_position_embeddings": 2048,
    }),
}


def main(path):
    positions = torch.tensor([0, 1, 2, 17, 1000, 8191, 40959, 200000, 262143])
    out = {"positions": positions.to(torch.int64)}
    for name, (head_dim, theta, scaling) in CASES.items():
        config = LlamaConfig(
            hidden_size=2 * head_dim, num_attention_heads=2, head_dim=head_dim, max_position_embeddings=262144,
            rope_parameters={"rope_theta": theta, **(scaling or {"rope_type": "default"})},
        )
        if scaling is None:
            from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
            rotary = LlamaRotaryEmbedding(config)
            inv_freq, factor = rotary.inv_freq, rotary.attention_scaling
        else:
            inv_freq, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, None)
        angle = positions.float()[:, None] * inv_freq.float()[None, :]
        out |= {
            f"{name}.inv_freq": inv_freq.float().contiguous(),
            f"{name}.attention_factor": torch.tensor([float(factor)]),
            f"{name}.cos": angle.cos() * factor,
            f"{name}.sin": angle.sin() * factor,
        }
    save_file(out, path)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "testdata/rope.safetensors")
