"""dropout at the kernel level: the exact mask for a seed, in every dtype and layout; its statistics."""

import torch

from opgraft.kernels import launch
from opgraft.kernels.philox import keeps, threshold
from opgraft.ops.dropout import masked_scale, reference
from opgraft.ops.dropout.kernel import triton_level
from opgraft.ops.dropout.register import OPERATOR
from opgraft.verify import Case, Check, KernelLevel, TensorSpec, prove, tensor_cases

DTYPES = ("float16", "bfloat16", "float32", "float64")


def _case(case: Case, p: float) -> Case:
    """A case with a seed (one int64 that the kernel reads from the device) and a probability."""
    return Case(f"{case.name} p={p}", (*case.args, TensorSpec((1,), "int64", seed=int(p * 100)), p), golden=case.golden)


CASES = [
    *(
        _case(c, 0.3)
        for c in tensor_cases([(7, 13)], DTYPES, golden=lambda spec: spec.dtype == "float32" and spec.strides == (13, 1))
    ),
    *(_case(c, 0.5) for c in tensor_cases([(), (1025,), (3, 5, 7), (2, 3, 4, 5)])),
    *(_case(c, 0.5) for c in tensor_cases([(1,)], layouts=("contiguous",))),
    *(_case(c, 0.999) for c in tensor_cases([(1025,)], DTYPES, ("contiguous",))),
]


def _particular(profile):
    def statistics():
        figures = {}
        for p in (0.1, 0.5, 0.9):
            n = 1 << 16
            x = torch.ones(n, device=profile.device)
            kept = (masked_scale.masked_scale(x, torch.tensor([17], device=profile.device), p) != 0).float().mean().item()
            bound = 5 * (p * (1 - p) / n) ** 0.5  # five standard deviations of the kept fraction
            assert abs(kept - (1 - p)) < bound, f"p={p}: a fraction of {kept} was kept, expected {1 - p} ± {bound:.4f}"
            figures[f"kept at p={p}"] = kept
        return figures

    def geometry():
        if profile.kernel_level != "triton":
            return {"not run": "no launch geometry at the torch level"}
        n, seed = 5000, torch.tensor([-12345], device=profile.device)
        x, want = torch.ones(n, device=profile.device), keeps(seed.cpu(), n, 0.5).float() * 2
        for block in (16, 128, 1024, 8192):
            out = torch.empty_like(x)
            launch(
                triton_level.masked_scale_kernel, (-(-n // block),), out, x, seed, n, threshold(0.5), 2.0, 0.0, (n,), (1,), (1,),
                RANK=1, WIDE=False, BLOCK=block,
            )  # fmt: skip
            assert torch.equal(out.cpu(), want), f"another mask with blocks of {block}"
        return {}

    look_at = "opgraft/kernels/philox.py"
    yield Check("kept fraction", statistics, look_at)
    yield Check("the same mask whatever the launch geometry", geometry, look_at)


LEVEL = KernelLevel(OPERATOR, reference.masked_scale, CASES, exact=False, kernels=masked_scale.KERNELS, extra=_particular)
test_kernel_level = prove
