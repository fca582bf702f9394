"""What a decision about a call depends on of its tensors, as a dictionary key that is cheap to make."""

from __future__ import annotations

from collections.abc import Hashable

import torch

_is_alias_of = torch._C._is_alias_of  # type: ignore[attr-defined]


def geometry(tensor: torch.Tensor) -> Hashable:
    """dtype (which tells quantized tensors), shape, strides, device, conj and neg bits, and whether it has no memory (a zero
    tensor). Where an override is called, tensors that have strides are of the strided layout.

    Raises:
        RuntimeError: the tensor has no strides (sparse, nested, mkldnn).
    """
    return (
        tensor.dtype,
        tensor.shape,
        tensor.stride(),
        tensor.device,
        tensor.is_conj(),
        tensor.is_neg(),
        tensor._is_zerotensor(),
    )


def of_call(*args, **keywords) -> Hashable:
    """The signature of a call whose decision depends on its tensors' geometry and its other arguments: dropout, embedding."""
    return (*[geometry(a) if isinstance(a, torch.Tensor) else a for a in args], *keywords.items())


def of_one(self: torch.Tensor, **keywords) -> Hashable:
    """:func:`of_call` for a call with one tensor, a third faster: clone and contiguous of small tensors are host time alone."""
    return geometry(self), *keywords.values()


def of_two(self: torch.Tensor, other: torch.Tensor, non_blocking: bool = False) -> Hashable:
    """The signature of a call with two tensors that share no storage, None if they do: copy_, type_as."""
    return None if _is_alias_of(self, other) else (geometry(self), geometry(other))
