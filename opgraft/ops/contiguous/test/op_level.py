"""contiguous at the op level: ``x.contiguous()`` in every mode; the tensor itself where nothing is to do."""

import dataclasses

import torch

from opgraft.ops.contiguous.register import OPERATOR
from opgraft.ops.contiguous.test import kernel_level
from opgraft.verify import Case, Check, OpLevel, TensorSpec, prove


def _needs_a_copy(case: Case) -> bool:
    return not case.arguments("cpu")[0].is_contiguous(memory_format=case.kwargs.get("memory_format", torch.contiguous_format))


ALREADY = torch.ops.aten.contiguous.default  # Tensor.contiguous itself answers a contiguous tensor before the dispatcher
CASES = [
    *(c if _needs_a_copy(c) else dataclasses.replace(c, native="contiguous already") for c in kernel_level.CASES),
    Case("preserve_format, refused", (TensorSpec((3, 4), strides=(1, 3)),), {"memory_format": torch.preserve_format}),
]


def _itself(profile):
    def run():
        with OPERATOR.register_a1(profile.dispatch_key, platform=profile.name):
            x = torch.randn(3, 4, device=profile.device, requires_grad=True)
            assert x.contiguous() is x and ALREADY(x * 2).grad_fn.name() == "MulBackward0"
            copied = x.t().contiguous()
            assert copied.is_contiguous() and copied.data_ptr() != x.data_ptr() and not copied._is_view()
            z = torch.tensor([[1 + 2j, 3 - 4j]]).expand(2, 2).to(profile.device).t().conj()
            assert torch.equal(z.t()[:, ::1].mT.contiguous().cpu().resolve_conj(), z.cpu().resolve_conj())

    yield Check("itself, views, conj", run, "ops/contiguous/register.py, `unsupported`")


LEVEL = OpLevel(
    OPERATOR,
    ALREADY,
    CASES,
    storage="new",
    sample=Case("sample", (TensorSpec((3, 5), strides=(1, 3)),)),
    rewritten=frozenset({"compile", "vmap"}),
    extra=_itself,
)
test_op_level = prove
