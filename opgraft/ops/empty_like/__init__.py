"""empty_like: an uninitialised tensor with another's geometry."""

from opgraft.ops.empty_like.register import OPERATOR, empty_like_aten, register_a1

__all__ = ["OPERATOR", "empty_like_aten", "register_a1"]
