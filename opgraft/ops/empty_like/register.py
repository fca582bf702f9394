"""empty_like: what it replaces, with what, and which calls it takes."""

from __future__ import annotations

import torch

from opgraft.a1 import NotDifferentiable, Operator, Override
from opgraft.ops.empty_like.kernel import torch_level, triton_level


def unsupported(self: torch.Tensor, layout, device, pin_memory) -> str | None:
    """Other devices, layouts and pinned memory are native's, and so is what it refuses."""
    if device is not None and torch.device(device).type != self.device.type:
        return f"on another device ({torch.device(device).type})"
    if self.layout is not torch.strided or layout not in (None, torch.strided) or self.is_quantized:
        return f"layout {layout or self.layout}, quantized {self.is_quantized}"
    if pin_memory:
        return "pinned memory"
    return None


OPERATOR = Operator(
    "empty_like",
    overrides=(
        Override(
            "aten::empty_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, "
            "bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
            kernels={"torch": torch_level.empty_like, "triton": triton_level.empty_like},
            unsupported=unsupported,
            gradient=NotDifferentiable,
        ),
    ),
)
register_a1 = OPERATOR.register_a1


def empty_like_aten(
    x: torch.Tensor, *, dtype: torch.dtype | None = None, memory_format: torch.memory_format | None = None
) -> torch.Tensor:
    """Run the kernel directly, without the dispatcher.

    Args:
        x: gives size, device and, where they are None, dtype and memory format.
        dtype: another dtype.
        memory_format: None preserves.

    Returns:
        An uninitialised tensor.
    """
    return OPERATOR.call(x, dtype=dtype, memory_format=memory_format)
