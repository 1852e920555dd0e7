"""Per-op fixtures of the Qwen3.5 hybrids: gated delta rule, causal convolution, partial RoPE.

Run: python scripts/golden/gated_delta.py testdata      (torch 2.13 CPU, transformers 5.24, safetensors 0.8)

Writes
  gated_delta.safetensors   `case.{n}.q`, `.k` [T, key_heads, K] before the l2 norm, `.v` [T, value_heads, V], `.g`,
                            `.beta` [T, value_heads], `.state` [value_heads, K, V] before, and, from the recurrence in
                            f64, `.out` [T, value_heads, V] and `.final_state`. Value head h reads key head h / 3.
  causal_conv.safetensors   `case.{n}.x` [T, channels], `.weight` [channels, 4], `.tail` [3, channels] (the inputs
                            before x, oldest first; absent means zeros), `.out` = silu(conv), `.next_tail` [3, channels]
  partial_rope.safetensors  `positions` [P], `x` [P, heads, 32], and per theta `{name}.theta` [1], `.inv_freq` [4],
                            `.cos`, `.sin` [P, 4], `.out` like x: the first 8 of 32 dims rotate; angles are f32
                            position times f32 frequency, as transformers computes them

The f64 results are compared with transformers' chunked, recurrent and convolution functions before they are written.
"""
import os
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import Qwen3_5TextConfig
from transformers.models.qwen3_5 import modeling_qwen3_5 as hf

OUT = sys.argv[1] if len(sys.argv) > 1 else "testdata"
SEED = 41
KEY_HEADS, VALUE_HEADS = 2, 6
LONG, SHORT = (5, 7), (8, 12)  # widths of key and value


