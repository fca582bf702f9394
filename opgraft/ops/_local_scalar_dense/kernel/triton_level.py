"""The element gathered on the device by the copy engine, then read on the host.

No platform prefers it (it is a launch more than the copy to the host alone); it serves where a chip's copy to the host
takes dense tensors only.
"""

from __future__ import annotations

import torch

from opgraft.kernels import copy_engine, new_empty_strided
from opgraft.ops._local_scalar_dense.kernel import torch_level


def local_scalar_dense(self: torch.Tensor) -> bool | int | float | complex:
    """The value of the one element."""
    if copy_engine.unsupported(self.dtype, self) is None:
        self = copy_engine.copy(new_empty_strided((), (), self.dtype, self.device), self.reshape(()))
    return torch_level.local_scalar_dense(self)
