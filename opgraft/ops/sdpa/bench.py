"""sdpa: prefill and decode by length, head dim, mask and sharing of heads; forward alone, and with the backward."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F

from opgraft.bench import Case
from opgraft.bench.inputs import randn, short

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
HEADS, GROUP = 16, 8


def _attention(q, k, v, mask, dropout_p, causal, training):
    out = F.scaled_dot_product_attention(q, k, v, mask, dropout_p, causal, enable_gqa=k.shape[1] != q.shape[1])
    return torch.autograd.grad(out, (q, k, v), out.detach()) if training else out


def _case(queries: int, keys: int, dim: int, kind: str, gqa: bool, dtype: torch.dtype = BF16, training: bool = False) -> Case:
    batch = max(1, 4096 // queries) if queries > 1 else 8

    def make(device: str) -> tuple:
        shared = HEADS // GROUP if gqa else HEADS
        q = randn((batch, HEADS, queries, dim), dtype, device, training)
        k, v = (randn((batch, shared, keys, dim), dtype, device, training) for _ in range(2))
        mask = torch.rand(batch, 1, queries, keys, device=device) > 0.3 if kind == "masked" else None
        return q, k, v, mask, 0.1 if kind == "dropout" else 0.0, kind == "causal", training

    what = "decode" if queries == 1 else "training" if training else "prefill"
    length = keys if queries == 1 else queries
    group = f"{what} {kind} d{dim}{' GQA' if gqa else ''} {short(dtype)}"
    shared = HEADS // GROUP if gqa else HEADS
    # Decoding reads each key and value once; elsewhere arithmetic is the limit.
    nbytes = 2 * batch * shared * keys * dim * dtype.itemsize if queries == 1 else 0
    flops = (
        0 if nbytes else 4 * batch * HEADS * queries * keys * dim * (3.5 if training else 1) // (2 if kind == "causal" else 1)
    )
    return Case(f"{group} {length}", make, _attention, nbytes, int(flops), group)


DIMS, LENGTHS, BOTH = (64, 96, 128, 256), (512, 2048, 8192), (False, True)
CASES = [
    *(_case(n, n, d, "causal", g) for d, n, g in itertools.product(DIMS, LENGTHS, BOTH)),
    *(_case(16, 16, d, "causal", False) for d in (64, 128)),
    *(_case(n, n, d, "plain", False) for d, n in itertools.product((64, 128), LENGTHS)),
    *(_case(n, n, d, "masked", False) for d, n in itertools.product((64, 128), (512, 2048))),
    *(_case(1, n, d, "plain", g) for d, n, g in itertools.product(DIMS, (2048, 8192, 32768), BOTH)),
    *(_case(n, n, d, "causal", g, training=True) for d, n, g in itertools.product(DIMS, LENGTHS, BOTH)),
    *(_case(n, n, d, "plain", False, training=True) for d, n in itertools.product((64, 128), (512, 2048))),
    *(_case(n, n, d, "masked", False, training=True) for d, n in itertools.product((64, 128), (512, 2048))),
    *(_case(n, n, d, "dropout", False, training=True) for d, n in itertools.product((64, 128), (512, 2048))),
    *(_case(n, n, 128, "causal", False, t, training=b) for n, t, b in itertools.product((512, 2048), (FP16, FP32), BOTH)),
]
