"""empty_strided at the kernel level: sizes, strides, storage size and dtype; there are no values to compare."""

import torch

from opgraft.ops.empty_strided.reference import empty_strided
from opgraft.ops.empty_strided.register import OPERATOR
from opgraft.verify import Case, KernelLevel, prove
from opgraft.verify.compare import same_geometry

GEOMETRIES = [
    ((2, 3), (3, 1)),
    ((2, 3), (1, 2)),
    ((), ()),
    ((0, 3), (3, 1)),
    ((4, 5), (0, 1)),
    ((3, 4), (100, 7)),
    ((2, 3, 4, 5), (60, 1, 15, 3)),
    ((3,), (0,)),
]
DTYPES = (torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.complex128, torch.float8_e4m3fn)
CASES = [
    Case(f"{size} {stride} {str(dtype)[6:]}", (size, stride), {"dtype": dtype}, golden=True)
    for size, stride in GEOMETRIES
    for dtype in DTYPES
]


LEVEL = KernelLevel(
    OPERATOR,
    empty_strided,
    CASES,
    compare=same_geometry,
    values=False,
    keywords=lambda profile: {"device": torch.device(profile.device)},
)
test_kernel_level = prove
