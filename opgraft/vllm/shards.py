"""Counting across processes: each process writes its counts to a file of its own, and a reader adds them up.

An engine runs its forward in worker processes that may be killed at any time, so a process writes its shard anew
every half second and at exit; a killed one loses at most the last second.
"""

from __future__ import annotations

import atexit
import json
import os
import pathlib
import socket
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

from opgraft.a1 import registrations

INTERVAL_SECONDS = 0.5


@dataclass
class Counts:
    """Counts of one operator, over processes: all calls, those under inference_mode, those handed to native by reason."""

    hits: int = 0
    inference_hits: int = 0
    handed_to_native: Counter[str] = field(default_factory=Counter)


class Writer:
    """Writes this process's shard until the process ends; a forked child writes one of its own, counting from the fork.

    Args:
        folder: where shards are written; it is made if it does not exist.
    """

    def __init__(self, folder: str | os.PathLike):
        self._folder = pathlib.Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._before: dict[str, dict] = {}
        self._start()
        atexit.register(self.write)
        os.register_at_fork(after_in_child=self._in_child)

    def _start(self) -> None:
        self._pid = os.getpid()
        threading.Thread(target=self._run, args=(self._pid,), name="opgraft-counts", daemon=True).start()

    def _in_child(self) -> None:
        self._before = _snapshot()
        self._start()

    def _run(self, pid: int) -> None:
        while self._pid == pid:
            time.sleep(INTERVAL_SECONDS)
            self.write()

    def write(self) -> None:
        """Write the shard now, as a whole or not at all."""
        counts = {}
        for name, now in _snapshot().items():
            before = self._before.get(name, {"hits": 0, "inference_hits": 0, "handed_to_native": {}})
            native = Counter(now["handed_to_native"])
            native.subtract(before["handed_to_native"])
            counts[name] = {
                "hits": now["hits"] - before["hits"],
                "inference_hits": now["inference_hits"] - before["inference_hits"],
                "handed_to_native": {reason: n for reason, n in native.items() if n},
            }
        shard = {"host": socket.gethostname(), "pid": os.getpid(), "command": sys.argv[:3], "operators": counts}
        path = self._folder / f"{shard['host']}-{shard['pid']}.json"
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(shard), encoding="utf-8")
        partial.replace(path)


def _snapshot() -> dict[str, dict]:
    return {
        r.operator.name: {"hits": r.hits, "inference_hits": r.inference_hits, "handed_to_native": r.handed_to_native}
        for r in registrations()
    }


def total(folder: str | os.PathLike) -> dict[str, Counts]:
    """The sum of every process's shard in a folder, by operator."""
    totals: dict[str, Counts] = {}
    for path in sorted(pathlib.Path(folder).glob("*.json")):
        for name, shard in json.loads(path.read_text(encoding="utf-8"))["operators"].items():
            counts = totals.setdefault(name, Counts())
            counts.hits += shard["hits"]
            counts.inference_hits += shard["inference_hits"]
            counts.handed_to_native.update(shard["handed_to_native"])
    return totals
