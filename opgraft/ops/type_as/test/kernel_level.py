"""type_as at the kernel level: every pair of dtypes and every layout."""

from opgraft.ops.copy_.test.kernel_level import REAL
from opgraft.ops.type_as.reference import type_as
from opgraft.ops.type_as.register import OPERATOR
from opgraft.verify import Case, KernelLevel, TensorSpec, prove, tensor_cases

CASES = [
    *(Case(f"{src} as {dst}", (TensorSpec((3, 67), src, seed=3), TensorSpec((1,), dst))) for src in REAL for dst in REAL),
    *(
        Case(f"{case.name} as bfloat16", (*case.args, TensorSpec((2,), "bfloat16")), golden=0 not in case.args[0].shape)
        for case in tensor_cases([(), (0,), (1025,), (5, 7), (2, 3, 4, 5), (2, 3, 4, 5, 6)])
    ),
]
LEVEL = KernelLevel(OPERATOR, type_as, CASES)
test_kernel_level = prove
