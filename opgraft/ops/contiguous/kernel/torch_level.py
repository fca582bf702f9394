"""contiguous in plain PyTorch: an empty tensor in the format, filled by the platform's own copy_."""

from __future__ import annotations

import torch

from opgraft.kernels import new_like


def contiguous(self: torch.Tensor, *, memory_format: torch.memory_format = torch.contiguous_format) -> torch.Tensor:
    """``self`` if it lies in the format already, else a copy that does."""
    if self.is_contiguous(memory_format=memory_format):
        return self
    return new_like(self, memory_format).copy_(self)
