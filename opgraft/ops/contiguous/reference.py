"""The meaning of contiguous: the same values in row-major order (or the memory format's), the same tensor if they are."""

from __future__ import annotations

import torch


def contiguous(self: torch.Tensor, *, memory_format: torch.memory_format = torch.contiguous_format) -> torch.Tensor:
    """There is no arithmetic, so nothing to compute in fp32: an assignment into a new tensor."""
    if self.is_contiguous(memory_format=memory_format):
        return self
    out = torch.empty_like(self, memory_format=memory_format)
    out[...] = self
    return out
