"""dropout: what it replaces, with which kernels, its gradient, and which inputs it takes."""

from __future__ import annotations

import torch

from opgraft.a1 import Composite, Operator, Override, signature
from opgraft.kernels import copy_engine
from opgraft.kernels.philox import draw_seed
from opgraft.ops.dropout.kernel import torch_level, triton_level
from opgraft.ops.dropout.masked_scale import masked_scale
from opgraft.routing import Features

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def unsupported(input: torch.Tensor, p: float, train: bool) -> str | None:
    """The kernels take 0 < p < 1 in training; elsewhere native returns the input, zeros, or an error."""
    if not 0 <= p <= 1:
        return "p outside [0, 1], which native refuses"
    if not train or p == 0 or input.numel() == 0:
        return "nothing is dropped: the input itself is returned"
    if p == 1:
        return "everything is dropped"
    if input.dtype not in DTYPES:
        return f"dtype {input.dtype}"
    return copy_engine.unsupported(input.dtype, input)


def unsupported_in_place(self: torch.Tensor, p: float, train: bool) -> str | None:
    """As :func:`unsupported`; what overlaps itself native refuses."""
    if copy_engine.overlaps_itself(self):
        return "overlaps itself, which native refuses"
    return unsupported(self, p, train)


def features(input: torch.Tensor, p: float, train: bool) -> Features:
    """One route; size is the bytes of the input."""
    return Features("dropout", input.dtype, (), input.numel() * input.dtype.itemsize)


class NewTensor(Composite):
    """dropout with a gradient to keep."""

    @staticmethod
    def forward(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        """A masked scale under a fresh seed."""
        return masked_scale(input, draw_seed(input.device), p)


class InPlace(Composite):
    """dropout_ with a gradient to keep."""

    @staticmethod
    def forward(self: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        """The same, written back by copy_, whose derivative is autograd's."""
        return self.copy_(masked_scale(self, draw_seed(self.device), p))


OPERATOR = Operator(
    "dropout",
    overrides=(
        Override(
            "aten::dropout(Tensor input, float p, bool train) -> Tensor",
            kernels={"torch": torch_level.dropout, "triton": triton_level.dropout},
            unsupported=unsupported,
            gradient=NewTensor,
            features=features,
            signature=signature.of_call,
        ),
        Override(
            "aten::dropout_(Tensor(a!) self, float p, bool train) -> Tensor(a!)",
            kernels={"torch": torch_level.dropout_, "triton": triton_level.dropout_},
            unsupported=unsupported_in_place,
            gradient=InPlace,
            features=features,
            signature=signature.of_call,
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
    return OPERATOR.overrides[0].call(x, p, train)
