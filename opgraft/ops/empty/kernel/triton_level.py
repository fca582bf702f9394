"""No data moves, so there is no Triton kernel to write: allocation is the torch level's."""

from opgraft.ops.empty.kernel.torch_level import empty

__all__ = ["empty"]
