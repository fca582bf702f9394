"""detach_ at the op level: registering is refused with the reason."""

import torch

from opgraft.ops.detach_.register import OPERATOR
from opgraft.verify import Case, OpLevel, TensorSpec, prove

LEVEL = OpLevel(OPERATOR, torch.Tensor.detach_, [], sample=Case("sample", (TensorSpec((3, 5)),)), differentiable=False)
test_op_level = prove
