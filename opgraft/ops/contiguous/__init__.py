"""contiguous: the same tensor if it lies in the memory format already, else a copy that does."""

from opgraft.ops.contiguous.register import OPERATOR, contiguous_aten, register_a1

__all__ = ["OPERATOR", "contiguous_aten", "register_a1"]
