"""Two hundred random copies (permutations, ranks, sizes, offsets, dtypes) with copy_ and contiguous, ours beside native.

    python -m opgraft.bench.random_copies [DEVICE]

By device graph over several input sets, native and ours (what the routing table chooses) in turns. Values are compared bit for
bit. Writes evidence/<platform>/random_copies.json; says the least ratio to native and the geometric mean.
"""

import json
import math
import os
import pathlib
import random
import statistics
import sys
from typing import Any

import torch

import opgraft
from opgraft import evidence, platforms

CASES, SEED, ROUNDS = 200, 20261201, 5
DTYPES = (torch.int8, torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64, torch.bool)


def shape_of(generator):
    """2 to 6 dimensions, 2^10 to 2^25 elements together."""
    rank, target = generator.randint(2, 6), 2 ** generator.uniform(10, 25)
    weights = [generator.uniform(0.2, 1) for _ in range(rank)]
    return [max(1, round(target ** (w / sum(weights)))) for w in weights]


def make(generator):
    """(name, a function that makes the arguments, the call)."""
    shape, frm = shape_of(generator), generator.choice(DTYPES)
    order, offset = generator.sample(range(len(shape)), len(shape)), generator.choice((0, 0, 1, 3))
    padded = [n + generator.choice((0, 0, 1, 8)) for n in shape]
    copies = generator.random() < 0.5
    to = generator.choice(DTYPES) if copies and generator.random() < 0.5 else frm

    def source():
        whole = (torch.randn(math.prod(padded) + offset, device=DEVICE) * 50).to(frm)[offset:].view(padded)
        return whole[tuple(slice(n) for n in shape)].permute(order)

    def arguments():
        src = source()
        return (torch.empty(src.shape, dtype=to, device=DEVICE), src) if copies else (src,)

    name = f"{'copy_' if copies else 'contiguous'} {shape} of {padded} + {offset}, order {order}, {frm} to {to}"
    return name, arguments, torch.Tensor.copy_ if copies else torch.Tensor.contiguous


def captured(call, sets):
    for arguments in sets:
        out = call(*arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        for arguments in sets:
            call(*arguments)
    return graph, out


def replayed(graph, number):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    start.record()
    for _ in range(3):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e3 / 3 / number


def main() -> None:
    torch.cuda.set_stream(torch.cuda.Stream())
    generator = random.Random(SEED)
    results: list[dict[str, Any]] = []
    while len(results) < CASES:
        torch.manual_seed(len(results))
        name, arguments, call = make(generator)
        nbytes = sum(t.numel() * t.element_size() for t in arguments())
        sets = [arguments() for _ in range(min(16, max(2, (192 << 20) // max(nbytes, 1))))]
        if call is torch.Tensor.contiguous and sets[0][0].is_contiguous():
            continue
        native, want = captured(call, sets)
        with opgraft.use(["copy_", "contiguous"], platform=PROFILE.name) as registrations:
            ours, got = captured(call, sets)
            handed = sorted({reason for r in registrations for reason in r.handed_to_native})
        assert torch.equal(got, want), name
        times = [(replayed(native, len(sets)), replayed(ours, len(sets))) for _ in range(ROUNDS)]
        theirs, mine = (statistics.median(t) for t in zip(*times))
        results.append({"case": name, "native µs": theirs, "ours µs": mine, "ratio": theirs / mine, "handed to native": handed})
        del sets, native, ours, want, got
    ratios = [r["ratio"] for r in results]
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    for r in sorted(results, key=lambda r: r["ratio"])[:8]:
        print(
            f"{r['ratio']:.2f} × native ({r['native µs']:.1f} to {r['ours µs']:.1f} µs){' handed' if r['handed to native'] else ''}: {r['case']}"
        )
    own = sum(not r["handed to native"] for r in results)
    print(f"{CASES} copies, {own} by our kernel: least {min(ratios):.2f} × native, geometric mean {mean:.2f}")
    path = pathlib.Path(os.environ.get("OUT", "evidence")) / PROFILE.name / "random_copies.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "schema": "opgraft.random_copies/1",
        **evidence.environment(PROFILE),
        "seed": SEED,
        "geometric mean": mean,
        "results": results,
    }
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    PROFILE: Any = platforms.profile_for_device(torch.device(DEVICE).type)
    main()
