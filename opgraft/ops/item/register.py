"""item: what it replaces, with which kernels, and which inputs it takes."""

from __future__ import annotations

import torch

from opgraft.a1 import NotDifferentiable, Operator, Override
from opgraft.ops._local_scalar_dense.register import unsupported
from opgraft.ops.item.kernel import torch_level, triton_level

OPERATOR = Operator(
    "item",
    overrides=(
        Override(
            "aten::item(Tensor self) -> Scalar",
            kernels={"torch": torch_level.item, "triton": triton_level.item},
            unsupported=unsupported,  # as of _local_scalar_dense, which item ends in
            gradient=NotDifferentiable,
            prefer="torch",  # one copy to the host; a kernel before it would be a launch more
        ),
    ),
)
register_a1 = OPERATOR.register_a1


def item_aten(x: torch.Tensor) -> bool | int | float | complex:
    """Run the kernel of ``x``'s platform directly, without the dispatcher.

    Args:
        x: one element in any number of dimensions, any dtype, strides and offset.

    Returns:
        Its value as a Python number. Waits for the device.
    """
    return OPERATOR.call(x)
