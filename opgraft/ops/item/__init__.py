"""item: a one-element tensor as a Python number."""

from opgraft.ops.item.register import OPERATOR, item_aten, register_a1

__all__ = ["OPERATOR", "item_aten", "register_a1"]
