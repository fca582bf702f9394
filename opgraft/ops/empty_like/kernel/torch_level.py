"""empty_like: the strides native gives, and memory from empty_strided."""

from __future__ import annotations

import torch

from opgraft.kernels.geometry import like_strides


def empty_like(
    self: torch.Tensor, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None
) -> torch.Tensor:
    """An uninitialised tensor of ``self``'s size, with its dtype, device and memory format where none is given."""
    strides = like_strides(self, memory_format or torch.preserve_format)
    return torch.empty_strided(
        self.shape, strides, dtype=dtype or self.dtype, device=device if device is not None else self.device
    )
