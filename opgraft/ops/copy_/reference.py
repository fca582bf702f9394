"""The meaning of copy_: each element of the destination becomes the converted element of the broadcast source."""

from __future__ import annotations

import torch


def copy_(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Through ``.to(dtype)``, which is PyTorch's conversion between dtypes, and an assignment."""
    self[...] = src.to(self.dtype)
    return self
