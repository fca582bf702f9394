"""detach at the kernel level: the same memory and geometry for every layout and dtype."""

import torch

from opgraft.ops.detach.reference import detach
from opgraft.ops.detach.register import OPERATOR, detach_aten
from opgraft.verify import Check, KernelLevel, prove, tensor_cases
from opgraft.verify.compare import assert_same

CASES = [
    *tensor_cases([(7, 13)], ("bool", "int64", "bfloat16", "complex64", "float8_e4m3fn"), ("contiguous", "transposed")),
    *tensor_cases([(), (0,), (3, 5, 7), (2, 3, 4, 5)], golden=lambda spec: 0 not in spec.shape),
]


def _values(got, want, what):
    assert_same(got, want, what)
    assert got.storage_offset() == want.storage_offset(), f"{what}: storage offset {got.storage_offset()}"


def _shares(profile):
    def run():
        x = torch.arange(6.0, device=profile.device).view(2, 3).t()
        y = detach_aten(x)
        assert y.data_ptr() == x.data_ptr() and y is not x
        y[0, 0] = 9
        assert x[0, 0].item() == 9, "the memory must be shared"

    yield Check("memory is shared", run, "ops/detach/kernel/torch_level.py")


LEVEL = KernelLevel(OPERATOR, detach, CASES, compare=_values, extra=_shares)
test_kernel_level = prove
