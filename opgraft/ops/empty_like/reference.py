"""The meaning of empty_like: another tensor's size, dtype and strides; no values.

Preserved strides: those of a dense tensor without overlap as they are; else dense strides in the same order of dimensions.
"""

from __future__ import annotations

import torch


def empty_like(self: torch.Tensor, *, dtype=None, memory_format=None) -> torch.Tensor:
    """A conversion of the tensor, whose values are not part of the meaning."""
    if dtype in (None, self.dtype):
        return self.clone(memory_format=memory_format or torch.preserve_format)
    return self.to(dtype, memory_format=memory_format or torch.preserve_format)
