"""The one launcher: every Triton kernel of the library goes through a :class:`Launch`.

It skips empty grids, enters the device's context, and chooses how the kernel runs: compiled on a real
device; through the Triton interpreter, on the tensors' own memory, on the simulated device and on the CPU.

Triton's own launcher takes 10 to 60 µs of host time a call on an H200's host, since it binds, specialises and hashes every
argument anew. A ``Launch`` holds everything about a call but its tensors, so an operator that keeps its launches
(:func:`opgraft.memo.kept`) pays for that once per signature; after that a call looks up the compiled kernel by the addresses' alignment
and hands addresses to it. Nothing is tuned inside a user's call, and nothing waits for the device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.runtime import driver
from triton.runtime.jit import JITFunction, TensorWrapper

from opgraft import sim
from opgraft.sim import guard, memory

from .interpret import interpret

#: Integer dtypes by width in bytes: what a kernel that only moves bits reads and writes.
WORDS = {1: tl.int8, 2: tl.int16, 4: tl.int32, 8: tl.int64}
_OPTIONS = ("num_warps", "num_stages")
_runtime = triton.knobs.runtime


def interpreted(device: torch.device) -> bool:
    """Whether kernels on this device run through the Triton interpreter."""
    return device.type == "cpu" or sim.active(device.type)


def block_size(numel: int, device: torch.device, compiled: int = 1024) -> int:
    """Elements per program of a one-dimensional kernel.

    Compiled kernels use ``compiled``. The interpreter pays about a millisecond per program, so its blocks grow
    with the tensor, but stay small enough that a tensor over 1024 elements takes several programs and a tail.
    """
    if not interpreted(device):
        return compiled
    return min(max(1024, triton.next_power_of_2(numel // 64 + 1)), 1 << 20)


class Launch:
    """A kernel with its grid and all its arguments but the tensors, which come first. Call it with those.

    Args:
        kernel: a ``@triton.jit`` function.
        grid: one to three program counts; nothing runs if one of them is 0.
        numbers: numbers and tuples of numbers, in the kernel's order after its tensors.
        words: for a kernel that only moves bits, by the tensors' positions the width in bytes (1, 2, 4 or 8) of the
            integers as which it sees their memory; None for a tensor that keeps its dtype.
        meta: ``constexpr`` arguments, and ``num_warps``/``num_stages`` for compiled kernels.
    """

    def __init__(self, kernel: JITFunction, grid: tuple[int, ...], *numbers, words: tuple[int | None, ...] = (), **meta):
        self.kernel, self.grid, self.numbers, self.words, self.meta = kernel, grid, numbers, words, meta
        self._empty = 0 in grid
        self._three = (*grid, 1, 1)[:3]
        self._rest = (*numbers, *(meta[name] for name in kernel.arg_names if name in meta))
        self._compiled: dict[int, _Compiled] = {}  # by device index and the addresses' low bits

    def __call__(self, *tensors: torch.Tensor) -> None:
        """Run it on the tensors' device, on its current stream. Their dtypes must be those of the first call.

        Raises:
            RuntimeError: tensors on several devices.
            opgraft.sim.MemoryFault: on the simulated device, the kernel wrote outside its tensors.
        """
        index = tensors[0].get_device()
        for tensor in tensors:
            if tensor.get_device() != index:
                devices = [str(t.device) for t in tensors]
                raise RuntimeError(f"kernel {self.kernel.fn.__name__}: tensors on several devices: {devices}")
        self.at(index, [tensor.data_ptr() for tensor in tensors], tensors)

    def at(self, index: int, addresses: Sequence[int], tensors: tuple[torch.Tensor, ...]) -> None:
        """The same for a caller that has the tensors' one device index (-1: the CPU) and addresses already."""
        if self._empty:
            return
        key = index
        for address in addresses:
            key = key << 4 | address & 15
        found = self._compiled.get(key)
        if found is not None and not _hooked():
            run, options, current_device, current_stream = found
            if current_device() == index:
                run(*self._three, current_stream(index), *options, *addresses, *self._rest)
            else:
                with torch.get_device_module(tensors[0].device.type).device(index):
                    self.at(index, addresses, tensors)
            return
        if index < 0:
            interpret(self.kernel, self.grid, self._arguments(tensors), self._constants())
            return
        device_type = tensors[0].device.type
        with torch.get_device_module(device_type).device(index):
            if sim.active(device_type):
                run_on_simulated(self.kernel, self.grid, tensors, self._arguments(tensors), self._constants())
            else:
                compiled = self.kernel[self.grid](*self._arguments(tensors), **self.meta)
                self._compiled[key] = _compiled(compiled, current_device_of(device_type))

    def _arguments(self, tensors: tuple[torch.Tensor, ...]) -> tuple:
        widths = (*self.words, *[None] * len(tensors))
        return (*[t if w is None else TensorWrapper(t, WORDS[w]) for t, w in zip(tensors, widths)], *self.numbers)

    def _constants(self) -> dict:
        return {name: value for name, value in self.meta.items() if name not in _OPTIONS}


