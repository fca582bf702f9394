"""dropout: forward by size, and backward."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from opgraft.bench import Case
from opgraft.bench.inputs import backward, randn, size_name, with_graph


def _with_graph(device: str, n: int) -> tuple:
    x = randn(n, torch.bfloat16, device, requires_grad=True)
    return with_graph(F.dropout(x, 0.5), x)


CASES = [
    *(
        Case(
            f"bf16 {size_name(n)}", lambda device, n=n: (randn(n, torch.bfloat16, device), 0.5), F.dropout, 4 * n, group="bf16"
        )
        for n in (256, 2**20, 2**24, 2**27)
    ),
    *(
        Case(
            f"backward bf16 {size_name(n)}", lambda device, n=n: _with_graph(device, n), backward, 4 * n, group="backward bf16"
        )
        for n in (2**20, 2**27)
    ),
]
