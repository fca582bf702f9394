"""Routing: for each call, the operator's own kernel or native, by a table that a benchmark wrote.

An operator's ``routes.json`` holds, for each platform that was measured, one entry per shape: what the call looked like
(its route such as ``decode``, its dtype, further fields, and its size), which of the two was faster, and by how much.
``opgraft bench --route`` writes it; nothing is typed in. A call takes the choice of the entry of its route, dtype and fields
that is nearest in size (of two equally near, the smaller one). Without such an entry the own kernel runs.

The choice can be forced: ``with force("own")`` or ``force("native")``, or ``OPGRAFT_ROUTE=sdpa=native,embedding=own`` in
the environment. A call that is routed to native is counted like every other that is handed over, with its route.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import json
import math
import os
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

CHOICES = ("own", "native")
_forced: contextvars.ContextVar[str | None] = contextvars.ContextVar("opgraft_route", default=None)


@dataclass(frozen=True)
class Features:
    """What the routing table knows of a call.

    Attributes:
        route: the kind of call, as ``decode``, ``prefill``, ``gather``.
        dtype: as ``bfloat16``.
        fields: what else must be equal, as ``(("head_dim", 128),)``.
        size: how large it is, in a unit of the operator's; the nearest measured size (by ratio) decides.
    """

    route: str
    dtype: str
    fields: tuple[tuple[str, Any], ...]
    size: int

    def __str__(self) -> str:
        return ", ".join([self.route, self.dtype, *(f"{k} {v}" for k, v in self.fields)])


@contextlib.contextmanager
def force(choice: str | None) -> Iterator[None]:
    """Inside the block every routed operator takes ``choice`` (``own`` or ``native``); None asks the tables again.

    It holds for the calling thread (and tasks it starts). Autograd's backward threads follow the table: a backward has
    the route that its forward took.

    Raises:
        ValueError: another word.
    """
    if choice is not None and choice not in CHOICES:
        raise ValueError(f"a route is forced to one of {', '.join(CHOICES)}; got {choice!r}")
    token = _forced.set(choice)
    try:
        yield
    finally:
        _forced.reset(token)


@functools.cache
def _from_environment(text: str) -> dict[str, str]:
    forced = {}
    for item in filter(None, text.split(",")):
        name, _, choice = item.partition("=")
        if choice not in CHOICES:
            raise ValueError(f"OPGRAFT_ROUTE is OP=own or OP=native, comma separated; got {item!r}")
        forced[name.strip()] = choice
    return forced


def path(operator: str) -> pathlib.Path:
    """Where an operator's table lies."""
    from opgraft import ops

    return ops.folder(operator) / "routes.json"


@functools.cache
def table(operator: str, platform: str) -> dict[tuple, tuple[tuple[int, str], ...]]:
    """An operator's table for a platform: (route, dtype, fields) -> (size, choice) by size. Empty if nothing was measured."""
    file = path(operator)
    if not file.exists():
        return {}
    found: dict[tuple, list[tuple[int, str]]] = {}
    measured = json.loads(file.read_text(encoding="utf-8"))["platforms"].get(platform, {"entries": []})
    for entry in measured["entries"]:
        key = entry["route"], entry["dtype"], tuple(tuple(f) for f in entry["fields"])
        found.setdefault(key, []).append((entry["size"], entry["choice"]))
    return {key: tuple(sorted(entries)) for key, entries in found.items()}


def choose(operator: str, platform: str, features: Features) -> str:
    """``own`` or ``native`` for a call."""
    forced = _forced.get() or _from_environment(os.environ.get("OPGRAFT_ROUTE", "")).get(operator)
    if forced:
        return forced
    entries = table(operator, platform).get((features.route, features.dtype, features.fields))
    if not entries:
        return "own"
    size = math.log(max(features.size, 1))
    return min(entries, key=lambda entry: abs(math.log(max(entry[0], 1)) - size))[1]


def routed(operator: str, override, platform: str):
    """The override with the table asked after ``unsupported``; itself if it declares no features."""
    if override.features is None:
        return override
    unsupported, features = override.unsupported, override.features

    def unsupported_or_routed(*args, **kwargs) -> str | None:
        reason = unsupported(*args, **kwargs)
        if reason is not None:
            return reason
        call = features(*args, **kwargs)
        return f"routed to native: {call}" if choose(operator, platform, call) == "native" else None

    return dataclasses.replace(override, unsupported=unsupported_or_routed)
