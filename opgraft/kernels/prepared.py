"""Kernels that prepare a call once for its signature."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def prepared(prepare: Callable[..., Callable[..., Any]]) -> Callable[..., Any]:
    """A kernel from a function that, given a call's arguments, returns what runs for them and for every call of the same signature.

    What it returns must hold no tensor. Where an override declares a ``signature`` the dispatcher's side keeps it
    (:mod:`opgraft.a1.decide`), so planning is paid once; called directly, the kernel prepares and runs.
    """

    @functools.wraps(prepare)
    def kernel(*args, **kwargs):
        return prepare(*args, **kwargs)(*args, **kwargs)

    kernel.prepare = prepare  # type: ignore[attr-defined]
    return kernel
