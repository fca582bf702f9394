"""empty at the op level: registering is refused with the reason; the direct call equals ``torch.empty``."""

import torch

from opgraft.ops.empty.register import OPERATOR, empty_aten
from opgraft.verify import Case, Check, OpLevel, prove
from opgraft.verify.compare import same_geometry


def _particular(profile):
    def run():
        for size, form in (((2, 3), None), ((2, 3, 4, 5), torch.channels_last), ((0, 2), torch.contiguous_format)):
            same_geometry(
                empty_aten(size, device=profile.device, memory_format=form), torch.empty(size, memory_format=form), str(size)
            )

    yield Check("the direct call", run, "ops/empty/kernel/torch_level.py")


LEVEL = OpLevel(
    OPERATOR, torch.empty, [], sample=Case("sample", ((3, 5),)), compare=same_geometry, differentiable=False, extra=_particular
)
test_op_level = prove
