"""detach_ is autograd's own; there is nothing below it."""

from __future__ import annotations

import torch


def detach_(self: torch.Tensor) -> torch.Tensor:
    """Forget the history of ``self``; returns ``self``."""
    return self.detach_()
