"""contiguous at the kernel level: every dtype, layouts that need a copy and layouts that do not."""

import math

import torch

from opgraft.ops.contiguous.reference import contiguous
from opgraft.ops.contiguous.register import OPERATOR, contiguous_aten
from opgraft.verify import Case, Check, KernelLevel, TensorSpec, prove, tensor_cases

DTYPES = (
    "bool",
    "uint8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "float8_e4m3fn",
)


def _golden(spec: TensorSpec) -> bool:
    return spec.dtype in ("float32", "bfloat16") and 0 not in spec.shape and math.prod(spec.shape) < 200


CASES = [
    *tensor_cases([(7, 13)], DTYPES, ("transposed", "sliced", "expanded"), _golden),
    *tensor_cases([(), (0,), (3, 0, 2), (1,), (1025,), (3, 5, 7), (2, 3, 4, 5), (2, 3, 4, 5, 6), (67, 129)], golden=_golden),
    *(
        Case(f"{shape} to {form}", (TensorSpec(shape),), {"memory_format": getattr(torch, form)})
        for shape, form in (
            ((2, 3, 4, 5), "channels_last"),
            ((2, 1, 4, 5), "channels_last"),
            ((2, 3, 1, 1), "channels_last"),
            ((2, 3, 4, 5, 2), "channels_last_3d"),
        )
    ),
]


def _the_same_tensor(profile):
    def run():
        x = torch.arange(8.0, device=profile.device).view(8, 1)
        for same in (x, x.t(), torch.zeros(2, 5, 1, 1, device=profile.device)):
            for form in (torch.contiguous_format,) + ((torch.channels_last,) if same.dim() == 4 else ()):
                assert contiguous_aten(same, memory_format=form).data_ptr() == same.data_ptr(), (
                    "an already contiguous tensor was copied"
                )

    yield Check("the same tensor back", run, "ops/contiguous/kernel: is_contiguous comes first")


LEVEL = KernelLevel(OPERATOR, contiguous, CASES, extra=_the_same_tensor)
test_kernel_level = prove
