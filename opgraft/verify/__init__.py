"""Proving an operator: the three levels, golden data, sentinels, the interception matrix."""

from opgraft.evidence import LEVELS

from .framework_level import FrameworkLevel
from .inputs import Case, TensorSpec, tensor_cases
from .kernel_level import KernelLevel
from .levels import Check, Result, prove, ready, run_check
from .op_level import OpLevel

__all__ = [
    "LEVELS", "Case", "Check", "FrameworkLevel", "KernelLevel", "OpLevel", "Result", "TensorSpec", "prove", "ready",
    "run_check", "tensor_cases",
]  # fmt: skip
