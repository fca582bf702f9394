"""Which inputs embedding's kernels take, and what its routing table knows of a call."""

from __future__ import annotations

import torch

from opgraft.routing import Features

INDEX_DTYPES = (torch.int32, torch.int64)
SUMMED_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def unsupported(weight: torch.Tensor, indices: torch.Tensor, sparse: bool) -> str | None:
    """The kernels gather from a strided table of any dtype up to 8 bytes."""
    if sparse:
        return "sparse=True"
    if weight.dim() != 2:
        return "weight is not 2-D, which native refuses"
    if weight.dtype.itemsize > 8 or weight.dtype.is_complex:
        return f"dtype {weight.dtype}"
    if indices.numel() == 0 or weight.numel() == 0:
        return "empty"
    return _unsupported_pair(weight, indices)


def unsupported_backward(grad_output: torch.Tensor, indices: torch.Tensor, num_weights: int) -> str | None:
    """The kernels sum floating-point gradients."""
    if grad_output.dtype not in SUMMED_DTYPES:
        return f"dtype {grad_output.dtype}"
    if indices.numel() == 0 or grad_output.numel() == 0 or num_weights == 0:
        return "empty"
    if grad_output.shape[:-1] != indices.shape:
        return "shapes that native refuses"
    return _unsupported_pair(grad_output, indices)


def _unsupported_pair(values: torch.Tensor, indices: torch.Tensor) -> str | None:
    if indices.dtype not in INDEX_DTYPES:
        return f"indices of dtype {indices.dtype}, which native refuses"
    if values.device != indices.device:
        return "tensors on several devices"
    if values.layout is not torch.strided or values.is_quantized or values.is_neg():
        return f"layout {values.layout}, quantized {values.is_quantized}, or neg bit set"
    return None


def features(weight: torch.Tensor, indices: torch.Tensor) -> Features:
    """The route ``gather``; size is the bytes of the result."""
    return Features(
        "gather", None, (("width", weight.dtype.itemsize),), indices.numel() * weight.shape[1] * weight.dtype.itemsize
    )


def features_backward(grad_output: torch.Tensor, num_weights: int) -> Features:
    """The route ``backward``; size is the bytes of both gradients."""
    size = (grad_output.numel() + num_weights * grad_output.shape[-1]) * grad_output.dtype.itemsize
    return Features("backward", grad_output.dtype, (), size)
