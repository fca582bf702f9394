"""embedding: rows of a table, with a backward of our own that adds nothing atomically."""

from opgraft.ops.embedding.register import OPERATOR, embedding_aten, register_a1

__all__ = ["OPERATOR", "embedding_aten", "register_a1"]
