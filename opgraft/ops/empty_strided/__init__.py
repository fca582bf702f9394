"""empty_strided: an uninitialised tensor with given sizes and strides."""

from opgraft.ops.empty_strided.register import OPERATOR, empty_strided_aten, register_a1

__all__ = ["OPERATOR", "empty_strided_aten", "register_a1"]
