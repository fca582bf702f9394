"""copy_ through the strided copy engine: a broadcast source is read through stride 0, each destination element written once."""

from __future__ import annotations

import torch

from opgraft.kernels import copy_engine


def copy_(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Write ``src``, converted and broadcast, into ``self``; returns ``self``."""
    return copy_engine.copy(self, src if src.shape == self.shape else src.expand(self.shape))
