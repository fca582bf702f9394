"""copy_: write a tensor's values into another, converting and broadcasting."""

from opgraft.ops.copy_.register import OPERATOR, copy__aten, register_a1

__all__ = ["OPERATOR", "copy__aten", "register_a1"]
