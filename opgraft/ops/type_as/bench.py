"""type_as: converting dense tensors by size."""

from __future__ import annotations

import torch

from opgraft.bench import Case
from opgraft.bench.inputs import randn, size_name

CASES = [
    Case(
        f"bf16 to fp32 {size_name(n)}",
        lambda device, n=n: (randn(n, torch.bfloat16, device), torch.empty(0, device=device)),
        torch.Tensor.type_as, 6 * n, group="bf16 to fp32", route=False,
    )
    for n in (256, 2**20, 2**24, 2**27)
]  # fmt: skip
