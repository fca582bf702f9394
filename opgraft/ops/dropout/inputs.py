"""Which inputs dropout's kernels take, and what its routing table knows of a call."""

from __future__ import annotations

import torch

from opgraft.kernels import copy_engine
from opgraft.routing import Features

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def unsupported(input: torch.Tensor, p: float, train: bool) -> str | None:
    """The kernels take 0 < p < 1 in training; elsewhere native returns the input, zeros, or an error."""
    if not 0 <= p <= 1:
        return "p outside [0, 1], which native refuses"
    if not train or p == 0 or input.numel() == 0:
        return "nothing is dropped: the input itself is returned"
    if p == 1:
        return "everything is dropped"
    if input.dtype not in DTYPES:
        return f"dtype {input.dtype}"
    return copy_engine.unsupported(input.dtype, input)


def unsupported_in_place(self: torch.Tensor, p: float, train: bool) -> str | None:
    """As :func:`unsupported`; what overlaps itself native refuses."""
    if copy_engine.overlaps_itself(self):
        return "overlaps itself, which native refuses"
    return unsupported(self, p, train)


def features(input: torch.Tensor) -> Features:
    """One route; size is the bytes of the input."""
    return Features("dropout", input.dtype, (), input.numel() * input.dtype.itemsize)
