"""empty_strided: what it replaces, with what, and which calls it takes."""

from __future__ import annotations

import torch

from opgraft.a1 import NotDifferentiable, Operator, Override
from opgraft.kernels.geometry import allocatable
from opgraft.ops.empty_strided.kernel import torch_level, triton_level


def unsupported(size, stride, dtype, layout, pin_memory) -> str | None:
    """What native refuses, or gives in another layout or in pinned memory, native answers."""
    if layout not in (None, torch.strided):
        return f"layout {layout}"
    if pin_memory:
        return "pinned memory"
    if not allocatable(size, stride, dtype or torch.get_default_dtype()):
        return "sizes and strides that native refuses"
    return None


OPERATOR = Operator(
    "empty_strided",
    overrides=(
        Override(
            "aten::empty_strided(SymInt[] size, SymInt[] stride, *, ScalarType? dtype=None, Layout? layout=None, "
            "Device? device=None, bool? pin_memory=None) -> Tensor",
            kernels={"torch": torch_level.empty_strided, "triton": triton_level.empty_strided},
            unsupported=unsupported,
            gradient=NotDifferentiable,
        ),
    ),
)
register_a1 = OPERATOR.register_a1


def empty_strided_aten(size, stride, *, dtype: torch.dtype | None = None, device=None) -> torch.Tensor:
    """Run the kernel directly, without the dispatcher.

    Args:
        size: sizes.
        stride: strides in elements, as many as sizes; 0 is allowed.
        dtype: None means the default dtype.
        device: None means the CPU.

    Returns:
        An uninitialised tensor in a storage that just holds it.
    """
    return torch_level.empty_strided(size, stride, dtype=dtype, device=torch.device(device or "cpu"))
