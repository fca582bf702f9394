"""No data moves, so there is no Triton kernel to write."""

from opgraft.ops.detach_.kernel.torch_level import detach_

__all__ = ["detach_"]
