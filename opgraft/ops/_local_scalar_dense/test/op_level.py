"""_local_scalar_dense at the op level: what ``x.item()``, ``float(x)`` and ``if x:`` end in."""

import torch

from opgraft.ops._local_scalar_dense.register import OPERATOR
from opgraft.ops._local_scalar_dense.test import kernel_level
from opgraft.verify import Case, Check, OpLevel, TensorSpec, prove

CASES = [
    *kernel_level.CASES,
    Case("no element", (TensorSpec((0,)),)),
    Case("two elements", (TensorSpec((2,)),), native="several elements"),
    Case("uint64", (TensorSpec((1,), "uint64"),), native="uint64"),
]


def scalar_checks(operator):
    """What item and _local_scalar_dense have in common at this level."""

    def particular(profile):
        def python_numbers():
            device = profile.device
            x, z = torch.tensor([[2.5]], device=device), torch.tensor([1 + 2j], device=device)
            flag = torch.tensor(True, device=device)
            with operator.register_a1(profile.dispatch_key, platform=profile.name) as registration:
                assert (float(x), int(x), bool(x), x.item()) == (2.5, 2, True, 2.5)
                assert flag.item() is True and type(torch.tensor([3], device=device).item()) is int
                assert z.conj()[0].item() == 1 - 2j and z.conj().imag[0].item() == -2.0
                assert torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=device)[1, 0].item() == 3.0
                assert registration.hits == 9, registration.hits

        yield Check("float, int, bool, conj and neg bits", python_numbers, f"ops/{operator.name}/register.py")

    return particular


LEVEL = OpLevel(
    OPERATOR,
    torch.ops.aten._local_scalar_dense.default,
    CASES,
    sample=Case("sample", (TensorSpec((1, 1)),)),
    differentiable=False,
    without={
        "compile": "a number depends on data: Dynamo breaks the graph there",
        "FakeTensor": "a fake tensor has no data to read",
        "vmap": "refused by functorch: its result is not a tensor",
        "func.grad": "its result is not a tensor",
        "device graph": "it waits for the device",
    },
    extra=scalar_checks(OPERATOR),
)
test_op_level = prove
