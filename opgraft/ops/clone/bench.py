"""clone: dense copies by size."""

from __future__ import annotations

import torch

from opgraft.bench import Case
from opgraft.bench.inputs import randn, size_name

CASES = [
    Case(
        f"bf16 {size_name(n)}",
        lambda device, n=n: (randn(n, torch.bfloat16, device),),
        torch.clone,
        4 * n,
        group="bf16",
        route=False,
    )
    for n in (256, 2**16, 2**20, 2**24, 2**27)
]
