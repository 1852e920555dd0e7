"""Golden tensors of the DFlash drafter: an independent PyTorch reference, written from the published semantics.

    python scripts/golden/drafter.py testdata

Nothing is shared with the Rust code on purpose: a dense mask made pair by pair from the stated rule, autograd for the
gradients, positions and labels counted by hand. Writes testdata/drafter_{case}/{config.json,model.safetensors,
golden.safetensors}; needs torch and safetensors.
"""

import json
import math
import os
import sys

import torch
from safetensors.torch import save_file

V, H, I, NH, NKV, HD = 61, 32, 40, 4, 2, 12  # NH * HD != H, HD no power of two
MASK_ID = 7

YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=32.0, beta_slow=1.0)

CASES = {
    # Plain: one document, nothing optional.
    "full": dict(
        block=6, taps=[1, 3, 6], target_layers=9, theta=1e6, layers=["full", "full"], documents=[(0, 26)],
        unsupervised=list(range(0, 5)), holes="cut",
    ),
    # Sliding layers are causal inside the block by the default rule; every optional scale; two documents, a hole.
    "sliding": dict(
        block=5, taps=[0, 4], target_layers=6, theta=1e4, layers=["sliding", "full", "sliding"], window=4,
        documents=[(0, 11), (11, 25)], unsupervised=[0, 1, 11, 12, 13, 19], holes="skip",
        input_embedding_scale=1.75, output_multiplier=0.5, final_logit_softcapping=3.0,
    ),
    # is_causal false: two-sided windows; YaRN; a window smaller than the block.
    "two_sided": dict(
        block=7, taps=[2], target_layers=5, theta=5e5, layers=["sliding", "sliding"], window=3, is_causal=False,
        documents=[(0, 24)], unsupervised=[0, 1, 2, 14], holes="cut", rope_scaling=YARN,
    ),
    # is_causal true holds for full layers too.
    "causal": dict(
        block=4, taps=[1, 2], target_layers=5, theta=1e6, layers=["full", "sliding"], window=6, is_causal=True,
        documents=[(0, 18)], unsupervised=[0], holes="cut",
    ),
}


def make_weights(case, g):
    def matrix(o, i):
        return torch.randn(o, i, generator=g) * (0.8 / math.sqrt(i))

    def norm(n):
        return 1 + 0.3 * torch.randn(n, generator=g)

    w = {"fc.weight": matrix(H, len(case["taps"]) * H), "hidden_norm.weight": norm(H)}
    for i in range(len(case["layers"])):
        p = f"layers.{i}."
        w[p + "input_layernorm.weight"] = norm(H)
        w[p + "self_attn.q_proj.weight"] = matrix(NH * HD, H)
        w[p + "self_attn.k_proj.weight"] = matrix(NKV * HD, H)
        w[p + "self_attn.v_proj.weight"] = matrix(NKV * HD, H)
        w[p + "self_attn.o_proj.weight"] = matrix(H, NH * HD)
        w[p + "self_attn.q_norm.weight"] = norm(HD) * 1.5
        w[p + "self_attn.k_norm.weight"] = norm(HD) * 1.5
        w[p + "post_attention_layernorm.weight"] = norm(H)
        w[p + "mlp.gate_proj.weight"] = matrix(I, H)
        w[p + "mlp.up_proj.weight"] = matrix(I, H)
        w[p + "mlp.down_proj.weight"] = matrix(H, I)
    w["norm.weight"] = norm(H)
    return w


def rms(x, w, eps=1e-6):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * w


