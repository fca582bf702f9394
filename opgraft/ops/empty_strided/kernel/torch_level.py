"""empty_strided from the allocation primitive: a dense run of the right length, with the geometry set on it."""

from __future__ import annotations

import torch

from opgraft.kernels.geometry import span


def empty_strided(size, stride, *, dtype=None, layout=None, device=None, pin_memory=None) -> torch.Tensor:
    """An uninitialised tensor with these sizes and strides (in elements), in a storage that just holds it."""
    # Below the key that tracks views: the result owns its memory and is nobody's view.
    with torch._C._AutoDispatchBelowADInplaceOrView():
        return torch.empty((span(size, stride),), dtype=dtype, device=device).as_strided(size, stride)
