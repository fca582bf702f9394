"""result_type at the op level: registering is refused with the reason; the direct call equals ``torch.result_type``."""

import torch

from opgraft.ops.result_type.register import OPERATOR, result_type_aten
from opgraft.verify import Case, Check, OpLevel, TensorSpec, prove


def _particular(profile):
    def run():
        x = torch.ones(2, dtype=torch.float16, device=profile.device)
        for other in (
            torch.ones((), dtype=torch.float64, device=profile.device),
            torch.ones(1, dtype=torch.int64, device=profile.device),
            2.5,
            1j,
        ):
            assert result_type_aten(x, other) is torch.result_type(x, other)

    yield Check("the direct call", run, "ops/result_type/kernel/torch_level.py")


LEVEL = OpLevel(
    OPERATOR,
    torch.result_type,
    [],
    sample=Case("sample", (TensorSpec((3,)), TensorSpec((3,), "float64"))),
    differentiable=False,
    extra=_particular,
)
test_op_level = prove
