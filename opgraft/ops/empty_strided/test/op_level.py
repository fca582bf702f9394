"""empty_strided at the op level: ``torch.empty_strided`` on the platform's device in every mode."""

import torch

from opgraft.ops.empty_strided.register import OPERATOR
from opgraft.ops.empty_strided.test import kernel_level
from opgraft.verify import Case, Check, OpLevel, TensorSpec, prove
from opgraft.verify.compare import same_geometry

LIKE = TensorSpec(())  # says on which device


def on_its_device(like, size, stride, **kwargs):
    """The user's call, on the device of the first argument."""
    return torch.empty_strided(size, stride, device=like.device, **kwargs)


CASES = [
    *(Case(c.name, (LIKE, *c.args), c.kwargs) for c in kernel_level.CASES),
    Case("requires_grad", (LIKE, (2, 3), (3, 1)), {"requires_grad": True}),
    Case("negative size", (LIKE, (-1, 3), (3, 1))),
    Case("negative stride", (LIKE, (2, 3), (-3, 1))),
    Case("lengths differ", (LIKE, (2, 3), (3,))),
    Case("overflow", (LIKE, (2**40, 2**40), (2**40, 1))),
]


def _particular(profile):
    def pinned():
        with OPERATOR.register_a1(profile.dispatch_key, platform=profile.name):
            try:
                torch.empty_strided((2,), (1,), pin_memory=True, device=profile.device)
            except RuntimeError as error:
                assert profile.device_type != "cpu" and "pinned" in str(error) or profile.device_type == "cpu", error

    def modes():
        with OPERATOR.register_a1(profile.dispatch_key, platform=profile.name):
            with torch.inference_mode():
                assert torch.empty_strided((2,), (1,), device=profile.device).is_inference()
            x = torch.empty_strided((2, 3), (3, 1), device=profile.device)
            assert not x.is_inference() and x._version == 0 and x.is_leaf
            x.fill_(1.0).requires_grad_()
            (x * 2).sum().backward()
            assert x.grad.eq(2).all().item()

    yield Check("pinned memory on a device is refused", pinned, "ops/empty_strided/register.py, `unsupported`")
    yield Check("inference tensors, leaves", modes, "ops/empty_strided/kernel/torch_level.py")


LEVEL = OpLevel(
    OPERATOR,
    on_its_device,
    CASES,
    sample=Case("sample", (LIKE, (3, 5), (1, 3))),
    compare=same_geometry,
    differentiable=False,
    without={"vmap": "a factory has no batch", "func.grad": "no gradient to take"},
    extra=_particular,
)
test_op_level = prove
