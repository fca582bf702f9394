"""detach: what it replaces, with what, and what has to change beside the dispatcher."""

from __future__ import annotations

import torch

from opgraft.a1 import Formula, Operator, Override
from opgraft.ops.detach.kernel import torch_level, triton_level
from opgraft.ops.detach.parameters import keep_parameters_working


def unsupported(self: torch.Tensor) -> str | None:
    """Every tensor with memory of its own kind is taken."""
    if self.layout is not torch.strided:
        return f"layout {self.layout}"
    return None


OPERATOR = Operator(
    "detach",
    overrides=(
        Override(
            "aten::detach(Tensor(a) self) -> Tensor(a)",
            kernels={"torch": torch_level.detach, "triton": triton_level.detach},
            unsupported=unsupported,
            gradient=Formula,  # autograd's own detach cuts the history and shares the version counter
        ),
    ),
    companion=keep_parameters_working,
)
register_a1 = OPERATOR.register_a1


def detach_aten(x: torch.Tensor) -> torch.Tensor:
    """Run the kernel directly, without the dispatcher.

    Args:
        x: any tensor.

    Returns:
        A tensor over the same memory with no history.
    """
    return OPERATOR.call(x)
