"""No data moves, so there is no Triton kernel to write: allocation is the torch level's."""

from opgraft.ops.empty_strided.kernel.torch_level import empty_strided

__all__ = ["empty_strided"]
