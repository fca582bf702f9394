"""The meaning of clone: the same values, in memory of its own, with the strides the memory format asks for."""

from __future__ import annotations

import torch


def clone(self: torch.Tensor, *, memory_format: torch.memory_format | None = None) -> torch.Tensor:
    """There is no arithmetic, so nothing to compute in fp32: an assignment into a new tensor."""
    out = torch.empty_like(self, memory_format=memory_format or torch.preserve_format)
    out[...] = self
    return out
