"""copy_: dense, converting, broadcasting and permuting, for every width of an element; the routing table of the copy engine."""

from __future__ import annotations

import math

import torch

from opgraft.bench import Case
from opgraft.bench.inputs import randn, short, size_name

BF16, FP32, FP64, INT8 = torch.bfloat16, torch.float32, torch.float64, torch.int8


def _case(
    what: str, shape: tuple[int, ...], to: torch.dtype, frm: torch.dtype, order=None, source=None, group: str = ""
) -> Case:
    """Into a dense tensor of ``shape``, from one of the shape ``source``, or from a dense one whose dimensions ``order`` names."""
    stored = source or ([shape[order.index(i)] for i in range(len(shape))] if order else shape)

    def make(device: str) -> tuple:
        src = (randn(tuple(stored), FP32, device) * 50).to(frm)
        return torch.empty(shape, dtype=to, device=device), src.permute(order) if order else src

    nbytes = math.prod(shape) * to.itemsize + math.prod(stored) * frm.itemsize
    return Case(what, make, torch.Tensor.copy_, nbytes, group=group)


def _kind(to: torch.dtype, frm: torch.dtype) -> str:
    return short(frm) if to is frm else f"{short(frm)} to {short(to)}"


SAME = [(t, t) for t in (INT8, BF16, FP32, FP64)]
CASTS = [
    (FP32, BF16), (BF16, FP32), (torch.float16, BF16), (FP64, FP32), (FP32, FP64), (BF16, INT8), (INT8, BF16), (FP32, INT8), (INT8, FP32),
    (torch.int64, INT8), (INT8, torch.int64), (torch.int64, BF16), (BF16, torch.int64), (torch.uint8, INT8), (torch.int64, FP64),
]  # fmt: skip
SIZES = (256, 2**16, 2**20, 2**24)
#: Shapes with the order of their source's dimensions; tiles are grouped there.
SMALL_DIMENSIONS = (
    ((4, 5, 6, 7, 3), (4, 1, 3, 2, 0)),
    ((11, 36, 18, 5, 8, 13), (5, 1, 2, 3, 4, 0)),
    ((64, 5, 9, 40, 6, 24), (5, 1, 2, 3, 4, 0)),
)
CASES = [
    *(_case(f"{_kind(*ts)} {size_name(n)}", (n,), *ts, group=_kind(*ts)) for ts in SAME + CASTS for n in SIZES),
    *(_case(f"{_kind(*ts)} 2^27", (2**27,), *ts, group=_kind(*ts)) for ts in ((BF16, BF16), (FP32, BF16), (BF16, FP32))),
    *(
        _case(f"transposed {n}×{n} {_kind(*ts)}", (n, n), *ts, order=(1, 0), group=f"transposed {_kind(*ts)}")
        for ts in SAME + CASTS
        for n in ((16, 256, 1024, 4096) if ts in SAME + CASTS[:5] else (256, 4096))
    ),
    *(
        _case(
            f"many dimensions {'×'.join(map(str, shape))} {_kind(*ts)}",
            shape,
            *ts,
            order=order,
            group=f"many dimensions {_kind(*ts)}",
        )
        for ts in SAME + CASTS
        for shape, order in SMALL_DIMENSIONS
    ),
    _case("broadcast (64,1,4096) to (64,512,4096) bf16", (64, 512, 4096), BF16, BF16, source=(64, 1, 4096)),
    *(
        _case(f"broadcast row to {n}×{n} {_kind(*ts)}", (n, n), *ts, source=(1, n), group=f"broadcast {_kind(*ts)}")
        for ts in SAME + CASTS[:2]
        for n in (16, 256, 4096)
    ),
    _case("broadcast column to 4096×4096 fp32", (4096, 4096), FP32, FP32, source=(4096, 1)),
]
