"""Triton pieces that several operators share: the launcher, outputs, the strided copy engine."""

from .launch import Launch, block_size, interpreted, launch
from .output import GuardedOutputs, new_empty_strided, new_like
from .prepared import prepared
from .steps import Output, Steps

__all__ = [
    "GuardedOutputs", "Launch", "Output", "Steps", "block_size", "interpreted", "launch", "new_empty_strided", "new_like", "prepared",
]  # fmt: skip
