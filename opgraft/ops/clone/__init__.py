"""clone: a copy of a tensor in new memory."""

from opgraft.ops.clone.register import OPERATOR, clone_aten, register_a1

__all__ = ["OPERATOR", "clone_aten", "register_a1"]
