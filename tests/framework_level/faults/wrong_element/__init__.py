"""A copy_ whose kernel writes a wrong last element."""

import dataclasses

from opgraft.ops.copy_.register import OPERATOR as COPY


def copy_(self, src, non_blocking=False):
    self.copy_(src, non_blocking)
    if self.numel() > 1 and self.is_floating_point():
        self[(-1,) * self.dim()].add_(1)
    return self


OPERATOR = dataclasses.replace(
    COPY, name="wrong_element", overrides=(dataclasses.replace(COPY.overrides[0], kernels={"torch": copy_, "triton": copy_}),)
)
