"""What every operator's ``example.py`` does: the three levels and a comparison with native, on one platform."""

from __future__ import annotations

import sys
import time

import torch
from rich.console import Console

from opgraft import platforms
from opgraft.evidence import LEVELS

from .compare import assert_same
from .levels import ready, synchronize
from .run import load_level, run_level


def main(operator: str, argv: list[str] | None = None) -> int:
    """Run an operator's example.

    Args:
        operator: its name.
        argv: command line; the first argument is the platform, ``sim`` if there is none.

    Returns:
        The exit code: 0 if everything passed, 1 if a check failed, 2 if the platform is not usable here.
    """
    argv = sys.argv if argv is None else argv
    console = Console()
    try:
        profile = ready(argv[1] if len(argv) > 1 else "sim")
    except RuntimeError as error:
        console.print(f"{operator}: {error}", soft_wrap=True, highlight=False)
        return 2
    simulated = " (simulated)" if platforms.probe(profile).simulated else ""
    console.print(f"{operator} on {profile.name}{simulated}", highlight=False)
    good = True
    for name in LEVELS:
        results = run_level(load_level(operator, name), f"{operator} · {name}", profile, console)
        for result in results:
            if not result.ok:
                good = False
                console.print(
                    f"FAILED {name} · {result.name}: {result.error}\n  look at: {result.look_at}", markup=False, highlight=False
                )
    good = _native_comparison(operator, profile, console) and good
    console.print("[green]everything passed[/]" if good else "[red]not everything passed[/]")
    return 0 if good else 1


def _native_comparison(operator: str, profile: platforms.Profile, console: Console, calls: int = 50) -> bool:
    level = load_level(operator, "op")

    def run():
        args = level.sample.arguments(profile.device)
        torch.manual_seed(0)
        result = level.call(*args, **level.sample.kwargs)
        start = time.perf_counter()
        for _ in range(calls):
            level.call(*args, **level.sample.kwargs)
        synchronize(profile)
        return result, (time.perf_counter() - start) / calls * 1e6

    native, native_us = run()
    if level.operator.refusal is not None:
        console.print(f"native comparison: {operator} cannot be registered ({level.operator.refusal})", highlight=False)
        return True
    with level.registered(profile) as registration:
        ours, our_us = run()
    try:
        assert_same(
            ours,
            torch.utils._pytree.tree_map(lambda r: r.cpu() if isinstance(r, torch.Tensor) else r, native),
            operator,
            level.exact,
        )
    except AssertionError as error:
        console.print(f"native comparison: [red]differs[/]: {error}", highlight=False)
        return False
    console.print(
        f"native comparison on {profile.device}: equal; {registration.hits} hits, {our_us:.1f} µs a call here, native {native_us:.1f} µs",
        highlight=False,
    )
    return True
