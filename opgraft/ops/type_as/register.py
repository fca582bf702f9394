"""type_as: what it replaces, with which kernels, its gradient, and which inputs it takes."""

from __future__ import annotations

import torch

from opgraft.a1 import Operator, Override
from opgraft.kernels import copy_engine
from opgraft.kernels.geometry import like_strides
from opgraft.ops.type_as.gradient import CastBack
from opgraft.ops.type_as.kernel import torch_level, triton_level
from opgraft.routing import Features


def unsupported(self: torch.Tensor, other: torch.Tensor) -> str | None:
    """The kernels cast within one device; where native returns the tensor itself, native answers."""
    if self.device != other.device:
        return copy_engine.between_devices(self, other)
    if self.dtype == other.dtype:
        return "of that dtype already: the tensor itself is returned"
    if other.layout is not torch.strided or other.is_quantized:
        return f"to layout {other.layout}, quantized {other.is_quantized}"
    return copy_engine.unsupported(other.dtype, self)


def features(self: torch.Tensor, other: torch.Tensor) -> Features:
    """The copy engine's."""
    return copy_engine.features(other.dtype, self, self.shape, like_strides(self, torch.preserve_format))


OPERATOR = Operator(
    "type_as",
    overrides=(
        Override(
            "aten::type_as(Tensor self, Tensor other) -> Tensor",
            kernels={"torch": torch_level.type_as, "triton": triton_level.type_as},
            unsupported=unsupported,
            features=features,
            routes="copy_",
            gradient=CastBack,
        ),
    ),
)
register_a1 = OPERATOR.register_a1


def type_as_aten(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Run the kernel of ``x``'s platform directly, without the dispatcher.

    Args:
        x: any shape, strides and dtype.
        other: gives the dtype (and device).

    Returns:
        ``x`` itself if nothing changes, else a tensor of ``other``'s dtype. No gradient is recorded.
    """
    return OPERATOR.call(x, other)
