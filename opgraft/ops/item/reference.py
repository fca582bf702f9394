"""The meaning of item: the one element as a Python number; any other count of elements is an error."""

from __future__ import annotations

import torch


def item(self: torch.Tensor) -> bool | int | float | complex:
    """Through a list, as Python sees the tensor. Raises RuntimeError unless there is one element."""
    if self.numel() != 1:
        raise RuntimeError(f"a Tensor with {self.numel()} elements cannot be converted to Scalar")
    return self.reshape(1).tolist()[0]
