"""The pieces the three levels are made of: checks, their results, and running them."""

from __future__ import annotations

import importlib
import os
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from opgraft import catalogue, platforms, sim
from opgraft.platforms import Profile


@dataclass(frozen=True)
class Check:
    """One thing to prove.

    Attributes:
        name: short, unique in its level.
        run: proves it, or raises AssertionError. It may return figures to record.
        look_at: where to look if it fails.
    """

    name: str
    run: Callable[[], dict[str, Any] | None]
    look_at: str


@dataclass
class Result:
    """What a check gave: ``ok``, the error's text if not, seconds of wall time, figures it returned."""

    name: str
    ok: bool
    seconds: float
    error: str = ""
    look_at: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


class Level(Protocol):
    """A level of proof of one operator."""

    level: str

    def checks(self, profile: Profile) -> Iterator[Check]:
        """The checks for a platform."""


def load_level(operator: str, level: str) -> Level:
    """The level object that an operator's ``test/<level>_level.py`` declares."""
    return importlib.import_module(f"{catalogue.modules()[operator]}.test.{level}_level").LEVEL


def run_check(check: Check) -> Result:
    """Run one check. On the simulated device its red zones are checked afterwards."""
    start = time.perf_counter()
    try:
        figures = check.run()
        if sim.name():
            sim.check()
        return Result(check.name, True, time.perf_counter() - start, figures=figures or {})
    except Exception as error:
        text = str(error).strip() or type(error).__name__
        if not isinstance(error, (AssertionError, sim.MemoryFault)):
            frame = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {text} ({os.path.basename(frame.filename)}:{frame.lineno})"
        return Result(check.name, False, time.perf_counter() - start, text, check.look_at)


def test_profile() -> Profile:
    """The platform that the operators' tests run on: ``OPGRAFT_PLATFORM``, by default the simulated device.

    Raises:
        RuntimeError: it is not usable here, and why.
    """
    return ready(os.environ.get("OPGRAFT_PLATFORM", "sim"))


def ready(name: str) -> Profile:
    """A platform by name, usable: the simulated device is enabled if it is the one asked for.

    Raises:
        RuntimeError: unknown, or not usable here, and why.
    """
    known = platforms.profiles()
    if name not in known:
        raise RuntimeError(f"unknown platform {name!r}; known: {', '.join(known)}")
    if name == "sim" and sim.name() is None:
        sim.enable()
    status = platforms.probe(known[name])
    if not status.usable:
        raise RuntimeError(f"platform {name!r} is not usable here: {status.reason}")
    return known[name]


def prove(proof: Check) -> None:
    """A pytest test of one check. In an operator's test module it stands as ``test_kernel_level = prove`` beside ``LEVEL``;
    :mod:`opgraft.pytest_plugin` makes it a test for every check of that level."""
    result = run_check(proof)
    assert result.ok, f"{result.error}\nlook at: {result.look_at}"


def synchronize(profile: Profile) -> None:
    """Wait for the platform's device."""
    if profile.device_type != "cpu":
        torch.get_device_module(profile.device_type).synchronize()
