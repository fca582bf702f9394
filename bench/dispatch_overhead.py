"""What route A1 adds to a native call on the CPU: the path from the dispatcher to the kernel.

    python bench/dispatch_overhead.py

Three calls of a 16-element ``clone`` in turn, medians of rounds: native; a bare Python override that forwards to
native (what any Python override costs); and an operator of ours whose kernel forwards to native, so that the
difference is the path alone.
"""

import json
import statistics
import time

import torch

from opgraft.a1 import Operator, Override
from opgraft.evidence import versions

ROUNDS, CALLS = 21, 5000


def per_call(function) -> float:
    start = time.perf_counter()
    for _ in range(CALLS):
        function()
    return (time.perf_counter() - start) / CALLS * 1e6


def main() -> dict:
    torch.set_num_threads(1)
    x = torch.randn(16)
    native = torch.library.get_kernel("aten::clone", "CPU").call_boxed
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

    def bare():
        library = torch.library.Library("aten", "IMPL")
        library.impl("clone", lambda ks, self, memory_format=None: native(ks, self), "CPU", with_keyset=True)
        return library._destroy

    def ours():
        override = Override(
            "aten::clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor",
            kernels={"torch": lambda self, memory_format=None: native(keys, self)},
            unsupported=lambda self, memory_format=None: None,
        )
        return Operator("clone", (override,)).register_a1("CPU").remove

    ways = {"native": lambda: lambda: None, "bare override": bare, "opgraft": ours}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, install in ways.items():
            remove = install()
            per_call(x.clone)
            times[name].append(per_call(x.clone))
            remove()
    medians = {name: statistics.median(t) for name, t in times.items()}
    for name, median in medians.items():
        spread = max(times[name]) - min(times[name])
        print(
            f"{name:14} {median:6.2f} µs a call (spread {spread:.2f}), {median / medians['native']:5.2f} × native, + {median - medians['native']:.2f} µs"
        )
    return {"benchmark": "dispatch_overhead", "us per call": medians, "rounds": ROUNDS, "versions": versions()}


if __name__ == "__main__":
    print(json.dumps(main()))
