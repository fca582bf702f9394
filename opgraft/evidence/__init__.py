"""Records of what ran, and the pages rendered from them. Nothing in a page is typed in."""

from __future__ import annotations

import datetime
import functools
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import subprocess
from dataclasses import asdict
from typing import Any

import jinja2
import torch

import opgraft
from opgraft import catalogue, platforms, routing
from opgraft.platforms import Profile

SCHEMA = 1
#: The levels of proof, in their order.
LEVELS = ("kernel", "op", "framework")
#: Pages that follow from records do not change what a record was made from.
RENDERED = tuple(f":(exclude)**/{page}.md" for page in ("REPORT", "PLATFORM", "MERGE"))
#: The levels of records, in the order of the matrix: the three, and the third in each real engine.
COLUMNS = (*LEVELS, "framework (vllm)")


def versions() -> dict[str, str]:
    """Versions of what a result depends on."""
    import triton

    found = {"opgraft": opgraft.__version__, "torch": torch.__version__, "triton": triton.__version__}
    return {**found, "python": platform.python_version()}


@functools.cache
def commit() -> str:
    """The checkout's commit, with ``+changes`` if the tree differs from it; what ``OPGRAFT_COMMIT`` says, if it is set (for a
    machine that has a copy of the tree only)."""
    if given := os.environ.get("OPGRAFT_COMMIT"):
        return given
    here = pathlib.Path(__file__).parents[1]
    try:
        head = _git(here, "rev-parse", "--short=12", "HEAD")
        return head + ("+changes" if _git(here, "status", "--porcelain", "--", ".", "../pyproject.toml", *RENDERED) else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(folder: pathlib.Path, *args: str) -> str:
    return subprocess.run(["git", "-C", str(folder), *args], check=True, capture_output=True, text=True).stdout.strip()


def environment(profile: Profile) -> dict[str, Any]:
    """Where and with what a record was made."""
    status = platforms.probe(profile)
    device = platform.processor() or platform.machine()
    if profile.device_type != "cpu":
        device = torch.get_device_module(profile.device_type).get_device_name(0)
    return {
        "platform": profile.name,
        "device": device,
        "simulated": status.simulated,
        "kernels": kernels_ran(profile, status.simulated),
        "machine": f"{platform.system()} {platform.machine()}",
        "versions": versions(),
        "commit": commit(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def kernels_ran(profile: Profile, simulated: bool) -> str:
    """How the kernels of a platform are run, in words."""
    if profile.kernel_level == "torch":
        return "torch level"
    return "Triton level, interpreted on host memory" if simulated else "Triton level, compiled"


def record(
    operator: str, level: str, profile: Profile, results: list[Any], engine: str | None = None, own_gradient: bool = False
) -> dict[str, Any]:
    """The record of one level of one operator on one platform.

    Args:
        operator: its name.
        level: of :data:`LEVELS`.
        profile: the platform.
        results: of its checks, dataclasses with ``name``, ``ok``, ``seconds`` and what else is to be recorded.
        engine: the real engine it ran in, if any.
        own_gradient: whether the operator keeps its gradient by a derivative of its own.
    """
    where = environment(profile)
    if engine is not None:
        where["versions"][engine] = _engine_version(engine)
    return {
        "schema": SCHEMA,
        "operator": operator,
        "level": level if engine is None else f"{level} ({engine})",
        **where,
        **({"own gradient": True} if own_gradient else {}),
        "passed": sum(r.ok for r in results),
        "failed": sum(not r.ok for r in results),
        "seconds": round(sum(r.seconds for r in results), 3),
        "checks": [{k: v for k, v in asdict(r).items() if v not in ("", {})} for r in results],
    }


def _engine_version(engine: str) -> str:
    for distribution in (engine, f"{engine}-cpu"):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown"


def write(entry: dict[str, Any], folder: pathlib.Path) -> pathlib.Path:
    """Write a record to ``folder/<platform>/<operator>.<level>.json``; returns the path."""
    path = folder / entry["platform"] / f"{entry['operator']}.{file_name(entry['level'])}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(entry, indent=1) + "\n", encoding="utf-8")
    return path


def write_figures(entry: dict[str, Any], folder: pathlib.Path, name: str) -> pathlib.Path:
    """Write a record of measurements to ``folder/<platform>/<name>.json``; returns the path."""
    path = folder / entry["platform"] / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(entry, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def file_name(level: str) -> str:
    """A level as a file is named after it: ``framework (vllm)`` is ``framework-vllm``."""
    return re.sub(r"\W+", "-", level).strip("-")


def read(folder: pathlib.Path) -> list[dict[str, Any]]:
    """Every record of a level under a folder, in the order platform, operator, level."""
    found = [json.loads(p.read_text(encoding="utf-8")) for p in folder.glob("*/*.json")]
    entries = [e for e in found if e.get("schema") == SCHEMA and e.get("level") in COLUMNS]
    return sorted(entries, key=lambda e: (e["platform"], e["operator"], COLUMNS.index(e["level"])))


def render(folder: pathlib.Path, reports: bool = True) -> list[pathlib.Path]:
    """Render every page that follows from the records of a folder.

    Args:
        folder: of the records.
        reports: whether to write the REPORT.md of each operator with a record into its own folder.

    Returns:
        The pages: ``matrix.md`` and ``speed.md`` beside the records, then the reports, then PLATFORM.md and MERGE.md of operators with routes.
    """
    entries = read(folder)
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent), trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    pages = {folder / "matrix.md": templates.get_template("matrix.md.j2").render(table=matrix(entries), levels=COLUMNS)}
    figures = {name: _figures(folder, name) for name in ("host", "model")}
    if any(figures.values()):
        pages[folder / "speed.md"] = templates.get_template("speed.md.j2").render(**figures)
    for name in catalogue.modules() if reports else ():
        own = [e for e in entries if e["operator"] == name]
        if own:
            home = catalogue.folder(name)
            pages[home / "REPORT.md"] = templates.get_template("report.md.j2").render(
                operator=name, entries=own, file_name=file_name
            )
            if routing.path(name).exists():
                pages |= _binding_pages(name, own, templates)
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")
    return list(pages)


def _figures(folder: pathlib.Path, name: str) -> list[dict[str, Any]]:
    """Records of measurements of every platform (:func:`write_figures`)."""
    return [json.loads(p.read_text(encoding="utf-8")) for p in sorted(folder.glob(f"*/{name}.json"))]


def _binding_pages(name: str, entries: list[dict[str, Any]], templates: jinja2.Environment) -> dict[pathlib.Path, str]:
    """PLATFORM.md and MERGE.md of an operator with a routing table."""
    bindings: list[dict[str, Any]] = []
    for profile in platforms.profiles().values():
        own = [e for e in entries if e["platform"] == profile.name]
        how = "simulated" if any(e["simulated"] for e in own) else f"hardware: {own[0]['device']}" if own else "not run"
        bindings.append({"profile": profile, "entries": own, "how": how})
    routes = json.loads(routing.path(name).read_text(encoding="utf-8"))["platforms"]
    for there in routes.values():
        for entry in there["entries"]:
            entry["kind"] = f"{entry['route']} {entry['dtype']} {entry['fields']}"
    composite = any(e.get("own gradient") for e in entries)
    expected = max((sum(e["passed"] for e in row["entries"]) for row in bindings), default=0)
    given = {"operator": name, "bindings": bindings, "routes": routes, "composite": composite, "expected": expected}
    return {
        catalogue.folder(name) / page: templates.get_template(f"{page.lower()}.j2").render(**given)
        for page in ("PLATFORM.md", "MERGE.md")
    }


def matrix(entries: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, dict[str, Any]]]:
    """Records by (platform, operator), then by level."""
    table: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for entry in entries:
        table.setdefault((entry["platform"], entry["operator"]), {})[entry["level"]] = entry
    return table
