"""empty at the kernel level: sizes, memory formats, dtypes, and what native refuses."""

import torch

from opgraft.ops.empty.reference import empty
from opgraft.ops.empty.register import OPERATOR, empty_aten
from opgraft.verify import Case, Check, KernelLevel, prove
from opgraft.verify.compare import same_geometry

DTYPES = (torch.float32, torch.bfloat16, torch.bool, torch.complex64)
CASES = [
    *(
        Case(f"{size} {str(dtype)[6:]}", (size,), {"dtype": dtype}, golden=True)
        for size in ((), (0,), (3, 0, 2), (7,), (2, 3, 4))
        for dtype in DTYPES
    ),
    Case("channels_last", ((2, 3, 4, 5),), {"memory_format": torch.channels_last}),
    Case("channels_last_3d", ((2, 3, 4, 5, 6),), {"memory_format": torch.channels_last_3d}),
]


def _refused(profile):
    def run():
        for size, kwargs in (((-1,), {}), ((2**40, 2**40), {}), ((2, 3), {"memory_format": torch.channels_last})):
            for call in (torch.empty, empty_aten):
                try:
                    call(size, device=profile.device, **kwargs)
                except RuntimeError:
                    continue
                raise AssertionError(f"{call.__name__}({size}, {kwargs}) must be refused")

    yield Check("negative and overflowing sizes are refused", run, "ops/empty/register.py, `unsupported`")


LEVEL = KernelLevel(
    OPERATOR,
    empty,
    CASES,
    compare=same_geometry,
    values=False,
    keywords=lambda profile: {"device": torch.device(profile.device)},
    extra=_refused,
)
test_kernel_level = prove
