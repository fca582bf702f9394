"""The meaning of detach_: the same tensor, its values untouched, without history."""

from __future__ import annotations

import torch


def detach_(self: torch.Tensor) -> torch.Tensor:
    """The values are the input's."""
    return self.detach()
