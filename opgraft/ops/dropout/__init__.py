"""dropout: zero elements at random and scale the rest; no mask is stored."""

from opgraft.ops.dropout.register import OPERATOR, dropout_aten, register_a1

__all__ = ["OPERATOR", "dropout_aten", "register_a1"]
