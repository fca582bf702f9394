"""A benchmark's record as a table in the terminal and as plots."""

from __future__ import annotations

import pathlib
from typing import Any

from rich.console import Console
from rich.table import Table

from .run import ratio


def table(record: dict[str, Any]) -> Table:
    """One line a case: times, ratios to native, fraction of the copy peak, host times."""
    peers = sorted({w for c in record["cases"] for w in c["ways"]} - {"native", "own", "routed", "handed"})
    shown = Table(
        title=f"{record['device']}, {record['platform']}: medians of {record['rounds']} rounds in one run; copy peak "
        f"{record['peak TB/s']:.3g} TB/s (bytes read and written)"
    )
    routed = any("device" in c["ways"].get("routed", {}) for c in record["cases"])
    heads = ["operator", "case", "native µs", "own µs", "spread", "× native", "of peak"]
    heads += [
        *(["routed ×"] if routed else []),
        *(f"{p} ×" for p in peers),
        "host native",
        "host own",
        *(f"host {p}" for p in peers),
    ]
    for head in heads:
        shown.add_column(head, justify="left" if head in ("operator", "case") else "right", no_wrap=head == "case")
    for case in record["cases"]:
        ways = case["ways"]
        own = ways["own"]
        if "device" not in own:
            shown.add_row(case["operator"], case["case"], _time(ways["native"]), f"[red]{own.get('error', 'did not run')}")
            continue
        device = own["device"]
        peak = case["bytes"] / device["median"] / 1e6 / record["peak TB/s"] if case["bytes"] else None
        shown.add_row(
            case["operator"], case["case"], _time(ways["native"]), _time(own),
            f"{(device['most'] - device['least']) / device['median']:.0%}", _number(ratio(case)), _number(peak),
            *([_number(ratio(case, "routed"))] if routed else []), *(_number(ratio(case, p)) for p in peers),
            _time(ways["native"], "host"), _time(own, "host"), *(_time(ways.get(p, {}), "host") for p in peers),
        )  # fmt: skip
    return shown


def _time(way: dict[str, Any], kind: str = "device") -> str:
    return f"{way[kind]['median']:.1f}" if kind in way else "–"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def plots(record: dict[str, Any], path: pathlib.Path) -> bool:
    """Draw the ratio to native by size and the fraction of the copy peak, a curve a group; False if matplotlib is missing."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    curves: dict[str, list[tuple[int, float, float]]] = {}
    for case in record["cases"]:
        found = ratio(case)
        if found is not None and case["bytes"]:
            fraction = case["bytes"] / case["ways"]["own"]["device"]["median"] / 1e6 / record["peak TB/s"]
            curves.setdefault(f"{case['operator']} {case['group']}", []).append((case["bytes"], found, fraction))
    figure, (left, right) = plt.subplots(1, 2, figsize=(16, 7))
    for name, points in curves.items():
        sizes, ratios, fractions = zip(*sorted(points))
        left.plot(sizes, ratios, marker="o", label=name)
        right.plot(sizes, fractions, marker="o", label=name)
    left.axhline(1, color="black", linewidth=0.8)
    left.set(xscale="log", xlabel="bytes moved", ylabel="× native, by device time", title=record["device"])
    right.set(
        xscale="log", xlabel="bytes moved", ylabel="fraction of the copy peak", title=f"peak {record['peak TB/s']:.3g} TB/s"
    )
    right.legend(fontsize=6, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return True


def console() -> Console:
    """Wide enough for the table where output goes to a file."""
    shown = Console()
    return shown if shown.is_terminal else Console(width=170)
