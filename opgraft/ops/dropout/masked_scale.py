"""``opgraft::masked_scale``: the arithmetic of dropout as an operator of ours, with its derivative.

The mask is a function of a seed and an element's row-major index, so the backward computes it again and nothing is
stored but the seed.
"""

from __future__ import annotations

import torch

from opgraft import platforms
from opgraft.a1 import Composite, Gradient, define
from opgraft.kernels.philox import draw_seed
from opgraft.ops.dropout.kernel import torch_level, triton_level

KERNELS = {"torch": torch_level.masked_scale, "triton": triton_level.masked_scale}


def _kernel(x: torch.Tensor, seed: torch.Tensor, p: float) -> torch.Tensor:
    profile = platforms.profile_for_device(x.device.type)
    return KERNELS[profile.kernel_level](x, seed, p)


class SameMask(Gradient):
    """The derivative of a masked scale is the same masked scale, of every order."""

    @staticmethod
    def save(ctx, seed: torch.Tensor, p: float) -> None:  # type: ignore[override]
        """Keep the seed (one int64) and the probability."""
        ctx.save_for_backward(seed)
        ctx.p = p

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple:
        """(gradient of x, none for seed and p)."""
        return masked_scale(grad, ctx.saved_tensors[0], ctx.p), None, None


masked_scale = define(
    "masked_scale(Tensor x, Tensor seed, float p) -> Tensor", _kernel, lambda x, seed, p: torch.empty_like(x), SameMask
)


class NewTensor(Composite):
    """dropout with a gradient to keep."""

    @staticmethod
    def forward(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        """A masked scale under a fresh seed."""
        return masked_scale(input, draw_seed(input.device), p)


class InPlace(Composite):
    """dropout_ with a gradient to keep."""

    @staticmethod
    def forward(self: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        """The same, written back by copy_, whose derivative is autograd's."""
        return self.copy_(masked_scale(self, draw_seed(self.device), p))
