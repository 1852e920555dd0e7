"""Golden sequence of AdamW and global-norm clipping, from PyTorch.

Writes testdata/adamw.safetensors: start values, the gradients of every step, and the parameters after every step.
Run from the repository's root: python scripts/golden/adamw.py
"""

import torch
from safetensors.torch import save_file

LR, BETAS, EPS, DECAY, CLIP, STEPS = 3e-2, (0.9, 0.95), 1e-8, 0.1, 1.0, 12

torch.manual_seed(20)
matrix = torch.nn.Parameter(torch.randn(5, 7))
vector = torch.nn.Parameter(1 + 0.1 * torch.randn(6))
# As in the trainer: decay for matrices only.
optimizer = torch.optim.AdamW(
    [{"params": [matrix], "weight_decay": DECAY}, {"params": [vector], "weight_decay": 0.0}], lr=LR, betas=BETAS, eps=EPS, foreach=False
)
out = {"matrix.start": matrix.detach().clone(), "vector.start": vector.detach().clone()}
norms = []
for step in range(STEPS):
    # Steps below and above the clipping norm.
    scale = 0.02 if step % 3 == 0 else 0.7
    matrix.grad = scale * torch.randn_like(matrix)
    vector.grad = scale * torch.randn_like(vector)
    out[f"matrix.gradient.{step}"] = matrix.grad.clone()
    out[f"vector.gradient.{step}"] = vector.grad.clone()
    norms.append(torch.nn.utils.clip_grad_norm_([matrix, vector], CLIP))
    # The learning rate moves, as under a schedule.
    for group in optimizer.param_groups:
        group["lr"] = LR / (1 + step)
    optimizer.step()
    out[f"matrix.after.{step}"] = matrix.detach().clone()
    out[f"vector.after.{step}"] = vector.detach().clone()
out["norms"] = torch.stack(norms)
save_file(out, "testdata/adamw.safetensors")
