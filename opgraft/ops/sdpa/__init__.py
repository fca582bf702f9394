"""sdpa: scaled_dot_product_attention by flash attention of our own, or native where that is faster."""

from opgraft.ops.sdpa.register import OPERATOR, register_a1, sdpa_aten

__all__ = ["OPERATOR", "register_a1", "sdpa_aten"]
