"""contiguous: transposes and other permutations of the shapes that models make."""

from __future__ import annotations

import math

import torch

from opgraft.bench import Case
from opgraft.bench.inputs import randn, short


def _permuted(name: str, shape: tuple[int, ...], order: tuple[int, ...], dtype: torch.dtype, group: str = "") -> Case:
    def make(device: str) -> tuple:
        return ((randn(shape, torch.float32, device) * 50).to(dtype).permute(order),)

    return Case(name, make, torch.Tensor.contiguous, 2 * math.prod(shape) * dtype.itemsize, group=group)


CASES = [
    *(
        _permuted(f"transposed {m}×{n} {short(dtype)}", (m, n), (1, 0), dtype, f"transposed {short(dtype)}")
        for m, n, dtypes in (
            (16, 16, (torch.bfloat16,)),
            (256, 256, (torch.bfloat16,)),
            (1023, 4097, (torch.bfloat16, torch.float32)),
            (4096, 4096, (torch.bfloat16, torch.float32, torch.uint8, torch.float64)),
            (8192, 8192, (torch.bfloat16, torch.float32)),
        )
        for dtype in dtypes
    ),
    _permuted("(8,2048,32,128) to BHSD bf16", (8, 2048, 32, 128), (0, 2, 1, 3), torch.bfloat16),
    _permuted("NCHW to NHWC (32,256,56,56) fp16", (32, 256, 56, 56), (0, 2, 3, 1), torch.float16),
    _permuted("NHWC to NCHW (32,56,56,256) fp16", (32, 56, 56, 256), (0, 3, 1, 2), torch.float16),
    _permuted("reversed (64,96,32,40) fp32", (64, 96, 32, 40), (3, 2, 1, 0), torch.float32),
    _permuted("(4096,3,2) to (2,3,4096) fp32", (4096, 3, 2), (2, 1, 0), torch.float32),
]
