"""The element copied to the host, in its own dtype, and read there."""

from __future__ import annotations

import torch


def local_scalar_dense(self: torch.Tensor) -> bool | int | float | complex:
    """The value of the one element; lazy conj and neg bits are resolved by the copy."""
    return torch.empty((), dtype=self.dtype, device="cpu").copy_(self.reshape(())).item()
