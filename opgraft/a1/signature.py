"""What a decision about a call depends on of its tensors, as a dictionary key that is cheap to make."""

from __future__ import annotations

from collections.abc import Hashable

import torch

_keys = torch._C._dispatch_keys
_is_alias_of = torch._C._is_alias_of  # type: ignore[attr-defined]


def geometry(tensor: torch.Tensor) -> Hashable:
    """dtype, shape, strides, device index and dispatch keys (which hold the layout, conj and neg bits, and quantization).

    Raises:
        RuntimeError: the tensor has no strides (sparse, nested).
    """
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.get_device(), _keys(tensor).raw_repr()


def of_one(self: torch.Tensor, **keywords) -> Hashable:
    """The signature of a call with one tensor: clone, contiguous."""
    return (geometry(self), *keywords.values())


def of_two(self: torch.Tensor, other: torch.Tensor, non_blocking: bool = False) -> Hashable:
    """The signature of a call with two tensors that share no storage, None if they do: copy_, type_as."""
    return None if _is_alias_of(self, other) else (geometry(self), geometry(other))
