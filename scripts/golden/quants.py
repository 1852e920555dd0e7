"""GGUF block types with random block bytes, and the values that the gguf package gives them.

    python scripts/golden/quants.py testdata        (gguf, numpy, torch, safetensors)

Writes quants_random.gguf and quants_random.safetensors. Every bit pattern of the packed integers occurs; the f16 scales go from the
smallest subnormal to the largest finite number, with both signs and zeros, and are never infinite or NaN.
"""
import os
import sys

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

OUT = sys.argv[1] if len(sys.argv) > 1 else "testdata"

# Where the f16 scales of a block lie.
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
EXTREMES = np.array([0.0, -0.0, 6e-8, -6e-8, 6.1e-5, 1.0, -1.0, 65504.0, -65504.0], dtype=np.float16)


def random_blocks(rng, kind, rows, row_blocks):
    size, width = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    blocks = rng.integers(0, 256, (rows * row_blocks, width), dtype=np.uint8)
    for at in SCALES[kind]:
        scale = (rng.standard_normal(len(blocks)) * np.exp(3 * rng.standard_normal(len(blocks)))).astype(np.float16)
        extreme = rng.random(len(blocks)) < 0.3
        scale[extreme] = rng.choice(EXTREMES, extreme.sum())
        blocks[:, at:at + 2] = scale.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(rows, row_blocks * width), row_blocks * size


def main():
    rng = np.random.default_rng(11)
    writer = gguf.GGUFWriter(os.path.join(OUT, "quants_random.gguf"), "llama")
    expected = {}
    for kind in SCALES:
        small = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][0] == 32
        data, row = random_blocks(rng, kind, 5 if small else 3, 7 if small else 2)
        kind_id = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(kind, data, raw_dtype=kind_id)
        values = np.array(gguf.quants.dequantize(data, kind_id), dtype=np.float32)
        assert values.shape == (len(data), row) and np.isfinite(values).all()
        expected[kind] = torch.from_numpy(values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file(expected, os.path.join(OUT, "quants_random.safetensors"))
    os.chmod(os.path.join(OUT, "quants_random.safetensors"), 0o644)
    for name in ["quants_random.gguf", "quants_random.safetensors"]:
        print(os.path.getsize(os.path.join(OUT, name)), name)


if __name__ == "__main__":
    main()
