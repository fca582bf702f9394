"""The meaning of empty_strided: sizes, strides and a storage of 1 + Σ (size-1)·stride elements; no values."""

from __future__ import annotations

import torch


def empty_strided(size, stride, *, dtype=None, layout=None, device=None, pin_memory=None) -> torch.Tensor:
    """A view over a storage of that length, detached from it."""
    length = 0 if 0 in size else 1 + sum((n - 1) * s for n, s in zip(size, stride))
    storage = torch.zeros(length, dtype=dtype).untyped_storage()
    return torch.empty(0, dtype=dtype).set_(storage, 0, size, stride)
