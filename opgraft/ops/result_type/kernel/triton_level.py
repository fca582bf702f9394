"""No data is read, so there is no Triton kernel to write."""

from opgraft.ops.result_type.kernel.torch_level import result_type

__all__ = ["result_type"]
