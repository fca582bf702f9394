"""empty_like at the kernel level: geometry for every layout, dtype and memory format."""

import torch

from opgraft.ops.empty_like.reference import empty_like
from opgraft.ops.empty_like.register import OPERATOR
from opgraft.verify import Case, KernelLevel, TensorSpec, prove, tensor_cases
from opgraft.verify.compare import same_geometry

CASES = [
    *tensor_cases([(), (0,), (7, 13), (3, 0, 2), (3, 5, 7), (2, 3, 4, 5), (2, 3, 4, 5, 6)], golden=lambda spec: True),
    *tensor_cases([(3, 5)], ("bool", "bfloat16", "complex128", "float8_e5m2"), ("transposed",)),
    Case("overlapping window", (TensorSpec((6, 4), strides=(1, 1)),)),
    Case("another dtype", (TensorSpec((3, 5)),), {"dtype": torch.int16}),
    *(
        Case(f"to {form}", (TensorSpec(shape),), {"memory_format": getattr(torch, form)})
        for shape, form in (
            ((2, 3, 4, 5), "channels_last"),
            ((2, 3, 4, 5, 2), "channels_last_3d"),
            ((2, 3, 4, 5), "contiguous_format"),
        )
    ),
]
LEVEL = KernelLevel(OPERATOR, empty_like, CASES, compare=same_geometry, values=False)
test_kernel_level = prove
