"""detach below autograd: an alias over the same storage; autograd does the rest above it."""

from __future__ import annotations

from opgraft.call_path import Instead

#: A tensor with its argument's storage, sizes, strides and offset.
detach = Instead("aten::alias")
