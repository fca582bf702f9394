"""dropout: what it replaces, with which kernels, its gradient, and which inputs it takes."""

from __future__ import annotations

import torch

from opgraft.a1 import Operator, Override
from opgraft.ops.dropout import inputs
from opgraft.ops.dropout.kernel import torch_level, triton_level
from opgraft.ops.dropout.masked_scale import InPlace, NewTensor

OPERATOR = Operator(
    "dropout",
    overrides=(
        Override(
            "aten::dropout(Tensor input, float p, bool train) -> Tensor",
            kernels={"torch": torch_level.dropout, "triton": triton_level.dropout},
            unsupported=inputs.unsupported,
            features=inputs.features,
            gradient=NewTensor,
        ),
        Override(
            "aten::dropout_(Tensor(a!) self, float p, bool train) -> Tensor(a!)",
            kernels={"torch": torch_level.dropout_, "triton": triton_level.dropout_},
            unsupported=inputs.unsupported_in_place,
            features=lambda self: inputs.features(self),
            gradient=InPlace,
        ),
    ),
)
register_a1 = OPERATOR.register_a1


def dropout_aten(x: torch.Tensor, p: float = 0.5, train: bool = True) -> torch.Tensor:
    """Run the kernel of ``x``'s platform directly, without the dispatcher.

    Args:
        x: any shape and strides, floating-point.
        p: the probability that an element is zeroed.
        train: False returns ``x``.

    Returns:
        ``x`` scaled by 1/(1-p) where it is kept, 0 elsewhere. No gradient is recorded.
    """
    return OPERATOR.call(x, p, train)
