"""One way of running cases, in a process of its own; it answers JSON lines on standard output (:mod:`opgraft.bench.run`)."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import statistics
import sys
import time
from typing import Any

import torch

from opgraft import bench, routing
from opgraft.verify.levels import ready

from .turns import registered

CACHE_BYTES = 192 << 20  # three times an H200's L2: input sets rotate over at least this much
SAMPLE_SECONDS = 0.01


class Worker:
    """Prepares cases and takes samples of them on one platform."""

    def __init__(self, platform: str, way: str):
        self.profile, self.way = ready(platform), way
        self.on_device = self.profile.device_type != "cpu"
        self.stack = contextlib.ExitStack()
        self.sets: list[tuple] = []
        self.graph: Any = None
        if self.on_device:
            # One stream for everything: a backward runs on its forward's stream, and capture is refused on the default one.
            self.device = torch.get_device_module(self.profile.device_type)
            self.device.set_stream(self.device.Stream())
        else:
            torch.set_num_threads(1)  # what is compared there is the host's time
        if way == "flaggems":
            import flag_gems

            flag_gems.enable()

    def _synchronize(self) -> None:
        if self.on_device:
            self.device.synchronize()

    def prepare(self, operator: str, name: str, compile_only: bool = False) -> dict:
        """Make the input sets, run each once, capture them in a graph; says what routing saw and what memory was used."""
        self.case = case = next(c for c in bench.cases(operator) if c.name == name)
        if self.way in ("own", "routed", "handed"):
            self.stack.enter_context(registered(self.way, [operator], self.profile.name))
        self.call = case.call
        if self.way == "flaggems" and case.peer:
            module, _, function = case.peer.partition(":")
            self.call = getattr(importlib.import_module(module), function)
        rotating = 4 if case.flops else min(32, max(2, -(-CACHE_BYTES // max(case.nbytes, 1))))
        number = 1 if compile_only or not self.on_device else rotating
        self.sets = [case.make(self.profile.device) for _ in range(number)]
        with routing.observe() as seen:
            out = self.call(*self.sets[0])
        self._synchronize()
        answer: dict = {"features": [(o, f.route, routing.dtype_name(f.dtype), f.fields, f.size) for o, f, _ in seen]}
        if compile_only:
            return answer
        del out
        answer["workspace bytes"] = self._workspace()
        for arguments in self.sets:
            self.call(*arguments)
        self.host_us = self._host(10)
        make_graph = self.profile.device_graph()
        if make_graph is not None and case.graph and self.way != "handed":
            self.graph = make_graph()
            with self.device.graph(self.graph, stream=self.device.current_stream()):
                for arguments in self.sets:
                    self.call(*arguments)
            self.graph.replay()
        self._synchronize()
        return answer

    def _workspace(self) -> int | None:
        """Bytes that a call allocates beyond its results; None where the device does not say."""
        if not self.on_device:
            return None
        self._synchronize()
        before = self.device.memory_allocated()
        self.device.reset_peak_memory_stats()
        result = self.call(*self.sets[-1])
        self._synchronize()
        peak, kept = self.device.max_memory_allocated(), self.device.memory_allocated()
        del result
        return peak - max(kept, before)

    def _host(self, calls: int) -> float:
        """µs that the caller's thread spends on one call."""
        sets, call, number = self.sets, self.call, len(self.sets)
        self._synchronize()
        start = time.perf_counter()
        for i in range(calls):
            call(*sets[i % number])
        spent = time.perf_counter() - start
        self._synchronize()
        return spent / calls * 1e6

    def sample(self) -> dict[str, float]:
        """µs a call: ``device`` (by graph replay; on a CPU the wall clock), ``events`` (one by one, between device events),
        ``host`` (the caller's thread)."""
        if not self.on_device:
            calls = max(3, min(2000, int(SAMPLE_SECONDS / (self.host_us * 1e-6))))
            spent = self._host(calls)
            return {"device": spent, "host": spent}
        if self.way == "handed":
            return {"host": self._host(50)}
        events = self._events()
        found = {"events": events, "host": self._host(max(20, min(200, int(SAMPLE_SECONDS / (events * 1e-6)))))}
        found["device"] = self._replay() if self.graph is not None else events
        return found

    def _replay(self) -> float:
        start, end = (self.device.Event(enable_timing=True) for _ in range(2))
        start.record()
        self.graph.replay()
        end.record()
        self._synchronize()
        once = start.elapsed_time(end) * 1e-3
        times = max(2, min(200, int(SAMPLE_SECONDS / max(once, 1e-6))))
        start.record()
        for _ in range(times):
            self.graph.replay()
        end.record()
        self._synchronize()
        return start.elapsed_time(end) * 1e3 / times / len(self.sets)

    def _events(self, calls: int = 16) -> float:
        pairs = [tuple(self.device.Event(enable_timing=True) for _ in range(2)) for _ in range(calls)]
        self._synchronize()
        if hasattr(self.device, "_sleep"):  # cycles, at about 2 GHz: the host runs ahead meanwhile
            self.device._sleep(int(self.host_us * 2 * calls * 2000))
        for i, (start, end) in enumerate(pairs):
            start.record()
            self.call(*self.sets[i % len(self.sets)])
            end.record()
        self._synchronize()
        return statistics.median(start.elapsed_time(end) * 1e3 for start, end in pairs)

    def drop(self) -> None:
        """Forget the case and its memory."""
        self.graph, self.sets = None, []
        self.stack.close()
        self._synchronize()
        if self.on_device:
            self.device.empty_cache()

    def peak(self) -> float:
        """TB/s of a large copy within the device, counting bytes read and written."""
        if not self.on_device:
            source = torch.empty(1 << 26, dtype=torch.uint8).random_()
            target = torch.empty_like(source)
            best = min(self._timed(lambda: target.copy_(source)) for _ in range(5))
            return 2 * source.numel() / best / 1e12
        source = torch.randn(1 << 28, device=self.profile.device)
        target = torch.empty_like(source)
        target.copy_(source)
        times = []
        for _ in range(10):
            start, end = (self.device.Event(enable_timing=True) for _ in range(2))
            start.record()
            target.copy_(source)
            end.record()
            self._synchronize()
            times.append(start.elapsed_time(end) * 1e-3)
        return 2 * source.numel() * 4 / statistics.median(times) / 1e12

    def _timed(self, function) -> float:
        start = time.perf_counter()
        function()
        return time.perf_counter() - start


def main(platform: str, way: str, core: str | None = None) -> None:
    """Answer requests until standard input ends, on one core if it is named."""
    if core is not None:
        os.sched_setaffinity(0, {int(core)})
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print does not mix with the answers
    worker = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            worker = worker or Worker(platform, way)
            answer = getattr(worker, request.pop("do"))(**request)
            answers.write(json.dumps({"ok": answer}) + "\n")
        except Exception as error:  # noqa: BLE001 - the parent reports it beside the case
            if worker is not None:
                with contextlib.suppress(Exception):
                    worker.drop()
            first = (str(error).strip().splitlines() or [""])[0][:200]
            answers.write(json.dumps({"error": f"{type(error).__name__}: {first}"}) + "\n")
            if "CUDA error" in first:
                sys.exit(f"{first}: the device's context is lost, so this process ends")


if __name__ == "__main__":
    main(*sys.argv[1:])
