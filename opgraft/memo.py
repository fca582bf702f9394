"""A bounded dictionary of what is computed once for a key."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

MOST = 4096
T = TypeVar("T")


def kept(table: dict[Hashable, T], key: Hashable, make: Callable[..., T], *args, **kwargs) -> T:
    """What ``table`` holds for ``key``, made at the first request; ``key`` holds all that ``make(*args, **kwargs)`` depends on.

    A table that has grown to :data:`MOST` entries starts anew.
    """
    try:
        return table[key]
    except KeyError:
        if len(table) >= MOST:
            table.clear()
        table[key] = made = make(*args, **kwargs)
        return made
