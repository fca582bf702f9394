"""_local_scalar_dense at the kernel level: every dtype, offsets, large integers, special floats."""

import torch

from opgraft.ops._local_scalar_dense.kernel import torch_level, triton_level
from opgraft.ops._local_scalar_dense.reference import local_scalar_dense
from opgraft.ops._local_scalar_dense.register import OPERATOR
from opgraft.verify import Case, Check, KernelLevel, TensorSpec, prove
from opgraft.verify.compare import assert_same

DTYPES = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "float16", "bfloat16", "float32", "float64",
    "complex64", "complex128", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
CASES = [
    *(Case(f"{dtype} {shape}", (TensorSpec(shape, dtype, offset=offset, seed=5),), golden=dtype in ("float32", "int64") and offset == 0)
      for dtype in DTYPES for shape, offset in (((), 0), ((1, 1, 1), 3))),
    Case("expanded", (TensorSpec((1, 1), "float32", (0, 0)),)),
]  # fmt: skip


def _special(profile):
    def run():
        for value, dtype in (
            (2**53 + 1, torch.int64),
            (-(2**63), torch.int64),
            (float("inf"), torch.float32),
            (float("nan"), torch.bfloat16),
            (-0.0, torch.float64),
        ):
            for kernel in (torch_level, triton_level) if profile.kernel_level == "triton" else (torch_level,):
                got = kernel.local_scalar_dense(torch.tensor([0, value, 0], dtype=dtype, device=profile.device)[1])
                assert_same(got, torch.tensor(value, dtype=dtype).item(), f"{value} {dtype}")

    yield Check("integers past 2^53, infinities, NaN", run, "ops/_local_scalar_dense/kernel")


LEVEL = KernelLevel(OPERATOR, local_scalar_dense, CASES, extra=_special)
test_kernel_level = prove
