"""empty_like: the strides native gives, and memory from empty_strided."""

from __future__ import annotations

import torch

from opgraft.kernels import Output, Steps, prepared
from opgraft.kernels.geometry import indexed, like_strides


@prepared
def empty_like(self: torch.Tensor, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    """An uninitialised tensor of ``self``'s size, with its dtype, device and memory format where none is given."""
    where = self.device if device is None else indexed(device)
    strides = like_strides(self, memory_format or torch.preserve_format)
    return Steps(where, (Output(tuple(self.shape), strides, dtype or self.dtype, where),))
