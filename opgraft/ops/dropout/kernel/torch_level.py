"""dropout in plain PyTorch: the same random bits as the Triton kernel, computed with integer tensors."""

from __future__ import annotations

import torch

from opgraft.kernels import new_like
from opgraft.kernels.philox import draw_seed, keeps


def masked_scale(x: torch.Tensor, seed: torch.Tensor, p: float, out: torch.Tensor | None = None) -> torch.Tensor:
    """``x`` times 1/(1-p) or 0, under the same mask as the Triton level's; arguments as there."""
    out = new_like(x) if out is None else out
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    keep = keeps(seed, x.numel(), p).reshape(x.shape)
    return out.copy_(x.to(wide) * keep.to(wide).mul_(1 / (1 - p)))


def dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """Dropout of a new tensor, with a seed drawn from the device's default generator."""
    return masked_scale(input, draw_seed(input.device), p)


def dropout_(self: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """Dropout in place."""
    masked_scale(self, draw_seed(self.device), p, out=self)
    return self
