"""copy_: what it replaces, with which kernels, and which inputs it takes."""

from __future__ import annotations

import torch

from opgraft.a1 import Formula, Operator, Override
from opgraft.kernels import copy_engine
from opgraft.ops.copy_.kernel import torch_level, triton_level
from opgraft.routing import Features


def unsupported(self: torch.Tensor, src: torch.Tensor) -> str | None:
    """The kernels copy within one device, between tensors that do not overlap. What native refuses, native answers."""
    if self.device != src.device:
        return copy_engine.between_devices(self, src)
    if self.is_conj() or self.is_neg():
        return "conj or neg bit set on the destination"
    if not copy_engine.broadcasts(src.shape, self.shape):
        return "shapes do not broadcast, which native refuses"
    if self.layout is not torch.strided or self.is_quantized:
        return f"destination of layout {self.layout}, quantized {self.is_quantized}"
    if copy_engine.overlaps_itself(self):
        return "destination overlaps itself, which native refuses"
    if copy_engine.may_overlap(self, src):
        return "source and destination share memory"
    if self.dim() > copy_engine.MAX_RANK:
        return f"rank over {copy_engine.MAX_RANK}"
    return copy_engine.unsupported(self.dtype, src)


def features(self: torch.Tensor, src: torch.Tensor) -> Features:
    """The copy engine's."""
    return copy_engine.features(self.dtype, src, self.shape, self.stride())


OPERATOR = Operator(
    "copy_",
    overrides=(
        Override(
            "aten::copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)",
            kernels={"torch": torch_level.copy_, "triton": triton_level.copy_},
            unsupported=unsupported,
            features=features,
            gradient=Formula,  # CopyBackwards; the leaf guard and the version counter are autograd's too
        ),
    ),
)
register_a1 = OPERATOR.register_a1


def copy__aten(x: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Run the kernel of ``x``'s platform directly, without the dispatcher; returns ``x``. No gradient is recorded.

    Args:
        x: the destination; any strides, no two elements in one place.
        src: any dtype, any strides, of a shape that broadcasts to ``x``'s.
        non_blocking: passed on where native answers.
    """
    return OPERATOR.call(x, src, non_blocking)
