"""The meaning of type_as: each element converted to the other tensor's dtype, as PyTorch converts."""

from __future__ import annotations

import torch


def type_as(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """``self.to(dtype)``: itself if nothing changes."""
    return self.to(other.dtype)
