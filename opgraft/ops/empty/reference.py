"""The meaning of empty: a size, contiguous in a memory format, in a storage that just holds it; no values."""

from __future__ import annotations

import torch


def empty(size, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None) -> torch.Tensor:
    """Zeros of that size in that format: what they hold is not part of the meaning."""
    return torch.zeros(size, dtype=dtype).contiguous(memory_format=memory_format or torch.contiguous_format)
