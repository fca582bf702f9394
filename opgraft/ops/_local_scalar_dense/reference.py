"""The meaning of _local_scalar_dense: the one element as a Python number."""

from __future__ import annotations

import torch


def local_scalar_dense(self: torch.Tensor) -> bool | int | float | complex:
    """Through a list, as Python sees the tensor."""
    value = self.reshape(1).tolist()
    return value[0]
