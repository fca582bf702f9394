"""_local_scalar_dense: what it replaces, with which kernels, and which inputs it takes."""

from __future__ import annotations

import torch

from opgraft.a1 import NotDifferentiable, Operator, Override
from opgraft.ops._local_scalar_dense.kernel import torch_level, triton_level


def unsupported(self: torch.Tensor) -> str | None:
    """Anything but one element native refuses; the largest unsigned numbers do not fit what Python may return here."""
    if self.numel() != 1:
        return (
            f"{self.numel()} elements, which native refuses" if self.numel() == 0 else "several elements, which native refuses"
        )
    if self.dtype is torch.uint64:
        return "uint64, whose numbers past 2^63 a Python kernel cannot return"
    if self.layout is not torch.strided or self.is_quantized or self._is_zerotensor():
        return "no plain memory"
    return None


OPERATOR = Operator(
    "_local_scalar_dense",
    overrides=(
        Override(
            "aten::_local_scalar_dense(Tensor self) -> Scalar",
            kernels={"torch": torch_level.local_scalar_dense, "triton": triton_level.local_scalar_dense},
            unsupported=unsupported,
            gradient=NotDifferentiable,
            prefer="torch",  # one copy to the host; a kernel before it would be a launch more
        ),
    ),
)
register_a1 = OPERATOR.register_a1


def local_scalar_dense_aten(x: torch.Tensor) -> bool | int | float | complex:
    """Run the kernel of ``x``'s platform directly, without the dispatcher.

    Args:
        x: one element, any dtype, strides and offset.

    Returns:
        Its value as a Python number. Waits for the device.
    """
    return OPERATOR.call(x)
