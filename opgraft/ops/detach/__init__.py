"""detach: the same memory without the autograd history."""

from opgraft.ops.detach.register import OPERATOR, detach_aten, register_a1

__all__ = ["OPERATOR", "detach_aten", "register_a1"]
