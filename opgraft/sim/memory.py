"""Memory of the simulated device: real bytes, red zones, poison, quarantine.

An allocation is host memory that we own, wrapped as a tensor through DLPack (device type kDLExtDev):

    | DLPack header, shape, strides | red zone 64 B, 0xFA | data, fresh bytes 0xF7 | red zone 64 B, 0xFA |

A write outside the data changes a red zone: found after every kernel launch that was given the tensor, when
the memory is freed, and by :func:`check`. Fresh data is poisoned, so that an element a kernel forgot is a
visible value (about -1e34 in fp32 and bf16, a far out of range int64). Freed blocks wait in a quarantine
filled with 0xDD; a write after free shows when they leave it.

PyTorch frees tensors with Python errors pending and from threads without the GIL, so no Python may run at
that moment. The DLPack deleter is therefore ``pthread_spin_unlock`` on a lock word at the start of the block,
and freed blocks are collected at the next allocation or check.
"""

from __future__ import annotations

import ctypes
import threading
import warnings
from collections import deque
from dataclasses import dataclass, field

import torch

RED_BYTES, RED, POISON, FREED = 64, 0xFA, 0xF7, 0xDD
#: Above this many bytes only the first and last MiB of fresh memory are poisoned, so that a sparse huge
#: tensor costs address space and not memory.
POISON_ALL_BELOW = 64 << 20
MIB = 1 << 20
QUARANTINE_BYTES, QUARANTINE_BLOCK = 16 << 20, 1 << 20

KDL_CPU, KDL_EXT_DEV = 1, 12


class MemoryFault(RuntimeError):
    """A kernel wrote outside its tensors, or a freed storage was used."""


class _DLDevice(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("index", ctypes.c_int)]


