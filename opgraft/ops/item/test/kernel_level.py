"""item at the kernel level: the cases of _local_scalar_dense, through item's entry."""

from opgraft.ops._local_scalar_dense.test import kernel_level as scalar
from opgraft.ops.item.reference import item
from opgraft.ops.item.register import OPERATOR
from opgraft.verify import KernelLevel, prove

CASES = scalar.CASES
LEVEL = KernelLevel(OPERATOR, item, CASES)
test_kernel_level = prove
