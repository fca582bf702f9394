"""Routing: for each call, the operator's own kernel or native, by a table that a benchmark wrote.

An operator's ``routes.json`` holds, for each platform that was measured, one entry per shape: what the call looked like
(its route such as ``decode``, its dtype, further fields, and its size), which of the two was faster, and by how much.
``opgraft bench --route`` writes it; nothing is typed in. A call takes the choice of the entry of its route, dtype and fields
that is nearest in size (of two equally near, the smaller one). On a platform that was measured, a call without such an
entry goes to native, so that every choice of the own kernel is backed by a measurement; on one that was not, the own
kernel runs.

The choice can be forced, for operators without a table too: ``with force("own")`` or ``force("native")``, or in the environment
``OPGRAFT_ROUTE=own`` (every operator) or ``OPGRAFT_ROUTE=sdpa=native,embedding=own``, read when the operator is registered. A call that
is routed to native is counted like every other that is handed over, with its route.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from opgraft import call_path, catalogue

CHOICES = ("own", "native")
#: The lists of the :func:`observe` blocks that are active.
observed: list[list[tuple[str, Features, str]]] = []


class Features(NamedTuple):
    """What the routing table knows of a call.

    Attributes:
        route: the kind of call, as ``decode``, ``prefill``, ``gather``.
        dtype: of the data; None for a kernel that only moves bits.
        fields: what else must be equal, as ``(("head_dim", 128),)``.
        size: how large it is, in a unit of the operator's; the nearest measured size (by ratio) decides.
    """

    route: str
    dtype: torch.dtype | None
    fields: tuple[tuple[str, Any], ...]
    size: int

    def __str__(self) -> str:
        named = [self.route, *([dtype_name(self.dtype)] if self.dtype else []), *(f"{k} {v}" for k, v in self.fields)]
        return ", ".join(named)


def dtype_name(dtype: torch.dtype | None) -> str:
    """``bfloat16``; empty for None."""
    return str(dtype).removeprefix("torch.") if dtype else ""


@contextlib.contextmanager
def force(choice: str | None) -> Iterator[None]:
    """Inside the block every routed operator takes ``choice`` (``own`` or ``native``); None asks the tables again.

    It holds for the calling thread, as PyTorch's own modes do. Autograd's backward threads follow the table: a backward has
    the route that its forward took.

    Raises:
        ValueError: another word.
    """
    if choice is not None and choice not in CHOICES:
        raise ValueError(f"a route is forced to one of {', '.join(CHOICES)}; got {choice!r}")
    before = call_path.set_forced(0 if choice is None else 1 + CHOICES.index(choice))
    try:
        yield
    finally:
        call_path.set_forced(before)


def forced() -> str | None:
    """The choice that :func:`force` makes for this thread, or None."""
    return (None, *CHOICES)[call_path.forced()]


@contextlib.contextmanager
def observe() -> Iterator[list[tuple[str, Features, str]]]:
    """What is asked of the tables inside the block, in every thread: (operator, features, choice)."""
    seen: list[tuple[str, Features, str]] = []
    observed.append(seen)
    try:
        with call_path.deciding_anew():
            yield seen
    finally:
        observed.remove(seen)


@functools.cache
def _from_environment(text: str) -> dict[str, str]:
    found = {}
    for item in filter(None, text.split(",")):
        name, _, choice = item.rpartition("=")
        if choice not in CHOICES:
            raise ValueError(f"OPGRAFT_ROUTE is own, native, OP=own or OP=native, comma separated; got {item!r}")
        found[name.strip()] = choice
    return found


def path(operator: str) -> pathlib.Path:
    """Where an operator's table lies."""
    return catalogue.folder(operator) / "routes.json"


@functools.cache
def table(operator: str, platform: str) -> dict[tuple, tuple[tuple[int, str], ...]]:
    """An operator's table for a platform: (route, dtype, fields) -> (size, choice) by size. Empty if nothing was measured."""
    file = path(operator)
    if not file.exists():
        return {}
    found: dict[tuple, list[tuple[int, str]]] = {}
    measured = json.loads(file.read_text(encoding="utf-8"))["platforms"].get(platform, {"entries": []})
    for entry in measured["entries"]:
        dtype = getattr(torch, entry["dtype"]) if entry["dtype"] else None
        key = entry["route"], dtype, tuple(tuple(f) for f in entry["fields"])
        found.setdefault(key, []).append((entry["size"], entry["choice"]))
    return {key: tuple(sorted(entries)) for key, entries in found.items()}


@functools.lru_cache(maxsize=1 << 14)
def _by_table(operator: str, platform: str, features: Features) -> str:
    whole = table(operator, platform)
    entries = whole.get(features[:3])
    if not entries:
        return "native" if whole else "own"
    size = math.log(max(features.size, 1))
    return min(entries, key=lambda entry: abs(math.log(max(entry[0], 1)) - size))[1]


@functools.lru_cache(maxsize=1 << 14)
def _reason(features: Features) -> str:
    return f"routed to native: {features}"


def from_environment(operator: str) -> str | None:
    """What ``OPGRAFT_ROUTE`` forces for an operator now, if anything."""
    everywhere = _from_environment(os.environ.get("OPGRAFT_ROUTE", ""))
    return everywhere.get(operator) or everywhere.get("")


def _without_symbols(features: Features) -> Features:
    """Sizes that are symbols (``torch.compile`` with dynamic shapes) as the numbers they stand for in the example that is traced."""
    size = _number(features.size)
    if size is features.size and not any(isinstance(value, torch.SymInt) for _, value in features.fields):
        return features
    return features._replace(size=size, fields=tuple((name, _number(value)) for name, value in features.fields))


def _number(value: Any) -> Any:
    return (value.node.hint or 0) if isinstance(value, torch.SymInt) else value


def chooser(table_of: str, platform: str, otherwise: str | None) -> Callable[[Features | None], str | None]:
    """A function of a call's features (None where an operator has no table) that answers why native runs, None for the own kernel.

    Args:
        table_of: the operator whose table is asked.
        platform: the platform's name.
        otherwise: the choice that the environment forces where :func:`force` does not.
    """

    def choose(features: Features | None) -> str | None:
        if features is None:
            return "routed to native" if (forced() or otherwise) == "native" else None
        features = _without_symbols(features)
        choice = forced() or otherwise or _by_table(table_of, platform, features)
        for seen in observed:
            seen.append((table_of, features, choice))
        return _reason(features) if choice == "native" else None

    return choose
