"""empty: an uninitialised tensor; the allocation primitive, which cannot be registered."""

from opgraft.ops.empty.register import OPERATOR, empty_aten, register_a1

__all__ = ["OPERATOR", "empty_aten", "register_a1"]
