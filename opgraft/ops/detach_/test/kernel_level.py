"""detach_ at the kernel level: values untouched, history gone, views refused."""

import torch

from opgraft.ops.detach_.reference import detach_
from opgraft.ops.detach_.register import OPERATOR, detach__aten
from opgraft.verify import Case, Check, KernelLevel, TensorSpec, prove

CASES = [
    Case(f"{shape} {dtype}", (TensorSpec(shape, dtype),), golden=True)
    for shape in ((), (0,), (7, 13))
    for dtype in ("float32", "bfloat16", "int64")
]


def _values(got, want, what):
    assert got.is_leaf and not got.requires_grad and torch.equal(got.cpu(), want), what


def _history(profile):
    def run():
        leaf = torch.ones(3, device=profile.device, requires_grad=True)
        y = leaf * 2
        assert detach__aten(y) is y and y.is_leaf and not y.requires_grad and y.grad_fn is None
        try:
            detach__aten((leaf * 2)[1:])
        except RuntimeError as error:
            assert "view" in str(error)
        else:
            raise AssertionError("a view must be refused")

    yield Check("history gone, views refused", run, "ops/detach_/kernel/torch_level.py")


LEVEL = KernelLevel(OPERATOR, detach_, CASES, compare=_values, extra=_history)
test_kernel_level = prove
