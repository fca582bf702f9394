"""Outputs of kernels: ordinary empty tensors, or guarded ones while a proof is running."""

from __future__ import annotations

import contextlib
import threading

import torch

from opgraft.call_path import deciding_anew

from .geometry import span


class _State(threading.local):
    guard = None


_state = _State()
ZONE_BYTES = 256


def new_like(
    tensor: torch.Tensor, memory_format: torch.memory_format = torch.preserve_format, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """An uninitialised tensor with the size, device, dtype (or ``dtype``) and, for the memory format, strides native gives."""
    if _state.guard is None:
        if dtype is None and memory_format is torch.preserve_format:
            return torch.empty_like(tensor)  # half a µs less than with keywords
        return torch.empty_like(tensor, memory_format=memory_format, dtype=dtype)
    shape = torch.empty_like(tensor, memory_format=memory_format, dtype=dtype, device="meta")
    return new_empty_strided(shape.shape, shape.stride(), shape.dtype, tensor.device)


def new_empty_strided(size, stride, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """An uninitialised tensor with this geometry."""
    guard = _state.guard
    if guard is not None:
        return guard.new(size, stride, dtype, device)
    return torch.empty_strided(size, stride, dtype=dtype, device=device)


def new_from_primitive(size, stride, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The same from ``empty``: a dense run of the right length, with the geometry set on it."""
    # Below the key that tracks views: the result owns its memory and is nobody's view.
    with torch._C._AutoDispatchBelowADInplaceOrView():
        return torch.empty((span(size, stride),), dtype=dtype, device=device).as_strided(size, stride)


class GuardedOutputs(contextlib.AbstractContextManager):
    """While active, a kernel's outputs are poisoned and lie between zones that :meth:`check` inspects.

    It works on every device, so a proof on a chip without a memory checker still sees an unwritten element
    (run twice with two fills and compare) and a write just outside the output.

    Args:
        fill: the byte that fresh outputs hold, 0 to 255.
    """

    def __init__(self, fill: int):
        self.fill = fill
        self._blocks: list[tuple[torch.Tensor, int]] = []

    def __enter__(self):
        self._before = getattr(_state, "guard", None)
        _state.guard = self
        self._anew = deciding_anew()  # what is planned without Python would allocate past this
        self._anew.__enter__()
        return self

    def __exit__(self, *_):
        self._anew.__exit__(None, None, None)
        _state.guard = self._before
        return None

    def new(self, size, stride, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A poisoned tensor inside a larger block."""
        nbytes = span(size, stride) * dtype.itemsize
        block = torch.full((nbytes + 2 * ZONE_BYTES,), self.fill, dtype=torch.uint8, device=device)
        self._blocks.append((block, nbytes))
        whole = block[: block.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
        return whole.as_strided(size, stride, ZONE_BYTES // dtype.itemsize)

    def check(self) -> None:
        """Raises AssertionError if a byte just before or after an output was changed."""
        for block, nbytes in self._blocks:
            host = block.cpu()
            for side, zone in (("before", host[:ZONE_BYTES]), ("after", host[ZONE_BYTES + nbytes :])):
                changed = int((zone != self.fill).sum())
                assert not changed, f"the kernel wrote {changed} byte(s) just {side} its output of {nbytes} bytes"
