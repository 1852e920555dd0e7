"""Checkpoints as torch.save writes them, and the values that are in them.

    python scripts/golden/torch_checkpoints.py testdata        (torch 2.13, safetensors)

Writes testdata/torch/
  views.pt           an OrderedDict with `_metadata`: every float type, transposed, sliced, permuted and tied tensors
  views_4.pt         the same in pickle protocol 4
  views.safetensors  its float tensors in f32
  training.pt        {model, optimizer, epoch, ...} of a wrapped drafter: the weights of drafter_full under the names that
                     compilation, data parallelism and sharding leave behind
  pytorch_model-0000{1,2}-of-00002.bin and pytorch_model.bin.index.json   views.pt in two files
  legacy.pt          the format before torch 1.6
  compressed.pt      an archive that somebody packed again
  evil.pt            a pickle that would run a command; namespace.pt: one that needs a class
"""
import argparse
import collections
import json
import os
import sys
import zipfile

import torch
from safetensors.torch import load_file, save_file

OUT = sys.argv[1] if len(sys.argv) > 1 else "testdata"
HERE = os.path.join(OUT, "torch")


def views():
    g = torch.Generator().manual_seed(5)

    def random(*shape):
        return torch.randn(*shape, generator=g)

    wide = random(6, 7)
    tied = random(5, 3)
    special = torch.tensor([0.0, -0.0, 1.0, -2.5, 65504.0, 1e-7, float("inf"), 3.140625])
    state = collections.OrderedDict(
        f32=random(3, 4), f16=special.half(), bf16=random(4, 2).bfloat16(), f64=random(5).double() * 1e3,
        parameter=torch.nn.Parameter(random(2, 3)), frozen=torch.nn.Parameter(random(4), requires_grad=False),
        transposed=wide.t(), rows=wide[1:4], columns=wide[:, 2:5], steps=wide[::2, ::3], last=wide[5],
        permuted=random(2, 3, 4).permute(2, 0, 1), half_transposed=random(3, 5).half().t(),
        tied_a=tied, tied_b=tied, tied_view=tied[1:, :2], scalar=torch.tensor(1.5), empty=torch.zeros(0, 4),
        one=wide[3:4, 2:3], unit=random(4, 1, 5).transpose(0, 1),
    )
    state["layers.0.weight"] = random(2, 2)
    state["ids"] = torch.arange(6).reshape(2, 3)
    state["mask"] = torch.tensor([True, False])
    state["f8"] = random(3).to(torch.float8_e4m3fn)
    state["u16"] = torch.tensor([1, 2, 3], dtype=torch.uint16)
    state._metadata = collections.OrderedDict({"": {"version": 1}})
    return state


def training(drafter):
    names = list(drafter)
    model = collections.OrderedDict()
    for i, name in enumerate(names):
        if name.startswith("layers."):
            _, layer, rest = name.split(".", 2)
            name = f"layers.{layer}._fsdp_wrapped_module._checkpoint_wrapped_module.{rest}"
        model[f"module._orig_mod.draft_model.{name}"] = torch.nn.Parameter(drafter[names[i]])
    weights = [torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.ones(3))]
    optimizer = torch.optim.AdamW(weights, lr=1e-3)
    sum((w * w).sum() for w in weights).backward()
    optimizer.step()
    return {
        "epoch": 3, "global_step": 2**40, "loss": 0.25, "best": None, "done": False, "model": model,
        "optimizer": optimizer.state_dict(), "rng_state": torch.get_rng_state(),
        "config": {"lr": 6e-4, "layers": [1, 2, 3], "name": "drafter", "dtype": torch.bfloat16, "shape": torch.Size([2, 3]),
                   "device": torch.device("cpu"), "tags": {"a", "b"}, "big": 2**100},
    }


class Evil:
    def __reduce__(self):
        return os.system, ("touch /tmp/a_pickle_ran_this",)


def save(value, name, **options):
    path = os.path.join(HERE, name)
    torch.save(value, path, **options)
    os.chmod(path, 0o644)


def main():
    os.makedirs(HERE, exist_ok=True)
    state = views()
    save(state, "views.pt")
    save(state, "views_4.pt", pickle_protocol=4)
    floats = {k: v.detach().to(torch.float32).contiguous().clone() for k, v in state.items()
              if v.dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64)}
    save_file(floats, os.path.join(HERE, "views.safetensors"))
    os.chmod(os.path.join(HERE, "views.safetensors"), 0o644)
    keys = list(state)
    weight_map = {}
    for i, part in enumerate([keys[:10], keys[10:]]):
        name = f"pytorch_model-{i + 1:05}-of-00002.bin"
        save({k: state[k] for k in part}, name)
        weight_map |= {k: name for k in part}
    with open(os.path.join(HERE, "pytorch_model.bin.index.json"), "w") as f:
        json.dump({"metadata": {}, "weight_map": weight_map}, f, indent=1)
    save(training(load_file(os.path.join(OUT, "drafter_full/model.safetensors"))), "training.pt")
    save({"a": torch.ones(3)}, "legacy.pt", _use_new_zipfile_serialization=False)
    save({"a": torch.ones(3), "b": Evil()}, "evil.pt")
    save({"a": torch.ones(3), "args": argparse.Namespace(lr=1)}, "namespace.pt")
    source = zipfile.ZipFile(os.path.join(HERE, "namespace.pt"))
    with zipfile.ZipFile(os.path.join(HERE, "compressed.pt"), "w", zipfile.ZIP_DEFLATED) as packed:
        for name in source.namelist():
            packed.writestr(zipfile.ZipInfo(name), source.read(name), zipfile.ZIP_DEFLATED)
    for name in sorted(os.listdir(HERE)):
        print(f"{os.path.getsize(os.path.join(HERE, name)):8d} {name}")


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