def relative(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


def inputs(length, widths, generator):
    k, v = widths

    def noise(*shape):
        return torch.randn(shape, generator=generator)
    rate = torch.empty(VALUE_HEADS).uniform_(0.01, 16, generator=generator)
    return {
        "q": noise(length, KEY_HEADS, k), "k": noise(length, KEY_HEADS, k), "v": noise(length, VALUE_HEADS, v),
        "g": -rate * F.softplus(1.5 * noise(length, VALUE_HEADS) - 2), "beta": noise(length, VALUE_HEADS).sigmoid(),
        "state": noise(VALUE_HEADS, k, v),
    }


def forget(case):
    """Some heads forget everything at every token, the others at every seventh: exp(-G) would overflow."""
    case["g"][:, :3] = -50.0
    case["g"][3::7] = -50.0


def remember(case):
    case["g"][:] = -1e-4


def same_keys(case):
    """The worst case for inverting I + N."""
    case["k"][:] = case["k"][:1]
    case["beta"][:] = 0.95
    case["g"][:] = -1e-3


def zero_rows(case):
    """Where the epsilon of the l2 norm decides: rows of zeros, and rows as small as it."""
    case["q"][1], case["k"][2] = 0, 0
    case["q"][4], case["k"][4] = 0, 0
    case["q"][5:7] *= 3e-4
    case["k"][6:8] *= 3e-4


def from_zero(case):
    case["state"][:] = 0


CASES = [(1, SHORT, None), (3, SHORT, None), (63, LONG, None), (64, LONG, None), (65, LONG, None), (150, LONG, None),
         (65, LONG, forget), (67, LONG, remember), (66, LONG, same_keys), (9, LONG, zero_rows), (2, LONG, from_zero)]


def recurrence(case):
    """The definition, in f64."""
    c = {name: value.double() for name, value in case.items()}
    width = c["q"].shape[-1]
    q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (c["q"], c["k"]))
    q = q / width ** 0.5
    state, out = c["state"].clone(), torch.zeros_like(c["v"])
    for t in range(len(q)):
        for h in range(VALUE_HEADS):
            key, query = k[t, h // (VALUE_HEADS // KEY_HEADS)], q[t, h // (VALUE_HEADS // KEY_HEADS)]
            s = state[h] * c["g"][t, h].exp()
            s = s + torch.outer(key, c["beta"][t, h] * (c["v"][t, h] - s.T @ key))
            state[h], out[t, h] = s, s.T @ query
    return out, state


def gated_delta(path):
    generator = torch.Generator().manual_seed(SEED)
    tensors = {}
    for n, (length, widths, change) in enumerate(CASES):
        case = inputs(length, widths, generator)
        if change:
            change(case)
        out, state = recurrence(case)
        rows = {name: value[None] for name, value in case.items()}
        errors = []
        for rule in (hf.torch_chunk_gated_delta_rule, hf.torch_recurrent_gated_delta_rule):
            theirs, their_state = rule(rows["q"], rows["k"], rows["v"], rows["g"], rows["beta"],
                                       initial_state=rows["state"].clone(), output_final_state=True,
                                       use_qk_l2norm_in_kernel=True)
            errors += [relative(theirs[0], out), relative(their_state[0], state)]
        name = change.__name__ if change else ""
        print(f"case {n}: T {length}, K {widths[0]}, V {widths[1]} {name}: f64 recurrence against transformers: chunked "
              f"out {errors[0]:.1e} state {errors[1]:.1e}, recurrent out {errors[2]:.1e} state {errors[3]:.1e}")
        # Chunks add up g: where the sum is large, its rounding shows in exp of a difference.
        assert max(errors) < 1e-5 and max(errors[2:]) < 1e-6
        case |= {"out": out.float(), "final_state": state.float()}
        tensors |= {f"case.{n}.{key}": value.contiguous() for key, value in case.items()}
    save_file(tensors, path)


def causal_conv(path):
    generator = torch.Generator().manual_seed(SEED + 1)
    tensors, worst = {}, 0.0
    for n, (length, channels, carried) in enumerate(
            [(1, 5, False), (1, 5, True), (2, 21, True), (3, 21, False), (3, 21, True), (4, 19, True), (5, 19, False),
             (37, 19, False), (37, 35, True)]):
        x = torch.randn(length, channels, generator=generator)
        weight = 0.7 * torch.randn(channels, 4, generator=generator)
        tail = torch.randn(3, channels, generator=generator) if carried else torch.zeros(3, channels)
        whole = torch.cat([tail, x])
        y = torch.zeros(length, channels, dtype=torch.float64)
        for t in range(length):
            for j in range(4):
                y[t] += weight[:, j].double() * whole[t + j].double()
        y = y * torch.sigmoid(y)
        theirs = hf.causal_conv1d_fn(whole.T[None], weight, activation="silu")[0].T[3:]
        worst = max(worst, relative(theirs, y))
        case = {"x": x, "weight": weight, "out": y.float(), "next_tail": whole[-3:].clone()}
        if carried:
            case["tail"] = tail
        tensors |= {f"case.{n}.{key}": value.contiguous() for key, value in case.items()}
    print(f"causal convolution: f64 against transformers {worst:.1e}")
    assert worst < 1e-6
    save_file(tensors, path)


def partial_rope(path):
    positions = torch.tensor([0, 1, 2, 17, 1000, 8191, 65537, 131071, 200000])
    x = torch.randn(len(positions), 3, 32, generator=torch.Generator().manual_seed(SEED + 2))
    tensors = {"positions": positions, "x": x}
    for name, theta in (("qwen3_5", 1e7), ("short", 1e4)):
        config = Qwen3_5TextConfig(
            hidden_size=96, num_attention_heads=3, head_dim=32, max_position_embeddings=262144,
            rope_parameters=dict(rope_type="default", rope_theta=theta, partial_rotary_factor=0.25,
                                 mrope_interleaved=True, mrope_section=[2, 1, 1]))
        rotary = hf.Qwen3_5TextRotaryEmbedding(config)
        cos, sin = rotary(x, positions[None, None].expand(3, 1, -1))
        out, _ = hf.apply_rotary_pos_emb(x.transpose(0, 1)[None], x.transpose(0, 1)[None], cos, sin)
        out = out[0].transpose(0, 1)
        assert cos.shape[-1] == 8 and torch.equal(cos[..., :4], cos[..., 4:]) and torch.equal(out[..., 8:], x[..., 8:])
        tensors |= {f"{name}.theta": torch.tensor([theta], dtype=torch.float64), f"{name}.inv_freq": rotary.inv_freq.clone(),
                    f"{name}.cos": cos[0, :, :4].contiguous(), f"{name}.sin": sin[0, :, :4].contiguous(),
                    f"{name}.out": out.contiguous()}
    save_file(tensors, path)


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.makedirs(OUT, exist_ok=True)
    for write, name in ((gated_delta, "gated_delta"), (causal_conv, "causal_conv"), (partial_rope, "partial_rope")):
        path = os.path.join(OUT, f"{name}.safetensors")
        write(path)
        print(f"{os.path.getsize(path):8d} {path}")
