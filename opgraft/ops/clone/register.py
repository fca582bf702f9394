"""clone: what it replaces, with which kernels, and which inputs it takes."""

from __future__ import annotations

import torch

from opgraft.a1 import Formula, Operator, Override
from opgraft.kernels import copy_engine
from opgraft.kernels.geometry import like_strides
from opgraft.ops.clone.kernel import torch_level, triton_level
from opgraft.routing import Features


def unsupported(self: torch.Tensor) -> str | None:
    """Clone moves bits, so every dtype is taken; the copy engine says which tensors are not."""
    return copy_engine.unsupported(self.dtype, self)


def features(self: torch.Tensor, memory_format: torch.memory_format | None) -> Features:
    """The copy engine's."""
    return copy_engine.features(self.dtype, self, self.shape, like_strides(self, memory_format or torch.preserve_format))


OPERATOR = Operator(
    "clone",
    overrides=(
        Override(
            "aten::clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor",
            kernels={"torch": torch_level.clone, "triton": triton_level.clone},
            unsupported=unsupported,
            features=features,
            routes="copy_",
            gradient=Formula,  # CloneBackward0
        ),
    ),
)
register_a1 = OPERATOR.register_a1


def clone_aten(x: torch.Tensor, *, memory_format: torch.memory_format | None = None) -> torch.Tensor:
    """Run the kernel of ``x``'s platform directly, without the dispatcher.

    Args:
        x: any shape, strides and dtype.
        memory_format: as in ``torch.clone``; None preserves.

    Returns:
        A copy in memory of its own. No gradient is recorded: register the operator for that.
    """
    return OPERATOR.call(x, memory_format=memory_format)
