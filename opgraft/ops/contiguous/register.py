"""contiguous: what it replaces, with which kernels, its gradient, and which inputs it takes."""

from __future__ import annotations

import torch

from opgraft.a1 import Gradient, Operator, Override
from opgraft.kernels import copy_engine
from opgraft.kernels.geometry import like_strides
from opgraft.ops.contiguous.kernel import torch_level, triton_level
from opgraft.routing import Features


def unsupported(self: torch.Tensor, memory_format: torch.memory_format) -> str | None:
    """The kernels copy; where native returns the tensor itself, or refuses, native answers."""
    if memory_format is torch.preserve_format:
        return "preserve_format, which native refuses"
    if self.is_contiguous(memory_format=memory_format):
        return "contiguous already: the tensor itself is returned"
    return copy_engine.unsupported(self.dtype, self)


class Identity(Gradient):
    """The values are the input's, so the gradient passes through."""

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple:
        """(gradient of self,)."""
        return (grad,)


def features(self: torch.Tensor, memory_format: torch.memory_format) -> Features:
    """The copy engine's."""
    return copy_engine.features(self.dtype, self, self.shape, like_strides(self, memory_format))


OPERATOR = Operator(
    "contiguous",
    overrides=(
        Override(
            "aten::contiguous(Tensor(a) self, *, MemoryFormat memory_format=contiguous_format) -> Tensor(a)",
            kernels={"torch": torch_level.contiguous, "triton": triton_level.contiguous},
            unsupported=unsupported,
            features=features,
            routes="copy_",
            gradient=Identity,
        ),
    ),
)
register_a1 = OPERATOR.register_a1


def contiguous_aten(x: torch.Tensor, *, memory_format: torch.memory_format = torch.contiguous_format) -> torch.Tensor:
    """Run the kernel of ``x``'s platform directly: ``x`` itself if it lies in the format already, else a copy without a gradient.

    Args:
        x: any shape, strides and dtype.
        memory_format: as in ``Tensor.contiguous``.
    """
    return OPERATOR.call(x, memory_format=memory_format)
