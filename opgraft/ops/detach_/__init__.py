"""detach_: forget a tensor's autograd history in place; cannot be registered."""

from opgraft.ops.detach_.register import OPERATOR, detach__aten, register_a1

__all__ = ["OPERATOR", "detach__aten", "register_a1"]
