"""type_as's derivative."""

from __future__ import annotations

import torch

from opgraft.a1 import Gradient


class CastBack(Gradient):
    """The gradient is cast back to the input's dtype."""

    @staticmethod
    def save(ctx, self: torch.Tensor) -> None:  # type: ignore[override]
        """Keep the input's dtype."""
        ctx.dtype = self.dtype

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple:
        """(gradient of self, none for other)."""
        return grad.to(ctx.dtype), None
