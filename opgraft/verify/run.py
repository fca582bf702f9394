"""``opgraft verify``: run levels, show progress, print the matrix, write records."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from opgraft import catalogue, evidence
from opgraft.a1 import Composite, Gradient
from opgraft.evidence import LEVELS
from opgraft.platforms import Profile

from .engine_level import ENGINES, EngineLevel, run_ahead
from .levels import Level, Result, load_level, ready, run_check

#: The project's own records; the operators' REPORT.md are rendered from these, not from a trial elsewhere.
OWN_RECORDS = pathlib.Path("evidence")


def verify(
    names: Iterable[str] | None,
    platform: str,
    levels: Iterable[str] | None,
    folder: pathlib.Path,
    console: Console | None = None,
    engine: str | None = None,
) -> bool:
    """Run levels of operators on a platform; print, record and render what they gave.

    Args:
        names: operators; all if None.
        platform: the platform's name.
        levels: all three if None; with an engine, the framework level.
        folder: where records are written; into ``evidence``, the operators' reports are rendered too.
        console: where to print.
        engine: a real engine to run the framework level in (``vllm``), instead of the operators' own models.

    Returns:
        Whether every check passed.

    Raises:
        ValueError: unknown operator, level or engine. RuntimeError: the platform is not usable here.
    """
    if engine is not None and engine not in ENGINES:
        raise ValueError(f"unknown engine {engine!r}; engines: {', '.join(ENGINES)}")
    wanted = list(levels or (LEVELS if engine is None else ["framework"]))
    if engine is not None and wanted != ["framework"]:
        raise ValueError(f"--engine {engine} is for the framework level; got --level {' --level '.join(wanted)}")
    for level in wanted:
        if level not in LEVELS:
            raise ValueError(f"unknown level {level!r}; levels: {', '.join(LEVELS)}")
    chosen = list(names or catalogue.modules())
    for name in chosen:
        catalogue.load(name)
    profile = ready(platform)
    console = console or Console()
    kinds = evidence.environment(profile)
    simulated = ", [yellow]simulated[/]" if kinds["simulated"] else ""
    console.print(f"Platform [bold]{profile.name}[/]: {kinds['device']}{simulated}", highlight=False)
    console.print(f"Kernels: {kinds['kernels']}", highlight=False)
    outcome: dict[tuple[str, str], list[Result]] = {}
    with _own_kernels():
        if engine is not None:
            run_ahead([EngineLevel(catalogue.load(name).OPERATOR) for name in chosen], profile)
        for name in chosen:
            for level in wanted:
                loaded = load_level(name, level) if engine is None else EngineLevel(catalogue.load(name).OPERATOR)
                results = run_level(loaded, f"{name} · {engine or level}", profile, console)
                outcome[name, level] = results
                own = any(issubclass(o.gradient, (Gradient, Composite)) for o in catalogue.load(name).OPERATOR.overrides)
                evidence.write(evidence.record(name, level, profile, results, engine, own), folder)
    _print_matrix(console, chosen, wanted, outcome)
    failed = [(name, level, r) for (name, level), results in outcome.items() for r in results if not r.ok]
    for name, level, result in failed:
        console.print(f"[bold red]FAILED[/] {name} · {level} · {result.name}", highlight=False)
        console.print(f"  {result.error}\n  look at: {result.look_at}", highlight=False, markup=False)
    pages = evidence.render(folder, reports=folder == OWN_RECORDS)
    console.print(
        f"Records: {folder / profile.name}/   Pages: {_short(pages[0])}"
        + (f" and {len(pages) - 1} REPORT.md" if pages[1:] else ""),
        highlight=False,
        soft_wrap=True,
    )
    console.print(
        f"[bold red]{len(failed)} checks failed[/]"
        if failed
        else f"[bold green]all {sum(map(len, outcome.values()))} checks passed[/]"
    )
    return not failed


@contextlib.contextmanager
def _own_kernels() -> Iterator[None]:
    """What is proved is our kernel, also where the routing table prefers native: in every thread and process of a check."""
    before = os.environ.get("OPGRAFT_ROUTE")
    os.environ["OPGRAFT_ROUTE"] = before or "own"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OPGRAFT_ROUTE"]


def run_level(level: Level, title: str, profile: Profile, console: Console) -> list[Result]:
    """Run the checks of one level: a progress bar on a terminal, a line elsewhere."""
    checks = list(level.checks(profile))
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[now]}"),
    )
    results: list[Result] = []
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"{title:<24}", total=len(checks), now="")
        for check in checks:
            progress.update(task, now=check.name)
            results.append(run_check(check))
            progress.advance(task)
        progress.update(task, now=_failures(results))
    if not console.is_terminal:
        console.print(
            f"{title:<32} {len(results):4} checks  {sum(r.seconds for r in results):6.1f} s  {_failures(results)}",
            highlight=False,
        )
    return results


def _failures(results: list[Result]) -> str:
    bad = sum(not r.ok for r in results)
    return f"[red]{bad} failed[/]" if bad else ""


def _print_matrix(console: Console, names, levels, outcome) -> None:
    table = Table("operator", *levels, title="Proved")
    for name in names:
        cells = []
        for level in levels:
            results = outcome[name, level]
            bad = sum(not r.ok for r in results)
            if all("not exercised" in r.figures for r in results):
                cells.append("not exercised")
            else:
                cells.append(f"[red]{bad} of {len(results)} failed[/]" if bad else f"[green]{len(results)} passed[/]")
        table.add_row(name, *cells)
    console.print(table)


def _short(path: pathlib.Path) -> str:
    try:
        return str(path.relative_to(pathlib.Path.cwd()))
    except ValueError:
        return str(path)
