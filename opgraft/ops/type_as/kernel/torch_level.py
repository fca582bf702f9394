"""type_as in plain PyTorch: an empty tensor of the dtype, filled by the platform's own copy_."""

from __future__ import annotations

import torch

from opgraft.kernels import new_like


def type_as(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """``self`` in the dtype of ``other``; itself if it is of that dtype."""
    if self.dtype == other.dtype:
        return self
    return new_like(self, dtype=other.dtype).copy_(self)
