"""clone through the strided copy engine: reads each element once, writes each element once."""

from __future__ import annotations

import torch

from opgraft.kernels import copy_engine, prepared


@prepared
def clone(self: torch.Tensor, *, memory_format: torch.memory_format | None = None):
    """A copy of ``self`` in new memory, with the strides native clone gives."""
    return copy_engine.into_new(self, self.dtype, memory_format or torch.preserve_format)
