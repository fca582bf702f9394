"""What the caller's thread spends on one call of each operator: native, handed back to native, and our kernel, in every mode
(``opgraft bench --host``).

The operators are measured as they ship, each by the call and the sample of its op level, alone and with all of them registered (which
is what a model has: a native kernel may call other overridden operators).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from rich.table import Table

from opgraft import call_path, catalogue, evidence, platforms
from opgraft.verify.levels import load_level, ready

from .turns import per_call, registered, summary, times_native

SCHEMA = "opgraft.host/1"
MODES: dict[str, Callable[[], Any]] = {
    "grad": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}
WAYS = ("native", "handed", "own")
SECONDS = 0.01  # of a sample


def run(names: list[str] | None, platform: str, rounds: int) -> dict[str, Any]:
    """Measure operators (all that can be registered, if None) on a platform.

    Returns:
        The record; times in µs.

    Raises:
        RuntimeError: the platform is not usable here, or is simulated. ValueError: an unknown operator.
    """
    profile = ready(platform)
    if platforms.probe(profile).simulated:
        raise RuntimeError(
            f"{platform} is simulated here: its native kernels are Python, so there is nothing to time; use cpu or a chip"
        )
    torch.set_num_threads(1)
    wanted = names or [o.name for o in catalogue.select(None)]
    found: dict[str, Any] = {}
    for name in wanted:
        level: Any = load_level(name, "op")
        if level.operator.refusal is not None:
            continue
        args = level.sample.arguments(profile.device)
        modes: dict[str, Any] = {}
        for mode, enter in MODES.items():
            ways: dict[str, Any] = {}
            for alone in (True, False):
                samples: dict[str, list[float]] = {way: [] for way in WAYS}
                with enter():
                    for _ in range(rounds):
                        for way in WAYS:
                            with registered(way, [name] if alone else None, platform):
                                samples[way].append(_sample(lambda: level.call(*args, **level.sample.kwargs), profile))
                ways["alone" if alone else "with all"] = {way: summary(times) for way, times in samples.items()}
            modes[mode] = ways
        found[name] = modes
    return {
        "schema": SCHEMA,
        **evidence.environment(profile),
        "call path": call_path.state().way,
        "rounds": rounds,
        "operators": found,
    }


def _sample(call: Callable[[], object], profile: platforms.Profile) -> float:
    for _ in range(3):
        call()  # decides, compiles
    once = per_call(call, 10, profile, wait=False)
    return per_call(call, max(10, min(5000, int(SECONDS / max(once, 1e-7)))), profile, wait=False)


def table(record: dict[str, Any]) -> Table:
    """A line for each operator and mode, with all operators registered."""
    shown = Table(
        title=f"{record['platform']} ({record['device']}), {record['call path']} call path: µs of host time a call, medians"
    )
    for head in ("operator", "mode", "native", "handed", "×", "+", "own", "×"):
        shown.add_column(head, justify="left" if head in ("operator", "mode") else "right")
    for name, modes in record["operators"].items():
        for mode, registered_with in modes.items():
            ways = registered_with["with all"]
            native, handed, own = (ways[way]["median"] for way in WAYS)
            shown.add_row(
                name, mode, f"{native:.2f}", f"{handed:.2f}", f"{times_native(ways, 'handed'):.2f}", f"{handed - native:.2f}",
                f"{own:.2f}", f"{times_native(ways, 'own'):.2f}",
            )  # fmt: skip
    return shown
