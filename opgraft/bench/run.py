"""Running cases in turn over several ways, and what follows: the record, the table, the comparison with a baseline."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
from typing import Any

from opgraft import bench, catalogue, evidence, platforms
from opgraft.verify.levels import ready

SCHEMA = "opgraft.bench/1"
ROUNDS = 7
#: On a CPU only cases up to this size run: they are there for the host's time.
CPU_BYTES, CPU_FLOPS = 1 << 24, 1 << 30
#: How much worse than its baseline a ratio to native may be before it warns, and before it fails.
WARN, FAIL = 0.8, 0.7


class Remote:
    """A worker process (:mod:`opgraft.bench.worker`); one that a case killed is started again for the next."""

    def __init__(self, platform: str, way: str, core: int | None = None):
        self.platform, self.way, self.core = platform, way, core
        self._start()

    def _start(self) -> None:
        command = [sys.executable, "-W", "ignore", "-m", "opgraft.bench.worker", self.platform, self.way]
        command += [] if self.core is None else [str(self.core)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request: Any) -> None:
        """Send a request; :meth:`answer` waits for its answer."""
        if self.process.poll() is not None:
            self._start()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()

    def answer(self) -> dict:
        """``{"ok": …}`` or ``{"error": …}``, also if the process has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            return {"error": f"its process ended with code {self.process.wait()}; its output is above"}
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()


def selected(names: list[str] | None) -> list[tuple[str, bench.Case]]:
    """(operator, case) of the named operators, or of all.

    Raises:
        ValueError: an unknown operator, or one without cases.
    """
    for name in names or ():
        catalogue.load(name)
    found = [(name, case) for name in names or catalogue.modules() for case in bench.cases(name)]
    if bare := [n for n in names or () if not bench.cases(n)]:
        raise ValueError(f"no benchmark: {', '.join(bare)} (a bench.py with CASES in the operator's folder declares one)")
    return found


def matches(match: str, operator: str, case: str) -> bool:
    """Whether a regular expression is found in a case's name, as ``copy_, bf16 2^27``."""
    return re.search(match, f"{operator}, {case}") is not None


def _compile_ahead(platform: str, chosen: list[tuple[str, bench.Case]]) -> None:
    """Fill Triton's cache from many processes, so that no measuring process waits for the compiler."""
    remotes = [Remote(platform, "own") for _ in range(min(len(chosen), os.cpu_count() or 1, 12))]
    for i, remote in enumerate(remotes):
        for name, case in chosen[i :: len(remotes)]:
            remote.ask(do="prepare", operator=name, name=case.name, compile_only=True)
            remote.ask(do="drop")
    for i, remote in enumerate(remotes):
        for _ in chosen[i :: len(remotes)]:
            remote.answer(), remote.answer()
        remote.close()


def _measure(remotes: list[Remote], name: str, case: bench.Case, rounds: int) -> dict[str, Any]:
    ways: dict[str, Any] = {}
    for remote in remotes:
        remote.ask(do="prepare", operator=name, name=case.name)
    ready_ones = []
    for remote in remotes:
        answer = remote.answer()
        if "ok" in answer:
            ready_ones.append(remote)
            ways[remote.way] = {**answer["ok"], "samples": []}
        else:
            ways[remote.way] = answer
    for number in range(rounds):
        turn = number % max(len(ready_ones), 1)
        for remote in ready_ones[turn:] + ready_ones[:turn]:
            remote.ask(do="sample")
            answer = remote.answer()
            if "ok" in answer and "samples" in ways[remote.way]:
                ways[remote.way]["samples"].append(answer["ok"])
            else:
                ways[remote.way] = {"error": answer.get("error", "an earlier sample failed")}
    for remote in remotes:
        remote.ask(do="drop")
        remote.answer()
    for way in ways.values():
        if samples := way.pop("samples", None):
            for kind in samples[0]:
                times = sorted(s[kind] for s in samples)
                way[kind] = {"median": statistics.median(times), "least": times[0], "most": times[-1]}
    return {"operator": name, "case": case.name, "group": case.group or case.name, "bytes": case.nbytes, "ways": ways}


