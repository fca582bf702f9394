"""empty: the allocation primitive. Implemented and tested like the others; it cannot be registered."""

from __future__ import annotations

import torch

from opgraft.a1 import NotDifferentiable, Operator, Override
from opgraft.kernels.geometry import allocatable, row_major
from opgraft.ops.empty.kernel import torch_level, triton_level


def unsupported(size, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None) -> str | None:
    """Other layouts, pinned memory, and what native refuses."""
    if layout not in (None, torch.strided) or pin_memory:
        return f"layout {layout}, pinned {pin_memory}"
    if memory_format is torch.preserve_format or not allocatable(size, row_major(size), dtype or torch.get_default_dtype()):
        return "what native refuses"
    return None


OPERATOR = Operator(
    "empty",
    overrides=(
        Override(
            "aten::empty.memory_format(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, "
            "bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
            kernels={"torch": torch_level.empty, "triton": triton_level.empty},
            unsupported=unsupported,
            gradient=NotDifferentiable,
        ),
    ),
    refusal="empty is the allocation primitive: every implementation of it, and of the operators it would be built from, "
    "allocates by calling it, so an override would recurse",
)
register_a1 = OPERATOR.register_a1


def empty_aten(
    size, *, dtype: torch.dtype | None = None, device=None, memory_format: torch.memory_format | None = None
) -> torch.Tensor:
    """An uninitialised tensor, without the dispatcher's ``empty``.

    Args:
        size: sizes.
        dtype: None means the default dtype.
        device: None means the CPU.
        memory_format: None means contiguous.

    Raises:
        RuntimeError: sizes, or a memory format for this rank, that native refuses (with native's message).
    """
    device = torch.device(device or "cpu")
    if unsupported(size, dtype=dtype, memory_format=memory_format) is not None:
        return torch.empty(size, dtype=dtype, device=device, memory_format=memory_format)
    return torch_level.empty(size, dtype=dtype, device=device, memory_format=memory_format)
