"""Errors of our sdpa and embedding against float64, beside native's, on a real device.

    python -m opgraft.bench.accuracy [DEVICE]

Prefill from 512 to 8192, decode over 2k to 32k keys, GQA 8:1, head dims 64, 96, 128, 256, forward and backward; embedding forward
and backward. An error is the norm of the difference over the norm of the float64 result; ours may be at most 1.5 times
native's. Writes evidence/<platform>/accuracy.json; exit code 1 if one is larger.
"""

import itertools
import json
import multiprocessing
import os
import pathlib
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import opgraft
from opgraft import evidence, platforms

ALLOWED = 1.5
HEADS, GROUP = 8, 8


def wide(tensors):
    return [t.detach().double().requires_grad_() for t in tensors]


def attention(q, k, v, causal):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])


def exact_head(q, k, v, causal):
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril(), -torch.inf)
    return torch.softmax(scores, -1) @ v


def exact_attention(q, k, v, causal):
    """A head at a time, computed again in the backward: 8192 keys in float64 take half a gigabyte a head."""
    group = q.shape[1] // k.shape[1]
    heads = [
        checkpoint(exact_head, q[:, h], k[:, h // group], v[:, h // group], causal, use_reentrant=False)
        for h in range(q.shape[1])
    ]
    return torch.stack(heads, 1)


def with_gradients(function, tensors, upstream, *rest):
    out = function(*tensors, *rest)
    return [out.detach(), *torch.autograd.grad(out, tensors, upstream.to(out.dtype))]


def error(got, true):
    return ((got.double() - true).norm() / true.norm()).item(), (got.double() - true).abs().max().item()


def compare(name, function, exact, tensors, upstream, names, *rest):
    """One line a result: (name, our error, native's, their ratio)."""
    true = with_gradients(exact, wide(tensors), upstream, *rest)
    native = with_gradients(function, tensors, upstream, *rest)
    with opgraft.use(["sdpa", "embedding"], platform=PROFILE.name) as registrations:
        ours = with_gradients(function, tensors, upstream, *rest)
        assert sum(r.hits for r in registrations) == 1 and not any(r.handed_to_native for r in registrations)
    for what, o, n, t in zip(names, ours, native, true):
        (mine, most), (theirs, their_most) = error(o, t), error(n, t)
        yield {
            "case": name, "result": what, "error": mine, "native's": theirs, "ratio": mine / theirs if theirs else float(mine > 0),
            "largest": most, "native's largest": their_most,
        }  # fmt: skip


def attention_results(dim, gqa):
    for dtype in (torch.bfloat16, torch.float16):
        shapes = [(n, n) for n in (512, 2048, 8192)] + [(1, n) for n in (2048, 8192, 32768)]
        for queries, keys in shapes if dtype is torch.bfloat16 else shapes[1::3]:
            generator = torch.Generator(DEVICE).manual_seed(queries + keys + dim)
            shared = HEADS // GROUP if gqa else HEADS
            q, k, v, up = (
                torch.randn(1, heads, n, dim, generator=generator, device=DEVICE).to(dtype)
                for heads, n in ((HEADS, queries), (shared, keys), (shared, keys), (HEADS, queries))
            )
            q, k, v = (t.requires_grad_() for t in (q, k, v))
            name = f"sdpa {'decode' if queries == 1 else 'prefill, causal'} {keys}, head dim {dim}{', GQA 8:1' if gqa else ''}, {dtype}"
            yield from compare(
                name, attention, exact_attention, (q, k, v), up, ("out", "dq", "dk", "dv"), queries > 1
            )  # fmt: skip


def embedding_results():
    for dtype, most in itertools.product((torch.bfloat16, torch.float16, torch.float32), (32000, 100)):
        weight = torch.randn(32000, 1024, device=DEVICE).to(dtype).requires_grad_()
        ids = torch.randint(most, (16384,), device=DEVICE)
        up = torch.randn(16384, 1024, device=DEVICE).to(dtype)
        name = f"embedding 16384 ids of {most} rows, {dtype}"
        yield from compare(
            name, lambda w, i=ids: F.embedding(i, w), lambda w, i=ids: F.embedding(i, w), (weight,), up, ("out", "gradient")
        )  # fmt: skip


def part(argument) -> list[dict]:
    """One process's share: the time goes into compiling."""
    torch.set_num_threads(1)
    return list(attention_results(*argument) if argument else embedding_results())


def main() -> int:
    parts = [*itertools.product((64, 96, 128, 256), (False, True)), None]
    with ProcessPoolExecutor(len(parts), mp_context=multiprocessing.get_context("spawn")) as pool:
        lines = [line for lines in pool.map(part, parts) for line in lines]
    bad = [x for x in lines if not x["ratio"] <= ALLOWED]
    for x in sorted(lines, key=lambda x: -x["ratio"])[:12]:
        theirs = x["native's"]
        print(f"{x['case']}: {x['result']} error {x['error']:.3g}, native's {theirs:.3g}, ratio {x['ratio']:.2f}")
    path = pathlib.Path(os.environ.get("OUT", "evidence")) / PROFILE.name / "accuracy.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {"schema": "opgraft.accuracy/1", **evidence.environment(PROFILE), "allowed": ALLOWED, "results": lines}
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"{len(lines)} results, {len(bad)} with more than {ALLOWED} × native's error; the largest ratios are above; {path}")
    return 1 if bad else 0


os.environ["OPGRAFT_ROUTE"] = "own"
DEVICE = sys.argv[1] if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "cuda"
PROFILE: Any = platforms.profile_for_device(torch.device(DEVICE).type)

if __name__ == "__main__":
    sys.exit(main())
