"""No data moves, so there is no Triton kernel to write: allocation is the torch level's."""

from opgraft.ops.empty_like.kernel.torch_level import empty_like

__all__ = ["empty_like"]
