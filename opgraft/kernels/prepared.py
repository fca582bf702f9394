"""Kernels that prepare a call once for its signature."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def prepared(prepare: Callable[..., Callable[..., Any]]) -> Callable[..., Any]:
    """A kernel from a function that, given a call's arguments, returns what runs for them and for every call of the same signature.

    What it returns must hold no tensor. The call path keeps it by the call's signature (:mod:`opgraft.call_path`), so planning is paid
    once; if it is a :class:`~opgraft.kernels.Steps`, later calls need no Python. Called directly, the kernel prepares and runs.
    """

    @functools.wraps(prepare)
    def kernel(*args, **kwargs):
        return prepare(*args, **kwargs)(*args, **kwargs)

    kernel.prepare = prepare  # type: ignore[attr-defined]
    return kernel
