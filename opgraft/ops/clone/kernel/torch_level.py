"""clone in plain PyTorch: an empty tensor of native's geometry, filled by the platform's own copy_."""

from __future__ import annotations

import torch

from opgraft.kernels import new_like


def clone(self: torch.Tensor, *, memory_format: torch.memory_format | None = None) -> torch.Tensor:
    """A copy of ``self`` in new memory, with the strides native clone gives."""
    return new_like(self, memory_format or torch.preserve_format).copy_(self)
