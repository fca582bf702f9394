"""The meaning of detach: the same storage, sizes, strides and offset; no history, no gradient asked for."""

from __future__ import annotations

import torch


def detach(self: torch.Tensor) -> torch.Tensor:
    """A new tensor set onto the storage."""
    return torch.empty(0, dtype=self.dtype).set_(self.untyped_storage(), self.storage_offset(), self.shape, self.stride())
