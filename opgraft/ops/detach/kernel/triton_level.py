"""No data moves, so there is no Triton kernel to write: the alias is the torch level's."""

from opgraft.ops.detach.kernel.torch_level import detach

__all__ = ["detach"]
