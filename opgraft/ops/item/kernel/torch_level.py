"""item is _local_scalar_dense after the count of elements was checked, so it is that kernel."""

from opgraft.ops._local_scalar_dense.kernel.torch_level import local_scalar_dense as item

__all__ = ["item"]
