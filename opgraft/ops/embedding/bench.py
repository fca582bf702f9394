"""embedding: the gather by number of ids, and the backward."""

from __future__ import annotations

import torch

from opgraft.bench import Case
from opgraft.bench.inputs import randn, short

ROWS, WIDTH = 32000, 4096
_gather = torch.ops.aten.embedding.default
_backward = torch.ops.aten.embedding_dense_backward.default


def _gathering(ids: int, width: int, dtype: torch.dtype) -> Case:
    return Case(
        f"{ids} ids × {width} {short(dtype)}",
        lambda device: (randn((ROWS, width), dtype, device), torch.randint(ROWS, (ids,), device=device)),
        _gather, 2 * ids * width * dtype.itemsize, group=f"gather {short(dtype)}", peer="flag_gems.ops.embedding:embedding",
    )  # fmt: skip


def _returning(ids: int, width: int, dtype: torch.dtype, most: int = ROWS, name: str = "") -> Case:
    return Case(
        f"backward {ids} ids{name}, {ROWS}×{width} {short(dtype)}",
        lambda device: (randn((ids, width), dtype, device), torch.randint(most, (ids,), device=device), ROWS, -1, False),
        _backward, (ids + ROWS) * width * dtype.itemsize, group=f"backward {short(dtype)}",
        peer="flag_gems.ops.embedding:embedding_backward",
    )  # fmt: skip


CASES = [
    *(_gathering(ids, WIDTH, torch.bfloat16) for ids in (1, 64, 1024, 8192, 65536)),
    *(_gathering(ids, 1000, torch.float32) for ids in (64, 8192, 65536)),
    *(_gathering(ids, WIDTH, torch.float16) for ids in (64, 8192)),
    *(_returning(ids, WIDTH, torch.bfloat16) for ids in (64, 1024, 16384, 131072)),
    _returning(16384, WIDTH, torch.bfloat16, 1, " all equal"),
    *(_returning(ids, 1000, torch.float32) for ids in (64, 16384)),
    *(_returning(ids, WIDTH, torch.float16) for ids in (1024, 16384)),
]
