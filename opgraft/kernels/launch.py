"""The one launcher: every Triton kernel of the library goes through a :class:`Launch`.

It skips empty grids, enters the device's context, and chooses how the kernel runs: compiled on a real
device; through the Triton interpreter, on the tensors' own memory, on the CPU and where a simulator says so.

Triton's own launcher takes 10 to 60 µs of host time a call on an H200's host, since it binds, specialises and hashes every
argument anew. A ``Launch`` holds everything about a call but its tensors, so an operator that keeps its launches
(:func:`opgraft.memo.kept`) pays for that once per signature; after that a call looks up the compiled kernel by the addresses'
alignment and hands addresses to it, and the C++ call path goes without this module (:meth:`Launch.direct`). Nothing is tuned inside a
user's call, and nothing waits for the device.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton.runtime import driver
from triton.runtime.jit import JITFunction, TensorWrapper

from opgraft import platforms

from .interpret import interpret

#: Integer dtypes by width in bytes: what a kernel that only moves bits reads and writes.
WORDS = {1: tl.int8, 2: tl.int16, 4: tl.int32, 8: tl.int64}
_OPTIONS = ("num_warps", "num_stages")
_runtime = triton.knobs.runtime


def interpreted(device: torch.device) -> bool:
    """Whether kernels on this device run through the Triton interpreter."""
    return device.type == "cpu" or platforms.simulator(device.type) is not None


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
        self._directs: dict[int, Any] = {}  # the same kernels as Triton has them

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
        key = _key(index, addresses)
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
            simulator = platforms.simulator(device_type)
            if simulator is not None:
                simulator.launch(self.kernel, self.grid, tensors, self._arguments(tensors), self._constants())
            else:
                compiled = self.kernel[self.grid](*self._arguments(tensors), **self.meta)
                self._compiled[key] = _compiled(compiled, current_device_of(device_type))
                self._directs[key] = compiled

    def direct(self, index: int, addresses: Sequence[int], operands: Sequence[int]) -> Direct | None:
        """What the C++ call path needs to launch it for addresses of this alignment: one that has run so already.

        Args:
            index: of the device.
            addresses: of the tensors, in the kernel's order.
            operands: what the call path puts for each, in the same order.

        Returns:
            None where more is needed than one C function with the kernel's parameters: an interpreted kernel, one with scratch memory or
            clusters, one whose parameters the driver does not tell (CUDA before 12.4), or tells otherwise than its signature.
        """
        if self._empty:
            return Direct(self.kernel.fn.__name__, 0, (0, 0, 0), 0, 0, ())
        compiled = self._directs.get(_key(index, addresses))
        if compiled is None:
            return None
        metadata = compiled.metadata
        plain = (getattr(metadata, "num_ctas", 1) == 1, not getattr(metadata, "launch_cooperative_grid", False),
                 not getattr(metadata, "launch_pdl", False), not getattr(metadata, "global_scratch_size", 0),
                 not getattr(metadata, "profile_scratch_size", 0))  # fmt: skip
        parameters = _parameters(compiled, self.kernel, list(operands), self.numbers)
        if not all(plain) or parameters is None:
            return None
        sizes, own = _parameter_sizes(compiled.function), [8 if isinstance(p, int) else len(p) for p in parameters]
        if sizes is None or sizes[: len(own)] != own:
            return None
        parameters += [bytes(n) for n in sizes[len(own) :]]  # Triton's pointers to scratch memory, of which there is none
        threads = metadata.num_warps * getattr(metadata.target, "warp_size", 32)
        return Direct(self.kernel.fn.__name__, compiled.function, self._three, threads, metadata.shared, tuple(parameters))

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
        # What CudaLauncher.__call__ of this version calls when no scratch memory is needed: 2 µs less (docs/h200-notes.md).
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


class Direct(NamedTuple):
    """A launch of a compiled kernel by one C function. ``parameters``: an int is an operand, whose address is passed; bytes are passed
    as they are."""

    name: str
    function: int
    grid: tuple[int, ...]
    threads: int
    shared: int
    parameters: tuple[int | bytes, ...]


def _key(index: int, addresses: Sequence[int]) -> int:
    key = index
    for address in addresses:
        key = key << 4 | address & 15
    return key


def launch_hooks() -> list | None:
    """The list of the hooks that Triton calls before a launch, for the C++ path to look at; None if this Triton has no such list."""
    calls = getattr(_runtime.launch_enter_hook, "calls", None)
    return calls if isinstance(calls, list) else None


_FORMATS = {
    "i1": "b",
    "i8": "b",
    "i16": "h",
    "i32": "i",
    "i64": "q",
    "u1": "B",
    "u8": "B",
    "u16": "H",
    "u32": "I",
    "u64": "Q",
    "fp32": "f",
    "fp64": "d",
}


def _parameters(compiled, kernel: JITFunction, operands: list[int], numbers: tuple) -> list[int | bytes] | None:
    """The compiled kernel's parameters in its order: what is not a constant of its signature; None if one is of another kind."""
    found: list[int | bytes] = []
    signature = compiled.src.signature
    given = [*operands, *numbers]

    def put(kind, value) -> bool:
        if isinstance(kind, tuple):
            return all(put(k, v) for k, v in zip(kind, value))
        if kind == "constexpr":
            return True
        if kind.startswith("*"):
            found.append(value)
            return True
        if kind not in _FORMATS:
            return False
        found.append(struct.pack(_FORMATS[kind], value))
        return True

    names = [name for name in kernel.arg_names if name in signature][: len(given)]
    return found if all(put(signature[name], value) for name, value in zip(names, given)) else None


@functools.cache
def _parameter_info():
    """CUDA's cuFuncGetParamInfo (12.4 and newer), or None."""
    try:
        return ctypes.CDLL("libcuda.so.1").cuFuncGetParamInfo
    except (OSError, AttributeError):
        return None


def _parameter_sizes(function: int) -> list[int] | None:
    """Bytes of each of a compiled kernel's parameters, as the driver knows them; None where it cannot be asked."""
    info = _parameter_info()
    if info is None:
        return None
    sizes: list[int] = []
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    while info(ctypes.c_void_p(function), ctypes.c_size_t(len(sizes)), ctypes.byref(offset), ctypes.byref(size)) == 0:
        sizes.append(size.value)
    return sizes
