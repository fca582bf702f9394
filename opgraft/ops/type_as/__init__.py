"""type_as: a tensor in the dtype of another."""

from opgraft.ops.type_as.register import OPERATOR, register_a1, type_as_aten

__all__ = ["OPERATOR", "type_as_aten", "register_a1"]