class _DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int),
        ("dtype", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Header(ctypes.Structure):
    """DLPack's DLManagedTensor. Its first word doubles as the lock once PyTorch has read the pointer there."""

    _fields_ = [("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


# DLPack's type codes (dlpack.h): int 0, uint 1, float 2, bfloat 4, complex 5, bool 6.
_DLPACK = {
    torch.float16: (2, 16), torch.float32: (2, 32), torch.float64: (2, 64), torch.bfloat16: (4, 16),
    torch.int8: (0, 8), torch.int16: (0, 16), torch.int32: (0, 32), torch.int64: (0, 64),
    torch.uint8: (1, 8), torch.uint16: (1, 16), torch.uint32: (1, 32), torch.uint64: (1, 64),
    torch.bool: (6, 8), torch.complex64: (5, 64), torch.complex128: (5, 128),
}  # fmt: skip

_libc = ctypes.CDLL(None)
_libc.malloc.restype, _libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
_libc.free.restype, _libc.free.argtypes = None, [ctypes.c_void_p]
_libc.pthread_spin_init.argtypes = [ctypes.c_void_p, ctypes.c_int]
_libc.pthread_spin_lock.argtypes = [ctypes.c_void_p]
_UNLOCK = ctypes.cast(_libc.pthread_spin_unlock, ctypes.c_void_p).value
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

CPU_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_view_dtype = torch.ops.aten.view.dtype
_as_strided = torch.ops.aten.as_strided.default


@dataclass(slots=True, eq=False)
class Allocation:
    """One block: ``data`` is the address PyTorch sees, ``nbytes`` its size, ``base`` what malloc gave."""

    data: int
    nbytes: int
    device: int
    base: int
    lock: ctypes.c_int = field(repr=False, default_factory=ctypes.c_int)
    host: dict = field(default_factory=dict, repr=False)

    @property
    def freed(self) -> bool:
        """Whether PyTorch has called the deleter."""
        return self.lock.value != _LOCKED

    def damaged(self) -> str | None:
        """Which red zone was written to, and where the first changed byte lies; None if intact."""
        for side, start in (("before", self.data - RED_BYTES), ("after", self.data + self.nbytes)):
            zone = ctypes.string_at(start, RED_BYTES)
            if zone != _RED_ZONE:
                changed = [i for i, byte in enumerate(zone) if byte != RED]
                at = RED_BYTES - changed[-1] if side == "before" else changed[0]
                what = f"{at} byte(s) before its start" if side == "before" else f"at byte {at} past its end"
                return f"an allocation of {self.nbytes} bytes on device {self.device} was written {what}"
        return None


def _locked_value() -> int:
    word = ctypes.c_int(0)
    _libc.pthread_spin_init(ctypes.addressof(word), 0)
    _libc.pthread_spin_lock(ctypes.addressof(word))
    return word.value


_LOCKED = _locked_value()
_RED_ZONE = bytes([RED]) * RED_BYTES
_live: dict[int, Allocation] = {}
_small: deque[Allocation] = deque()  # live blocks, looked at a few per allocation
_large: list[Allocation] = []  # live blocks over QUARANTINE_BLOCK, all looked at every time
_quarantine: deque[Allocation] = deque()
_quarantined = [0]
_faults: list[str] = []
_lock = threading.RLock()
_used = [0, 0]  # bytes now, most bytes
last_launch = "no kernel launched yet"
_HEADER = ctypes.sizeof(_Header)


def _allocate(nbytes: int, device: int, rank: int) -> Allocation:
    front = _HEADER + 16 * rank + RED_BYTES
    base = _libc.malloc(front + nbytes + RED_BYTES + 64)
    if not base:
        raise torch.OutOfMemoryError(f"simulated device {device}: the host cannot give {nbytes} bytes")
    data = base + front + 63 & ~63
    ctypes.memset(data - RED_BYTES, RED, RED_BYTES)
    ctypes.memset(data + nbytes, RED, RED_BYTES)
    if nbytes <= POISON_ALL_BELOW:
        ctypes.memset(data, POISON, nbytes)
    else:
        ctypes.memset(data, POISON, MIB)
        ctypes.memset(data + nbytes - MIB, POISON, MIB)
    return Allocation(data, nbytes, device, base)


def _collect(everything: bool = False) -> None:
    """Take in what PyTorch freed: all of it, or all large blocks and a few of the small ones."""
    if everything:
        freed = [a for a in list(_live.values()) if a.freed]
    else:
        freed = [a for a in list(_large) if a.freed]
        for _ in range(min(8, len(_small))):
            _small.rotate(-1)
            if _small[-1].freed:
                freed.append(_small[-1])
    for allocation in freed:
        (_large if allocation.nbytes > QUARANTINE_BLOCK else _small).remove(allocation)
        del _live[allocation.data]
        _used[0] -= allocation.nbytes
        allocation.host.clear()
        damage = allocation.damaged()
        if damage:
            _faults.append(f"{damage} (found when it was freed; last kernel launched: {last_launch})")
            warnings.warn(f"opgraft.sim: {_faults[-1]}", stacklevel=2)
        if allocation.nbytes > QUARANTINE_BLOCK:
            _libc.free(allocation.base)
            continue
        ctypes.memset(allocation.data, FREED, allocation.nbytes)
        _quarantine.append(allocation)
        _quarantined[0] += allocation.nbytes
        while _quarantined[0] > QUARANTINE_BYTES or len(_quarantine) > 512:
            _release(_quarantine.popleft())


def _written_after_free(allocation: Allocation) -> str | None:
    if ctypes.string_at(allocation.data, allocation.nbytes).strip(bytes([FREED])):
        return f"a freed allocation of {allocation.nbytes} bytes on device {allocation.device} was written to"
    return None


def _release(allocation: Allocation) -> None:
    _quarantined[0] -= allocation.nbytes
    problem = _written_after_free(allocation)
    if problem:
        _faults.append(problem)
    _libc.free(allocation.base)


def _new_tensor(nbytes: int, kind: int, index: int, dtype: torch.dtype, size, stride) -> torch.Tensor:
    code, bits = _DLPACK[dtype]
    rank = len(size)
    with _lock:
        _collect()
        allocation = _allocate(nbytes, index, rank)
        words = ctypes.c_int64 * rank
        shape_at, strides_at = allocation.base + _HEADER, allocation.base + _HEADER + 8 * rank
        words.from_address(shape_at)[:] = size
        words.from_address(strides_at)[:] = stride
        header = _Header.from_address(allocation.base)
        header.tensor = _DLTensor(
            allocation.data,
            _DLDevice(kind, index),
            rank,
            _DLDataType(code, bits, 1),
            ctypes.cast(shape_at, ctypes.POINTER(ctypes.c_int64)),
            ctypes.cast(strides_at, ctypes.POINTER(ctypes.c_int64)),
            0,
        )
        header.deleter = _UNLOCK
        tensor = torch._C._from_dlpack(_new_capsule(allocation.base, b"dltensor", None))
        _libc.pthread_spin_init(allocation.base, 0)
        _libc.pthread_spin_lock(allocation.base)
        allocation.lock = ctypes.c_int.from_address(allocation.base)
        _live[allocation.data] = allocation
        (_large if nbytes > QUARANTINE_BLOCK else _small).append(allocation)
        _used[0] += nbytes
        _used[1] = max(_used)
    return tensor


def storage_bytes(size, stride, itemsize: int) -> int:
    """Bytes that a tensor of this geometry spans, as native PyTorch sizes a storage."""
    if 0 in size:
        return 0
    return (1 + sum((n - 1) * s for n, s in zip(size, stride))) * itemsize


def empty_strided(size, stride, dtype: torch.dtype, index: int) -> torch.Tensor:
    """A poisoned tensor on device ``index`` with exactly this size and stride, in a storage of its own."""
    nbytes = storage_bytes(size, stride, dtype.itemsize)
    if nbytes >= 1 << 62 or len(size) != len(stride) or min((*size, *stride, 0)) < 0:
        torch.empty_strided(size, stride, dtype=dtype, device="cpu")  # raises PyTorch's own error
    if dtype in _DLPACK:
        return _new_tensor(nbytes, KDL_EXT_DEV, index, dtype, size, stride)
    raw = _new_tensor(nbytes, KDL_EXT_DEV, index, torch.uint8, (nbytes,), (1,))  # fp8 and other dtypes DLPack lacks
    return _as_strided.redispatch(CPU_KEYS, _view_dtype.redispatch(CPU_KEYS, raw, dtype), size, stride, 0)


def pinned_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a CPU tensor in memory that :func:`is_pinned` knows; 'pinned' means nothing else here."""
    dense = tensor.contiguous()
    out = _new_tensor(dense.nbytes, KDL_CPU, 0, torch.uint8, (dense.nbytes,), (1,))
    return out.view(dense.dtype).view(dense.shape).copy_(dense) if dense.numel() else dense.clone()


def is_pinned(tensor: torch.Tensor) -> bool:
    """Whether a CPU tensor lies in memory made by :func:`pinned_copy`."""
    return tensor.untyped_storage().data_ptr() in _live


def host_alias(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor over the same bytes, with the same dtype, size, stride, offset and conj/neg bits.

    Raises:
        MemoryFault: the tensor's storage is not (or no longer) one of this device's allocations.
    """
    storage = tensor.untyped_storage()
    pointer = storage.data_ptr()
    dtype = tensor.dtype
    if not storage.nbytes():
        alias = torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device="cpu")
    else:
        allocation = _live.get(pointer)
        if allocation is None or allocation.freed:
            raise MemoryFault(f"a storage at {pointer:#x} was used that is not allocated: freed already, or foreign memory")
        typed = allocation.host.get(dtype)
        if typed is None:
            with torch.inference_mode(False):
                buffer = (ctypes.c_char * allocation.nbytes).from_address(pointer)
                raw = torch.frombuffer(buffer, dtype=torch.uint8)
                typed = raw[: allocation.nbytes // dtype.itemsize * dtype.itemsize].view(dtype)
            allocation.host[dtype] = typed
        alias = typed.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    if tensor.is_conj():
        torch._C._set_conj(alias, True)
    if tensor.is_neg():
        torch._C._set_neg(alias, True)
    return alias


def check_tensors(tensors, kernel: str) -> None:
    """Check the red zones of the storages that a launch was given.

    Raises:
        MemoryFault: names the kernel, the allocation and the first byte written.
    """
    global last_launch
    last_launch = kernel
    for tensor in tensors:
        allocation = _live.get(tensor.untyped_storage().data_ptr())
        damage = allocation.damaged() if allocation else None
        if damage:
            _repaint(allocation)
            raise MemoryFault(f"kernel {kernel}: {damage}; look at its masks and its last (tail) block")


def _repaint(allocation: Allocation) -> None:
    ctypes.memset(allocation.data - RED_BYTES, RED, RED_BYTES)
    ctypes.memset(allocation.data + allocation.nbytes, RED, RED_BYTES)


def check() -> None:
    """Check every live allocation, the quarantine, and what was noticed at frees since the last call.

    Raises:
        MemoryFault: lists every fault found. Each fault is reported once.
    """
    with _lock:
        _collect(everything=True)
        found = list(_faults)
        _faults.clear()
        for allocation in list(_live.values()):
            damage = allocation.damaged()
            if damage:
                found.append(f"{damage} (last kernel launched: {last_launch})")
                _repaint(allocation)
        for allocation in list(_quarantine):
            problem = _written_after_free(allocation)
            if problem:
                found.append(problem)
                ctypes.memset(allocation.data, FREED, allocation.nbytes)
    if found:
        raise MemoryFault("; ".join(found))


def bytes_used() -> int:
    """Bytes in live allocations, over all device indexes."""
    with _lock:
        _collect(everything=True)
    return _used[0]


def peak_bytes(reset: bool = False) -> int:
    """The most bytes that were live at once since start or since the last reset."""
    peak = _used[1]
    if reset:
        _used[1] = bytes_used()
    return peak
