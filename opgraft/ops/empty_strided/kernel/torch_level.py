"""empty_strided from the allocation primitive: a dense run of the right length, with the geometry set on it."""

from __future__ import annotations

import torch

from opgraft.kernels import Output, Steps, prepared
from opgraft.kernels.geometry import indexed


@prepared
def empty_strided(size, stride, *, dtype=None, layout=None, device=None, pin_memory=None):
    """An uninitialised tensor with these sizes and strides (in elements), in a storage that just holds it."""
    where = indexed(device or "cpu")
    return Steps(where, (Output(tuple(size), tuple(stride), dtype or torch.get_default_dtype(), where, primitive=True),))
