"""copy_ by the platform's own copy."""

from __future__ import annotations

import torch


def copy_(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Write ``src``, converted and broadcast, into ``self``; returns ``self``."""
    return self.copy_(src, non_blocking)
