"""empty_like at the op level: ``torch.empty_like`` in every mode."""

import torch

from opgraft.ops.empty_like.register import OPERATOR
from opgraft.ops.empty_like.test import kernel_level
from opgraft.verify import Case, Check, OpLevel, TensorSpec, prove
from opgraft.verify.compare import same_geometry

CASES = [
    *kernel_level.CASES,
    Case("requires_grad", (TensorSpec((3, 5)),), {"requires_grad": True}),
    Case("channels_last of rank 3, refused", (TensorSpec((2, 3, 4)),), {"memory_format": torch.channels_last}),
    Case("on meta", (TensorSpec((3, 5), "float32", (1, 3)),), {"device": "meta"}, native="on another device (meta)"),
]


def _particular(profile):
    def run():
        x = torch.randn(3, 4, device=profile.device, requires_grad=True)
        with OPERATOR.register_a1(profile.dispatch_key, platform=profile.name) as registration:
            fresh = torch.empty_like(x)
            assert not fresh.requires_grad and fresh.is_leaf and fresh.data_ptr() != x.data_ptr()
            with torch.inference_mode():
                assert torch.empty_like(x).is_inference()
            assert torch.empty_like(torch.zeros(2, dtype=torch.complex64, device=profile.device).conj()).is_conj() is False
            assert registration.hits == 3

    yield Check("fresh memory, no gradient, inference tensors", run, "ops/empty_like/kernel/torch_level.py")


LEVEL = OpLevel(
    OPERATOR,
    torch.empty_like,
    CASES,
    storage="new",
    sample=Case("sample", (TensorSpec((3, 5), "float32", (1, 3)),)),
    compare=same_geometry,
    differentiable=False,
    without={"func.grad": "no gradient to take", "vmap": "its result's storage is the batch's"},
    extra=_particular,
)
test_op_level = prove
