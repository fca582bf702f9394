"""result_type: type promotion, no tensor kernel. Implemented and tested like the others; it cannot be registered."""

from __future__ import annotations

import torch

from opgraft.a1 import NotDifferentiable, Operator, Override
from opgraft.ops.result_type.kernel import torch_level, triton_level

OPERATOR = Operator(
    "result_type",
    overrides=(
        Override(
            "aten::result_type.Tensor(Tensor tensor, Tensor other) -> ScalarType",
            kernels={"torch": torch_level.result_type, "triton": triton_level.result_type},
            unsupported=lambda tensor, other: None,
            gradient=NotDifferentiable,
        ),
    ),
    refusal="result_type computes a dtype from dtypes and dimensions: there is no tensor kernel to replace, and nothing would run "
    "on the device",
)
register_a1 = OPERATOR.register_a1


def result_type_aten(tensor: torch.Tensor | complex, other: torch.Tensor | complex) -> torch.dtype:
    """The dtype that an arithmetic operation on the two gives.

    Args:
        tensor, other: tensors of any shape, or Python numbers.
    """
    return torch_level.result_type(tensor, other)