def run(
    names: list[str] | None,
    platform: str,
    peers: tuple[str, ...] = (),
    rounds: int = ROUNDS,
    route_only: bool = False,
    match: str = "",
) -> dict[str, Any]:
    """Measure the cases of operators on a platform.

    Args:
        names: operators; None is all that declare cases.
        platform: a real one; the simulated device has no speed.
        peers: of ``flaggems``.
        rounds: how often the ways take turns.
        route_only: only the cases that routing is decided by, without the routed way.
        match: a regular expression; only the cases where it is found in "operator, case".

    Returns:
        The record; times in µs.

    Raises:
        RuntimeError: the platform is not usable here, or is simulated.
        ValueError: unknown operators or peers.
    """
    profile = ready(platform)
    if platforms.probe(profile).simulated:
        raise RuntimeError(
            f"{platform} is simulated here: its kernels are interpreted, so there is nothing to time; use cpu or a chip"
        )
    chosen = [(n, c) for n, c in selected(names) if (c.route or not route_only) and matches(match, n, c.name)]
    if not chosen:
        raise ValueError(f"no case matches {match!r}; a case is matched as in 'copy_, bf16 2^27'")
    if profile.device_type == "cpu":
        chosen = [(n, c) for n, c in chosen if c.nbytes <= CPU_BYTES and c.flops <= CPU_FLOPS]
    if unknown := set(peers) - set(bench.WAYS):
        raise ValueError(f"unknown peer(s) {', '.join(sorted(unknown))}; known: flaggems")
    if profile.kernel_level == "triton":
        _compile_ahead(platform, chosen)
    ways = ["native", "own", "handed" if route_only else "routed", *(p for p in peers if p not in bench.WAYS[:4])]
    # All on one core, since they take turns: on the H200's host, cores differed by a quarter for the same code.
    core = max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    remotes = [Remote(platform, way, core) for way in ways]
    measured: list[dict[str, Any]] = []
    peaks: list[float] = []
    try:
        for i, (name, case) in enumerate(chosen):
            if i % 25 == 0:
                remotes[0].ask(do="peak")
                peaks += filter(None, [remotes[0].answer().get("ok")])
            measured.append(_measure(remotes, name, case, rounds))
    finally:
        for remote in remotes:
            remote.close()
    where = {**evidence.environment(profile), "driver": _driver() if profile.device_type == "cuda" else None}
    return {
        "schema": SCHEMA,
        **where,
        "rounds": rounds,
        "peak TB/s": statistics.median(peaks) if peaks else float("nan"),
        "cases": measured,
    }


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[0].strip()
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def ratio(case: dict[str, Any], way: str = "own", kind: str = "device") -> float | None:
    """How many times faster than native a way is; None if one of the two did not run."""
    ways = case["ways"]
    if way not in ways or kind not in ways[way] or kind not in ways["native"]:
        return None
    return ways["native"][kind]["median"] / ways[way][kind]["median"]


def wait_ratio(case: dict[str, Any]) -> float | None:
    """How many times less a caller waits for own's result than for native's through the override: the longer of the device's
    and the host's time. None if one of the ways did not run."""
    ways = case["ways"]
    if ratio(case) is None or "host" not in ways.get("handed", {}):
        return None
    handed = max(ways["native"]["device"]["median"], ways["handed"]["host"]["median"])
    return handed / max(ways["own"]["device"]["median"], ways["own"]["host"]["median"])


def compare(record: dict[str, Any], baseline: dict[str, Any], match: str = "") -> tuple[list[str], list[str]]:
    """(warnings, failures): cases whose ratio to native is worse than in a baseline by over 20 %, over 30 %; a case that
    is missing or did not run is a failure. ``match`` as in :func:`run`."""
    warnings, failures = [], []
    now = {(c["operator"], c["case"]): c for c in record["cases"]}
    measured_operators = {c["operator"] for c in record["cases"]}
    for old in baseline["cases"]:
        if old["operator"] not in measured_operators or not matches(match, old["operator"], old["case"]):
            continue
        name = f"{old['operator']}, {old['case']}"
        new = now.get((old["operator"], old["case"]))
        for kind in ("device", "host"):
            was = ratio(old, "own", kind)
            if was is None:
                continue
            found = ratio(new, "own", kind) if new else None
            if found is None:
                failures.append(f"{name}: in the baseline, but did not run now")
                break
            text = f"{name}: {kind} time {found:.2f} × native, in the baseline {was:.2f}"
            if found < FAIL * was:
                failures.append(text)
            elif found < WARN * was:
                warnings.append(text)
    return warnings, failures


def write(record: dict[str, Any], folder: pathlib.Path, name: str = "bench") -> pathlib.Path:
    """Write a record to ``folder/<platform>/<name>.json``; returns the path."""
    path = folder / record["platform"] / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    rest = {k: v for k, v in record.items() if k != "cases"}
    cases = ",\n".join("  " + json.dumps(case, ensure_ascii=False) for case in record["cases"])  # a line each
    path.write_text(json.dumps(rest, indent=1)[:-2] + f',\n "cases": [\n{cases}\n ]\n}}\n', encoding="utf-8")
    return path
