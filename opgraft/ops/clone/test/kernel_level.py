"""clone at the kernel level: every dtype and layout, tails, words of every width; and memory of its own."""

import torch

from opgraft.ops.clone.reference import clone
from opgraft.ops.clone.register import OPERATOR, clone_aten
from opgraft.verify import Case, Check, KernelLevel, TensorSpec, prove, tensor_cases

DTYPES = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
    "complex64", "complex128", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip


def _golden(spec: TensorSpec) -> bool:
    return spec.dtype in ("float32", "bfloat16", "int64") and 0 not in spec.shape


CASES = [
    *tensor_cases([(7, 13)], DTYPES, ("contiguous", "transposed", "sliced"), _golden),
    *tensor_cases([(), (0,), (3, 0, 2), (1,), (1023,), (1025,), (5001,)], ("float32", "bfloat16", "uint8")),
    *tensor_cases([(3, 5, 7), (2, 3, 4, 5), (2, 3, 4, 5, 6), (1, 5, 1, 3)], golden=_golden),
    Case("rank 9, collapses", (TensorSpec((2, 1, 2, 1, 2, 1, 2, 1, 3)),)),
    Case("rank 8, permuted", (TensorSpec((2,) * 8, strides=(1, 2, 4, 8, 16, 32, 64, 128)),)),
    Case("overlapping window", (TensorSpec((6, 4), strides=(1, 1)),)),
    Case("odd address", (TensorSpec((1001,), "uint8", offset=1),)),
    *(
        Case(f"{shape} to {form}", (TensorSpec(shape),), {"memory_format": getattr(torch, form)})
        for shape, form in (
            ((2, 3, 4, 5), "channels_last"),
            ((2, 3, 4, 5), "contiguous_format"),
            ((2, 3, 4, 5, 2), "channels_last_3d"),
        )
    ),
]


def _fresh_memory(profile):
    def run():
        x = torch.arange(6.0, device=profile.device)
        y = clone_aten(x)
        assert y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr(), "the result shares the input's memory"
        y[0] = 9
        assert x[0].item() == 0, "writing to the result changed the input"

    yield Check("memory of its own", run, "ops/clone/kernel: the output must be newly allocated")


LEVEL = KernelLevel(OPERATOR, clone, CASES, extra=_fresh_memory)
test_kernel_level = prove
