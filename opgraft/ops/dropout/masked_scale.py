"""``opgraft::masked_scale``: the arithmetic of dropout as an operator of ours, with its derivative.

The mask is a function of a seed and an element's row-major index, so the backward computes it again and nothing is
stored but the seed.
"""

from __future__ import annotations

import torch

from opgraft import platforms
from opgraft.a1 import Gradient, define
from opgraft.ops.dropout.kernel import torch_level, triton_level

KERNELS = {"torch": torch_level.masked_scale, "triton": triton_level.masked_scale}


def _kernel(x: torch.Tensor, seed: torch.Tensor, p: float) -> torch.Tensor:
    profile = platforms.profile_for_device(x.device.type)
    return KERNELS[profile.kernel_level](x, seed, p)


class SameMask(Gradient):
    """The derivative of a masked scale is the same masked scale, of every order."""

    @staticmethod
    def save(ctx, inputs: tuple, keywords: dict, output: torch.Tensor) -> None:
        """Keep the seed (one int64) and the probability."""
        ctx.save_for_backward(inputs[1])
        ctx.p = inputs[2]

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple:
        """(gradient of x, none for seed and p)."""
        return masked_scale(grad, ctx.saved_tensors[0], ctx.p), None, None


masked_scale = define(
    "masked_scale(Tensor x, Tensor seed, float p) -> Tensor", _kernel, lambda x, seed, p: torch.empty_like(x), SameMask
)
