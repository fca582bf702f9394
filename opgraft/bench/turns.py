"""Ways of running the same thing, taking turns in one process: what drifts on the machine drifts for all."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator

import torch

import opgraft
from opgraft.platforms import Profile

#: What ``OPGRAFT_ROUTE`` is while the operators are registered, for each way but native: every call handed back, our kernels, the tables.
ROUTES = {"handed": "native", "own": "own", "routed": None}


@contextlib.contextmanager
def registered(way: str, names: list[str] | None, platform: str) -> Iterator[None]:
    """Operators (all if None) registered as a way says; nothing for ``native``."""
    if way == "native":
        yield
        return
    before = os.environ.pop("OPGRAFT_ROUTE", None)
    if ROUTES[way] is not None:
        os.environ["OPGRAFT_ROUTE"] = str(ROUTES[way])
    try:
        with opgraft.use(names, platform=platform):
            yield
    finally:
        os.environ.pop("OPGRAFT_ROUTE", None)
        if before is not None:
            os.environ["OPGRAFT_ROUTE"] = before


def per_call(function: Callable[[], object], calls: int, profile: Profile, wait: bool) -> float:
    """Seconds of one of ``calls`` calls, by the wall clock; with ``wait`` until the device has finished, else what the caller's thread
    spends."""
    synchronize(profile)
    start = time.perf_counter()
    for _ in range(calls):
        function()
    if wait:
        synchronize(profile)
    spent = (time.perf_counter() - start) / calls
    synchronize(profile)
    return spent


def synchronize(profile: Profile) -> None:
    """Wait for the platform's device."""
    if profile.device_type != "cpu":
        torch.get_device_module(profile.device_type).synchronize()


def summary(samples: list[float]) -> dict[str, float]:
    """Median, least and most, in µs."""
    return {name: round(of(samples) * 1e6, 4) for name, of in (("median", statistics.median), ("least", min), ("most", max))}


def times_native(ways: dict[str, dict[str, float]], way: str) -> float:
    """How many times native's time a way takes, by medians."""
    return ways[way]["median"] / ways["native"]["median"]
