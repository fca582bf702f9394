"""detach_: its meaning lives at the autograd key. Implemented and tested like the others; it cannot be registered."""

from __future__ import annotations

import torch

from opgraft.a1 import NotDifferentiable, Operator, Override
from opgraft.ops.detach_.kernel import torch_level, triton_level

OPERATOR = Operator(
    "detach_",
    overrides=(
        Override(
            "aten::detach_(Tensor(a!) self) -> Tensor(a!)",
            kernels={"torch": torch_level.detach_, "triton": triton_level.detach_},
            unsupported=lambda self: None,
            gradient=NotDifferentiable,
        ),
    ),
    refusal="detach_ changes autograd metadata and nothing else: its meaning lives at the autograd key, and below that key there is "
    "no kernel to replace",
)
register_a1 = OPERATOR.register_a1


def detach__aten(x: torch.Tensor) -> torch.Tensor:
    """Forget ``x``'s history in place.

    Args:
        x: any tensor that is not a view.

    Returns:
        ``x``, a leaf that asks for no gradient.

    Raises:
        RuntimeError: a view, which cannot be detached in place.
    """
    return torch_level.detach_(x)
