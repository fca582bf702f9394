"""Triton pieces that several operators share: the launcher, outputs, the strided copy engine."""

from .launch import block_size, interpreted, launch, words
from .output import GuardedOutputs, new_empty_strided, new_like

__all__ = ["GuardedOutputs", "block_size", "interpreted", "launch", "new_empty_strided", "new_like", "words"]
