"""type_as at the op level: ``x.type_as(y)`` in every mode; dtype and device of the other, itself if nothing changes."""

import dataclasses

import torch

from opgraft.ops.type_as.register import OPERATOR
from opgraft.ops.type_as.test import kernel_level
from opgraft.verify import Case, Check, OpLevel, TensorSpec, prove

CASES = [
    *(
        c if c.args[0].dtype != c.args[1].dtype else dataclasses.replace(c, native="of that dtype already")
        for c in kernel_level.CASES
    ),
    Case("to complex", (TensorSpec((3, 5)), TensorSpec((1,), "complex64")), native="cast torch.float32 to torch.complex64"),
    Case("to fp8", (TensorSpec((3, 5)), TensorSpec((1,), "float8_e5m2")), native="cast torch.float32 to torch.float8_e5m2"),
]


def _particular(profile):
    def run():
        with OPERATOR.register_a1(profile.dispatch_key, platform=profile.name) as registration:
            x = torch.randn(3, device=profile.device, requires_grad=True)
            assert x.type_as(torch.zeros(1, device=profile.device)) is x, "nothing changes: the tensor itself"
            host = x.type_as(torch.zeros(1, dtype=torch.float64))
            assert host.device.type == "cpu" and host.dtype is torch.float64
            whole = x.type_as(torch.zeros(1, dtype=torch.int64, device=profile.device))
            assert not whole.requires_grad and whole.dtype is torch.int64
            half = x.type_as(torch.zeros(1, dtype=torch.float16, device=profile.device))
            half.sum().backward()
            assert x.grad.dtype is torch.float32 and registration.hits == 4, (x.grad.dtype, registration.hits)

    yield Check("itself, device, integers, gradient dtype", run, "ops/type_as/register.py")


LEVEL = OpLevel(
    OPERATOR,
    torch.Tensor.type_as,
    CASES,
    storage="new",
    sample=Case("sample", (TensorSpec((3, 5), "float32"), TensorSpec((1,), "float64"))),
    rewritten=frozenset({"vmap"}),
    extra=_particular,
)
test_op_level = prove
