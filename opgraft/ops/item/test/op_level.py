"""item at the op level: ``x.item()`` in every mode; 0 and 2 elements refused."""

import torch

from opgraft.ops._local_scalar_dense.test import op_level as scalar
from opgraft.ops.item.register import OPERATOR
from opgraft.verify import Case, OpLevel, TensorSpec, prove

LEVEL = OpLevel(
    OPERATOR,
    torch.Tensor.item,
    scalar.CASES,
    sample=Case("sample", (TensorSpec((1, 1)),)),
    differentiable=False,
    without=scalar.LEVEL.without,
    extra=scalar.scalar_checks(OPERATOR),
)
test_op_level = prove
