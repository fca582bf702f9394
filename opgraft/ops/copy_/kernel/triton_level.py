"""copy_ through the strided copy engine: a broadcast source is read through stride 0, each destination element written once."""

from __future__ import annotations

import torch

from opgraft.kernels import copy_engine, prepared


@prepared
def copy_(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False):
    """Write ``src``, converted and broadcast, into ``self``; returns ``self``."""
    return copy_engine.between(self, src)
