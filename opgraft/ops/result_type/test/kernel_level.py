"""result_type at the kernel level: every pair of dtypes, ranks and Python numbers, against what an addition gives."""

from opgraft.ops.result_type.reference import result_type
from opgraft.ops.result_type.register import OPERATOR
from opgraft.verify import Case, KernelLevel, TensorSpec, prove

DTYPES = (
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)
RANKS = ((2,), ())
NUMBERS = (True, 3, 2.5, 1 + 2j)


def _dtypes(got, want, what):
    assert got is want, f"{what}: {got}, expected {want}"


CASES = [
    *(
        Case(f"{a} {m} with {b} {n}", (TensorSpec(m, a), TensorSpec(n, b)), golden=not (a + b).count("complex"))
        for a in DTYPES
        for b in DTYPES
        for m in RANKS
        for n in RANKS
    ),
    *(Case(f"{a} {m} with {number}", (TensorSpec(m, a), number)) for a in DTYPES for m in RANKS for number in NUMBERS),
    *(Case(f"{one} with {other}", (one, other)) for one in NUMBERS for other in NUMBERS),
]
LEVEL = KernelLevel(OPERATOR, result_type, CASES, compare=_dtypes, values=False)
test_kernel_level = prove
