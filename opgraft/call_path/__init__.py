"""The way of a call from PyTorch's dispatcher to what answers it: in C++ where it could be built, in Python elsewhere.

``OPGRAFT_CALL_PATH=python`` takes the Python path, ``OPGRAFT_CALL_PATH=c++`` insists on the other; without it the C++ path is taken
if it is there or can be built (:mod:`opgraft.call_path.build`). Both ask the same planner in Python what becomes of a call, and
remember it by the call's signature. docs/call-path.md says how, and where they differ.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import torch

__all__ = [
    "Instead",
    "State",
    "below_overrides",
    "deciding_anew",
    "extension",
    "forced",
    "inside",
    "set_forced",
    "set_inside",
    "state",
]

WAYS = ("c++", "python")


class State(NamedTuple):
    """Which path serves this process: ``way`` is ``c++`` or ``python``, ``detail`` where it came from, or why it is not the other."""

    way: str
    detail: str


class _Thread(threading.local):
    """What the C++ path keeps for each thread, where that is not there."""

    inside = False
    forced = 0


_thread = _Thread()
_lock = threading.RLock()
_state: State | None = None
_extension: ModuleType | None = None
_anew = 0


def state() -> State:
    """Which path serves this process; decided, and the C++ path built if need be, at the first question."""
    global _state, _extension
    with _lock:
        if _state is not None:
            return _state
        wanted = os.environ.get("OPGRAFT_CALL_PATH", "").lower()
        if wanted not in ("", *WAYS):
            raise RuntimeError(f"OPGRAFT_CALL_PATH is {wanted!r}; accepted: {', '.join(WAYS)}, or not set")
        if wanted == "python":
            _state = State("python", "OPGRAFT_CALL_PATH=python")
            return _state
        from . import build

        module, detail = build.load()
        if module is None and wanted == "c++":
            raise RuntimeError(f"OPGRAFT_CALL_PATH=c++, but the C++ call path is not to be had here: {detail}")
        if module is not None:  # what this thread is in the middle of
            module.set_inside(_thread.inside)
            module.set_forced(_thread.forced)
            module.decide_anew(_anew)
        _extension, _state = module, State("c++" if module else "python", detail)
        return _state


def extension() -> ModuleType | None:
    """The C++ path, or None where Python serves."""
    state()
    return _extension


def inside() -> bool:
    """Whether this thread is inside an override: overridden operators called there go straight to native, so that implementations
    may use each other without recursion and a user's call counts once."""
    return _extension.inside() if _extension else _thread.inside


def set_inside(value: bool) -> bool:
    """Set :func:`inside` for this thread; returns what it was."""
    if _extension:
        return _extension.set_inside(value)
    before, _thread.inside = _thread.inside, value
    return before


def forced() -> int:
    """The route that this thread is made to take: 0 none, else 1 + its place in :data:`opgraft.routing.CHOICES`."""
    return _extension.forced() if _extension else _thread.forced


def set_forced(value: int) -> int:
    """Set :func:`forced` for this thread; returns what it was."""
    if _extension:
        return _extension.set_forced(value)
    before, _thread.forced = _thread.forced, value
    return before


@contextlib.contextmanager
def deciding_anew() -> Iterator[None]:
    """While it runs, in every thread, each call is decided in Python and nothing that was remembered is used: for whoever watches or
    changes how calls are decided."""
    _change_anew(1)
    try:
        yield
    finally:
        _change_anew(-1)


def _change_anew(by: int) -> None:
    global _anew
    with _lock:
        _anew += by
        if _extension:
            _extension.decide_anew(by)


def remembering() -> bool:
    """Whether no :func:`deciding_anew` block is active."""
    return _anew == 0


@contextlib.contextmanager
def below_overrides() -> Iterator[None]:
    """Run a block below autograd, where overridden operators go straight to native: how kernels are called directly."""
    before = set_inside(True)
    try:
        with torch._C._AutoDispatchBelowADInplaceOrView():
            yield
    finally:
        set_inside(before)


class Instead:
    """A kernel that is another operator's kernel at the backend key, called with the same arguments: no Python on its way.

    Args:
        name: as ``aten::alias``, or ``aten::empty.memory_format``. Its schema takes and gives what the override's does.
    """

    def __init__(self, name: str):
        packet, _, overload = name.partition(".")
        #: Read by the C++ path.
        self.instead_of_python = packet, overload
        namespace, _, operator = packet.partition("::")
        self._overload = getattr(getattr(getattr(torch.ops, namespace), operator), overload or "default")
        self.__name__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The operator's result."""
        return self._overload(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Instead({self.__name__!r})"