@functools.cache
def current_device_of(device_type: str) -> Callable[[], int]:
    """The function that says the current device's index of a type, for where it is asked again and again."""
    if device_type == "cuda":
        return torch._C._cuda_getDevice  # torch.cuda.current_device without its question whether CUDA is initialized
    return torch.get_device_module(device_type).current_device


class _Compiled(NamedTuple):
    """A compiled kernel: run(*grid, stream, *options, *addresses, *the other arguments), where it is the current device."""

    run: Callable[..., None]
    options: tuple
    current_device: Callable[[], int]
    current_stream: Callable[[int], int]


def _compiled(compiled, current_device: Callable[[], int]) -> _Compiled:
    run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata
    scratch = getattr(run, "global_scratch_size", 1) or getattr(run, "profile_scratch_size", 1)
    if triton.__version__.startswith("3.6.") and type(run).__name__ == "CudaLauncher" and not scratch:
        # What CudaLauncher.__call__ of this version calls when no scratch memory is needed: 2 µs less (bench/NOTES.md).
        direct = (function, run.launch_cooperative_grid, run.launch_pdl, None, None, metadata, None, None, None)
        return _Compiled(run.launch, direct, current_device, driver.active.get_current_stream)
    return _Compiled(run, (function, metadata, None, None, None), current_device, driver.active.get_current_stream)


def _hooked() -> bool:
    """Whether a profiler hooked Triton's launches (a chain of calls, or None in older versions): then Triton's own path runs."""
    hook = _runtime.launch_enter_hook
    return bool(getattr(hook, "calls", hook))


def launch(kernel: JITFunction, grid: tuple[int, ...], *args, **meta) -> None:
    """Run ``kernel`` once: :class:`Launch` with its tensors and numbers in one row, tensors first."""
    number = next((i for i, a in enumerate(args) if not isinstance(a, torch.Tensor)), len(args))
    Launch(kernel, grid, *args[number:], **meta)(*args[:number])


def run_on_simulated(kernel, grid, tensors, args, meta) -> None:
    """Interpret a kernel as the simulated device does: in its context, with live storages, red zones after.

    Raises:
        RuntimeError: the current device is not the tensors' device. On a chip that launch would run on the
            wrong device and read foreign addresses.
        opgraft.sim.MemoryFault: a storage is freed or foreign, or a red zone was written to.
    """
    name = kernel.fn.__name__
    for tensor in tensors:
        if tensor.device.index != guard.current_device():
            raise RuntimeError(
                f"kernel {name}: launched in the context of device {guard.current_device()} with a tensor on {tensor.device}; "
                "enter the tensor's device first (opgraft.kernels.launch does)"
            )
        memory.host_alias(tensor)
    interpret(kernel, grid, args, meta)
    memory.check_tensors(tensors, name)