def frequencies(case):
    """Inverse frequencies and the factor on cos and sin."""
    inv = torch.tensor([case["theta"] ** (-2 * j / HD) for j in range(HD // 2)], dtype=torch.float64)
    scaling = case.get("rope_scaling")
    if scaling is None:
        return inv, 1.0
    # YaRN: dimension at which a wavelength fits `rotations` times into the original length.
    f, n = scaling["factor"], scaling["original_max_position_embeddings"]

    def dimension(rotations):
        return HD * math.log(n / (rotations * 2 * math.pi)) / (2 * math.log(case["theta"]))

    low = max(math.floor(dimension(scaling["beta_fast"])), 0)
    high = min(math.ceil(dimension(scaling["beta_slow"])), HD - 1)
    if low == high:
        high += 0.001
    ramp = torch.tensor([min(max((j - low) / (high - low), 0.0), 1.0) for j in range(HD // 2)], dtype=torch.float64)
    return inv / f * ramp + inv * (1 - ramp), 0.1 * math.log(f) + 1.0


def rotate(x, positions, case):
    """x [rows, heads, HD]; halves are the pairs."""
    inv, factor = frequencies(case)
    angle = torch.tensor(positions, dtype=torch.float64)[:, None] * inv[None]
    cos, sin = (angle.cos() * factor).to(x.dtype)[:, None], (angle.sin() * factor).to(x.dtype)[:, None]
    a, b = x[..., : HD // 2], x[..., HD // 2 :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def layer_rule(case, i):
    """(causal, window) of layer i."""
    sliding = case["layers"][i] == "sliding"
    causal = case["is_causal"] if "is_causal" in case else sliding
    return causal, case["window"] if sliding else None


def document_of(case, t):
    return next(d for d in case["documents"] if d[0] <= t < d[1])


def dense_mask(case, i, blocks):
    """True where a query row may see a key. Keys: context rows, then all block rows."""
    causal, window = layer_rule(case, i)
    total = case["documents"][-1][1]
    queries = [(n, a + j, document_of(case, a)) for n, (a, rows) in enumerate(blocks) for j in range(rows)]
    mask = torch.zeros(len(queries), total + len(queries), dtype=torch.bool)
    for q, (n, pos, doc) in enumerate(queries):
        anchor = blocks[n][0]
        for k in range(total + len(queries)):
            if k < total:
                seen, kpos = doc[0] <= k < anchor, k
            else:
                m, kpos, _ = queries[k - total]
                seen = m == n and not (causal and kpos > pos)
            if window is not None:
                seen = seen and pos - kpos < window and (causal or kpos - pos < window)
            mask[q, k] = seen
    return mask


def run(case, w, features, ids, embed, head, blocks):
    """blocks: [(anchor, rows)]. Returns the named intermediates; rows of all blocks concatenated."""
    starts = [document_of(case, t)[0] for t in range(case["documents"][-1][1])]
    context_positions = [t - s for t, s in enumerate(starts)]
    positions = [a - document_of(case, a)[0] + j for a, rows in blocks for j in range(rows)]
    block_ids = [ids[a] if j == 0 else MASK_ID for a, rows in blocks for j in range(rows)]
    out = {}
    c = out["context"] = rms(features @ w["fc.weight"].T, w["hidden_norm.weight"])
    x = embed[block_ids] * case.get("input_embedding_scale", 1.0)
    rows = len(block_ids)
    for i in range(len(case["layers"])):
        p = f"layers.{i}."
        h = rms(x, w[p + "input_layernorm.weight"])
        both = torch.cat([c, h])  # the context is not normed again
        q = rms((h @ w[p + "self_attn.q_proj.weight"].T).view(rows, NH, HD), w[p + "self_attn.q_norm.weight"])
        k = rms((both @ w[p + "self_attn.k_proj.weight"].T).view(-1, NKV, HD), w[p + "self_attn.k_norm.weight"])
        v = (both @ w[p + "self_attn.v_proj.weight"].T).view(-1, NKV, HD)
        q, k = rotate(q, positions, case), rotate(k, context_positions + positions, case)
        k, v = k.repeat_interleave(NH // NKV, 1), v.repeat_interleave(NH // NKV, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) * HD**-0.5
        scores = scores.masked_fill(~dense_mask(case, i, blocks)[None], float("-inf"))
        attended = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(rows, NH * HD)
        x = x + attended @ w[p + "self_attn.o_proj.weight"].T
        u = rms(x, w[p + "post_attention_layernorm.weight"])
        gate, up = u @ w[p + "mlp.gate_proj.weight"].T, u @ w[p + "mlp.up_proj.weight"].T
        x = out[f"layer.{i}"] = x + (gate * torch.sigmoid(gate) * up) @ w[p + "mlp.down_proj.weight"].T
    x = out["final_norm"] = rms(x, w["norm.weight"])
    logits = x @ head.T * case.get("output_multiplier", 1.0)
    cap = case.get("final_logit_softcapping")
    out["logits"] = logits if cap is None else cap * torch.tanh(logits / cap)
    return out, positions, block_ids


def supervision(case, ids, blocks, gamma):
    """Labels and weights of every block row: slot k predicts the token at anchor + k, slot 0 nothing."""
    total = case["documents"][-1][1]
    supervised = [t not in case["unsupervised"] for t in range(total)]
    labels, weights = [], []
    for anchor, rows in blocks:
        end, cut = document_of(case, anchor)[1], False
        for k in range(rows):
            t = anchor + k
            labels.append(ids[t] if k > 0 and t < end else -1)
            learned = k > 0 and t < end and supervised[t]
            if k > 0 and not learned:
                cut = True
            if case["holes"] == "cut" and cut:
                learned = False
            weights.append(math.exp(-(k - 1) / gamma) if learned else 0.0)
    return supervised, labels, weights


def anchors_of(case, supervised):
    """Of every document: first, second, middle and last eligible anchor (supervised, and so is the next token)."""
    chosen = set()
    for start, end in case["documents"]:
        eligible = [t for t in range(start, end - 1) if supervised[t] and supervised[t + 1]]
        chosen |= {eligible[0], eligible[1], eligible[len(eligible) // 2], eligible[-1]}
    return sorted(chosen)


def config_of(case):
    nested = dict(mask_token_id=MASK_ID, target_layer_ids=case["taps"])
    for key in ["input_embedding_scale", "output_multiplier", "final_logit_softcapping"]:
        if key in case:
            nested[key] = case[key]
    config = dict(
        architectures=["DFlashDraftModel"], model_type="qwen3", block_size=case["block"], dflash_config=nested,
        num_target_layers=case["target_layers"], num_hidden_layers=len(case["layers"]),
        layer_types=[kind + "_attention" for kind in case["layers"]], hidden_size=H, intermediate_size=I,
        num_attention_heads=NH, num_key_value_heads=NKV, head_dim=HD, rms_norm_eps=1e-6, rope_theta=case["theta"],
        rope_scaling=case.get("rope_scaling"), sliding_window=case.get("window"),
        use_sliding_window="window" in case, max_position_embeddings=4096, attention_bias=False, hidden_act="silu",
        vocab_size=V, dtype="float32",
    )
    if "is_causal" in case:
        config["is_causal"] = case["is_causal"]
    return config


def main(out):
    torch.set_num_threads(1)
    for seed, (name, case) in enumerate(CASES.items()):
        g = torch.Generator().manual_seed(seed)
        weights = {k: t.requires_grad_() for k, t in make_weights(case, g).items()}
        total = case["documents"][-1][1]
        ids = torch.randint(8, V, (total,), generator=g).tolist()
        features = torch.randn(total, len(case["taps"]) * H, generator=g) * 2
        embed = torch.randn(V, H, generator=g) * 0.5
        head = torch.randn(V, H, generator=g) * 0.3
        gamma = 7 * (case["block"] - 1) / 15  # no case has one of the sizes with a γ of their own
        supervised, _, _ = supervision(case, ids, [], gamma)
        anchors = anchors_of(case, supervised)
        blocks = [(a, case["block"]) for a in anchors]
        _, labels, slot_weights = supervision(case, ids, blocks, gamma)

        got, positions, block_ids = run(case, weights, features, ids, embed, head, blocks)
        ce = torch.nn.functional.cross_entropy(got["logits"], torch.tensor(labels).clamp(min=0), reduction="none")
        slot_weights = torch.tensor(slot_weights)
        numerator, denominator = (ce * slot_weights).sum(), slot_weights.sum()
        loss = numerator / denominator
        loss.backward()

        # Decoding: a block of 3 rows after a context of exactly `short_anchor` tokens of the first document.
        short_anchor = anchors[1]
        short_case = dict(case, documents=[(0, short_anchor + 1)])
        # The reference wants the anchor inside the document; its features are never seen.
        short, _, _ = run(short_case, weights, features[: short_anchor + 1], ids, embed, head, [(short_anchor, 3)])

        tensors = {
            "features": features, "input_ids": torch.tensor(ids), "loss_mask": torch.tensor(supervised).float(),
            "documents": torch.tensor(case["documents"]), "anchors": torch.tensor(anchors),
            "embed.weight": embed, "lm_head.weight": head,
            "holes_cut": torch.tensor([int(case["holes"] == "cut")]), "positions": torch.tensor(positions),
            "block_ids": torch.tensor(block_ids), "labels": torch.tensor(labels), "weights": slot_weights,
            "loss_numerator": numerator.reshape(1), "loss_denominator": denominator.reshape(1),
            "loss": loss.reshape(1), "short_anchor": torch.tensor([short_anchor]),
        }
        tensors |= got
        tensors |= {"short." + k: short[k] for k in ["final_norm", "logits"]}
        tensors |= {"grad." + k: t.grad for k, t in weights.items()}
        folder = os.path.join(out, f"drafter_{name}")
        os.makedirs(folder, exist_ok=True)
        save_file({k: t.detach().contiguous() for k, t in tensors.items()}, os.path.join(folder, "golden.safetensors"))
        save_file({k: t.detach() for k, t in weights.items()}, os.path.join(folder, "model.safetensors"),
                  metadata={"format": "pt"})
        for file in ["golden.safetensors", "model.safetensors"]:
            os.chmod(os.path.join(folder, file), 0o644)
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(config_of(case), f, indent=1)
            f.write("\n")
        print(f"{name}: anchors {anchors} of {total}, loss {loss.item():.6f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "testdata")
