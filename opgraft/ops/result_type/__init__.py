"""result_type: the dtype that mixing two operands gives; cannot be registered."""

from opgraft.ops.result_type.register import OPERATOR, register_a1, result_type_aten

__all__ = ["OPERATOR", "result_type_aten", "register_a1"]
