"""The meaning of result_type: the dtype that an addition of the two gives."""

from __future__ import annotations

import torch


def result_type(tensor, other) -> torch.dtype:
    """By adding them (by ``or`` if both are bool, whose sum is bool too)."""
    if not isinstance(tensor, torch.Tensor) and not isinstance(other, torch.Tensor):
        return torch.result_type(tensor, other)
    return torch.add(tensor, other).dtype
