"""Sizes, strides and spans: what allocating operators compute before they allocate."""

from __future__ import annotations

import torch


def row_major(size) -> tuple[int, ...]:
    """Contiguous strides, in elements; a size of 0 counts as 1, as in PyTorch."""
    strides, step = [], 1
    for n in reversed(size):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def like_strides(tensor: torch.Tensor, memory_format: torch.memory_format) -> tuple[int, ...]:
    """The strides that native gives a new tensor like this one.

    Raises:
        RuntimeError: a memory format that does not go with the rank (PyTorch's own error).
    """
    if memory_format is torch.contiguous_format:
        return row_major(tensor.shape)
    if memory_format is torch.preserve_format and tensor.is_contiguous():
        return tensor.stride()  # of size-1 and empty dimensions too
    # Permuted, gappy, expanded or overlapping: PyTorch's rules, from its own shape-only kernel.
    return torch.empty_like(tensor, memory_format=memory_format, device="meta").stride()


def indexed(device: torch.device | str) -> torch.device:
    """A device with its index: the current one where none is given (the CPU has none)."""
    device = torch.device(device)
    if device.index is not None or device.type in ("cpu", "meta"):
        return device
    return torch.device(device.type, torch.get_device_module(device.type).current_device())


def span(size, stride) -> int:
    """Elements from the first to the last of a tensor with this geometry, both included; 0 if it is empty."""
    return 0 if 0 in size else 1 + sum((n - 1) * s for n, s in zip(size, stride))


def allocatable(size, stride, dtype: torch.dtype) -> bool:
    """Whether sizes and strides are what native accepts: equal in number, none negative, the bytes in 63 bits."""
    return len(size) == len(stride) and min((*size, *stride, 0)) >= 0 and span(size, stride) * dtype.itemsize < 2**63
