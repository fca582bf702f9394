"""empty through empty_strided: the memory format decides the strides."""

from __future__ import annotations

import torch

from opgraft.kernels.geometry import row_major


def empty(size, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None) -> torch.Tensor:
    """An uninitialised tensor of this size, contiguous in the memory format."""
    if memory_format in (None, torch.contiguous_format):
        strides = row_major(size)
    else:
        strides = torch.empty(size, memory_format=memory_format, device="meta").stride()
    return torch.empty_strided(size, strides, dtype=dtype, device=device)
