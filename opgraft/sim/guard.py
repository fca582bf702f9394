"""The device guard of the simulated device, with more than one device index.

PyTorch lets Python supply a PrivateUse1 device guard (``torch._C._acc.DeviceGuard``), but its C++ side
answers "device 0 of 1" by itself (torch/csrc/acc/Module.cpp, 2.11 to 2.13: ``getDevice``, ``setDevice`` and
``deviceCount`` never call Python). With that, ``x.to("sim")`` under ``device(1)`` lands on index 0 and a
backward on index 1 has no autograd queue. So the guard object is given its own copy of the C++ virtual
table, with those five entries pointing at Python. The order of the entries is read from the header that
PyTorch ships, and the table is used only if the original entries answer as expected; otherwise the device
has one index and :data:`LAYOUT_PROBLEM` says why.
"""

from __future__ import annotations

import atexit
import ctypes
import pathlib
import platform
import re
import threading
import time

import torch

PRIVATEUSE1 = 20  # c10::DeviceType::PrivateUse1, checked against the guard's own answer below
LAYOUT_PROBLEM: str | None = None

_current = threading.local()
_keep: list[object] = []
_exchange: ctypes._CFuncPtr | None = None


def current_device() -> int:
    """Index of the calling thread's current device."""
    return getattr(_current, "index", 0)


def set_current_device(index: int) -> None:
    """Make ``index`` the calling thread's current device. The caller has checked its range."""
    _current.index = index


class _Guard(torch._C._acc.DeviceGuard):
    def type_(self):
        return torch._C._autograd.DeviceType.PrivateUse1


def _pack(index: int) -> int:
    """c10::Device is two signed bytes, type then index, passed in a register."""
    return PRIVATEUSE1 | (index & 0xFF) << 8


def _index(device: int) -> int:
    index = device >> 8 & 0xFF
    return index - 256 if index > 127 else index


def _virtuals() -> list[str]:
    header = pathlib.Path(torch.__file__).parent / "include/c10/core/impl/DeviceGuardImplInterface.h"
    return re.findall(r"^\s*virtual\s+[\w:*&\s]+?[\s*&](\w+)\(", header.read_text(), re.M)


def make_guard(device_count: int) -> tuple[object, int]:
    """Build the guard.

    Args:
        device_count: how many device indexes are wanted.

    Returns:
        The guard to register, and the number of indexes it really serves: ``device_count``, or 1 where the
        C++ layout was not as expected (then :data:`LAYOUT_PROBLEM` says what was found).
    """
    global LAYOUT_PROBLEM
    guard = _Guard()
    _keep.append(guard)
    try:
        _install(guard, device_count)
    except (OSError, ValueError, RuntimeError) as problem:
        LAYOUT_PROBLEM = str(problem)
        return guard, 1
    return guard, device_count


def _install(guard: object, device_count: int) -> None:
    if platform.python_implementation() != "CPython" or platform.system() == "Windows":
        raise RuntimeError("needs CPython and the Itanium C++ ABI (Linux, macOS)")
    names = _virtuals()
    value = ctypes.c_void_p.from_address(id(guard) + object.__basicsize__).value  # pybind11's value pointer
    table = ctypes.c_void_p.from_address(value).value
    slots = len(names) + 2  # two destructor entries close the table
    # Two words before the table's address point hold offset-to-top and the type information.
    copy = (ctypes.c_void_p * (slots + 2)).from_buffer_copy((ctypes.c_void_p * (slots + 2)).from_address(table - 16))
    _keep.append(copy)

    def original(name: str, result):
        return ctypes.CFUNCTYPE(result, ctypes.c_void_p)(copy[2 + names.index(name)])(value)

    found = original("getDevice", ctypes.c_uint16), original("deviceCount", ctypes.c_int8)
    if found != (_pack(0), 1):
        raise RuntimeError(f"the guard's virtual table is laid out differently: getDevice, deviceCount gave {found}")

    def replace(name: str, function, result, *args):
        entry = ctypes.CFUNCTYPE(result, ctypes.c_void_p, *args)(function)
        _keep.append(entry)
        copy[2 + names.index(name)] = ctypes.cast(entry, ctypes.c_void_p).value

    def set_device(_this, device):
        if 0 <= _index(device) < device_count:
            set_current_device(_index(device))

    def exchange(_this, device):
        previous = current_device()
        set_device(_this, device)
        return _pack(previous)

    u16 = ctypes.c_uint16
    replace("exchangeDevice", exchange, u16, u16)
    replace("getDevice", lambda _this: _pack(current_device()), u16)
    replace("setDevice", set_device, None, u16)
    replace("uncheckedSetDevice", set_device, None, u16)
    replace("deviceCount", lambda _this: device_count, ctypes.c_int8)
    ctypes.c_void_p.from_address(value).value = ctypes.addressof(copy) + 16

    @atexit.register
    def settle():
        """Autograd's threads ask the guard as they start, and one that asks Python while it shuts down ends the process
        ("terminate called without an active exception", seen once under load): let those that have
        started get their answer, then give the entries back to C++."""
        time.sleep(0.02)
        ctypes.c_void_p.from_address(value).value = table
