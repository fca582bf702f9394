"""type_as: a tensor in the dtype of another."""

from opgraft.ops.type_as.register import OPERATOR, type_as_aten, register_a1

__all__ = ["OPERATOR", "type_as_aten", "register_a1"]
