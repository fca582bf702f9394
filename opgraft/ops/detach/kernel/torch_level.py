"""detach below autograd: an alias over the same storage; autograd does the rest above it."""

from __future__ import annotations

import torch


def detach(self: torch.Tensor) -> torch.Tensor:
    """A tensor with ``self``'s storage, sizes, strides and offset."""
    return torch.ops.aten.alias.default(self)
