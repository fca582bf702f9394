"""A contiguous whose derivative gives its input no gradient."""

import dataclasses

from opgraft.a1 import Gradient
from opgraft.ops.contiguous.register import OPERATOR as CONTIGUOUS


class Lost(Gradient):
    @staticmethod
    def backward(ctx, grad):
        return (None,)


OPERATOR = dataclasses.replace(
    CONTIGUOUS, name="lost_gradient", overrides=(dataclasses.replace(CONTIGUOUS.overrides[0], gradient=Lost),)
)
