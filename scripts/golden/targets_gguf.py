"""The tiny Qwen targets as GGUF, as llama.cpp's converter writes them, and k-quant blocks with their values.

Run after targets.py and hybrids.py: python scripts/golden/targets_gguf.py testdata
(numpy, safetensors 0.8, gguf 0.19)

Writes
  qwen2.gguf    of qwen2, F32; no head width and no rotary width among the keys: they follow from the heads
  qwen3.gguf    of qwen3, matrices F16 (exactly: they were rounded before the reference was made), the rest F32
  qwen35.gguf   of qwen3_5_nested's text model, matrices F16. Values change: zero-centred norms as 1 + w, ssm_a as
                -exp(A_log), the convolution without its middle axis, value heads from grouped order (key head, copy)
                to tiled order (copy, key head) wherever they are an axis
  quants.gguf   a matrix in each of Q5_0, Q5_1, Q4_K, Q5_K and Q6_K, made of random blocks, and quants.safetensors:
                its values by the gguf package
The references of the safetensors models hold for the GGUF ones.
"""
import glob
import json
import os
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from safetensors.numpy import load_file, save_file

OUT = sys.argv[1] if len(sys.argv) > 1 else "testdata"
NAMES = {
    "input_layernorm.weight": "attn_norm.weight", "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight", "mlp.down_proj.weight": "ffn_down.weight",
    "self_attn.q_proj.weight": "attn_q.weight", "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight", "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_proj.bias": "attn_q.bias", "self_attn.k_proj.bias": "attn_k.bias",
    "self_attn.v_proj.bias": "attn_v.bias", "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight", "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight", "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight", "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias", "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
}
TOP = {"embed_tokens.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}


def read(name):
    folder = os.path.join(OUT, name)
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    tensors = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.safetensors"))):
        tensors |= load_file(path)
    return config.get("text_config", config), tensors


def writer(arch, name, c, half):
    w = gguf.GGUFWriter(os.path.join(OUT, f"{name}.gguf"), arch)
    w.add_file_type(gguf.LlamaFileType.MOSTLY_F16 if half else gguf.LlamaFileType.ALL_F32)
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_rope_freq_base(c["rope_theta"] if "rope_theta" in c else c["rope_parameters"]["rope_theta"])
    if "head_dim" in c:
        w.add_key_length(c["head_dim"])
        w.add_value_length(c["head_dim"])
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen35" if arch == "qwen35" else "qwen2")
    w.add_token_list([f"t{i}" for i in range(c["vocab_size"])])
    w.add_token_types([1] * c["vocab_size"])
    w.add_eos_token_id(2)
    return w


def add_tensors(w, tensors, prefix, half, convert=lambda name, value: value):
    for name, value in tensors.items():
        if not name.startswith(prefix):
            continue
        name = name.removeprefix(prefix)
        value = np.ascontiguousarray(convert(name, value))
        if name in TOP:
            target = TOP[name]
        else:
            _, layer, part = name.split(".", 2)
            names = NAMES | {"post_attention_layernorm.weight":
                             "post_attention_norm.weight" if w.arch == "qwen35" else "ffn_norm.weight"}
            target = f"blk.{layer}.{names[part]}"
        assert value.dtype == np.float32
        if half and value.ndim == 2 and "conv1d" not in name:
            assert np.array_equal(value.astype(np.float16).astype(np.float32), value), name
            value = value.astype(np.float16)
        w.add_tensor(target, value)


def finish(w):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def write_plain(arch, half):
    config, tensors = read(arch)
    w = writer(arch, arch, config, half)
    add_tensors(w, tensors, "model.", half)
    finish(w)


def tiled(value, axis, key_heads, value_heads, width):
    """Value heads along `axis` from grouped (key head, copy) to tiled (copy, key head) order."""
    order = np.arange(value_heads).reshape(key_heads, value_heads // key_heads).T.reshape(-1)
    rows = (order[:, None] * width + np.arange(width)).reshape(-1)
    return np.take(value, rows, axis=axis)


def write_qwen35():
    c, tensors = read("qwen3_5_nested")
    key_heads, value_heads = c["linear_num_key_heads"], c["linear_num_value_heads"]
    k, v = c["linear_key_head_dim"], c["linear_value_head_dim"]
    w = writer("qwen35", "qwen35", c, True)
    rotary = c["head_dim"] // 4
    w.add_rope_dimension_count(rotary)
    w.add_rope_dimension_sections([*c["rope_parameters"]["mrope_section"], 0])
    w.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
    w.add_ssm_state_size(k)
    w.add_ssm_group_count(key_heads)
    w.add_ssm_time_step_rank(value_heads)
    w.add_ssm_inner_size(value_heads * v)
    w.add_full_attention_interval(c["full_attention_interval"])

    def convert(name, value):
        leaf = name if name in TOP else name.split(".", 2)[-1]
        if leaf.endswith("norm.weight") and not leaf.startswith("linear_attn"):
            return value + np.float32(1)
        if not leaf.startswith("linear_attn"):
            return value
        leaf = leaf.removeprefix("linear_attn.")
        if leaf == "A_log":
            value = -np.exp(value)
        if leaf == "conv1d.weight":
            value = value.squeeze(1)
        if leaf in ("in_proj_qkv.weight", "conv1d.weight"):
            start = 2 * key_heads * k
            return np.concatenate([value[:start], tiled(value[start:], 0, key_heads, value_heads, v)])
        if leaf == "in_proj_z.weight":
            return tiled(value, 0, key_heads, value_heads, v)
        if leaf in ("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias"):
            return tiled(value, 0, key_heads, value_heads, 1)
        if leaf == "out_proj.weight":
            return tiled(value, 1, key_heads, value_heads, v)
        assert leaf == "norm.weight", leaf
        return value

    add_tensors(w, tensors, "model.language_model.", True, convert)
    finish(w)


# Where the f16 scales lie in a block, by byte: the rest of it may be anything.
BLOCKS = {"Q5_0": (0,), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


def write_quants():
    rng = np.random.default_rng(51)
    w = gguf.GGUFWriter(os.path.join(OUT, "quants.gguf"), "llama")
    expected = {}
    for name, scales in BLOCKS.items():
        kind = Kind[name]
        block, size = gguf.GGML_QUANT_SIZES[kind]
        rows, per_row = 5, 3 if block == 32 else 2
        data = rng.integers(0, 256, (rows * per_row, size), dtype=np.uint8)
        for at in scales:
            scale = (0.05 * rng.standard_normal(rows * per_row)).astype(np.float16)  # negative ones occur
            scale[1] = 0
            scale[2] = 3e-6  # subnormal in f16
            data[:, at:at + 2] = scale.view(np.uint8).reshape(-1, 2)
        data = data.reshape(rows, per_row * size)
        values = np.array(gguf.quants.dequantize(data, kind), dtype=np.float32)
        assert values.shape == (rows, per_row * block) and np.isfinite(values).all()
        w.add_tensor(name, data, raw_dtype=kind)
        expected[name] = values
    finish(w)
    save_file(expected, os.path.join(OUT, "quants.safetensors"))


if __name__ == "__main__":
    write_plain("qwen2", False)
    write_plain("qwen3", True)
    write_qwen35()
    write_quants()
    for name in ("qwen2.gguf", "qwen3.gguf", "qwen35.gguf", "quants.gguf", "quants.safetensors"):
        path = os.path.join(OUT, name)
        if path.endswith(".gguf"):
            kinds = {}
            for tensor in gguf.GGUFReader(path).tensors:
                kinds[tensor.tensor_type.name] = kinds.get(tensor.tensor_type.name, 0) + 1
            print(name, kinds)
        print(f"{os.path.getsize(path):8d} {path}")
