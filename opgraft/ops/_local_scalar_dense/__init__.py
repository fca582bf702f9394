"""_local_scalar_dense: the device's part of item."""

from opgraft.ops._local_scalar_dense.register import OPERATOR, local_scalar_dense_aten, register_a1

__all__ = ["OPERATOR", "local_scalar_dense_aten", "register_a1"]
