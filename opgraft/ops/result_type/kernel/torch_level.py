"""Type promotion as PyTorch documents it ("torch.result_type", "Tensor Attributes"): three tiers of operands.

Tensors with dimensions come first, then 0-dim tensors, then Python numbers (which count with the default dtype of their
category). A lower tier only matters if its category (bool, integer, floating-point, complex) is higher.
"""

from __future__ import annotations

import torch

Operand = torch.Tensor | bool | int | float | complex


def _tier_and_dtype(operand: Operand) -> tuple[int, torch.dtype]:
    if isinstance(operand, torch.Tensor):
        return (0 if operand.dim() else 1), operand.dtype
    if isinstance(operand, bool):
        return 2, torch.bool
    if isinstance(operand, int):
        return 2, torch.int64
    default = torch.get_default_dtype()
    return 2, default if isinstance(operand, float) else default.to_complex()


def _combine(higher: torch.dtype, lower: torch.dtype) -> torch.dtype:
    """The dtype of a tier with the one below it."""
    if higher.is_complex:
        return higher
    if higher.is_floating_point:
        return higher.to_complex() if lower.is_complex else higher  # the precision of the higher tier
    if higher is torch.bool or lower.is_floating_point or lower.is_complex:
        return torch.promote_types(higher, lower)
    return higher


def result_type(tensor: Operand, other: Operand) -> torch.dtype:
    """The dtype of an operation that mixes the two."""
    (tier, dtype), (other_tier, other_dtype) = _tier_and_dtype(tensor), _tier_and_dtype(other)
    if tier == other_tier:
        return torch.promote_types(dtype, other_dtype)
    return _combine(dtype, other_dtype) if tier < other_tier else _combine(other_dtype, dtype)
