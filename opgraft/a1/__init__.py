"""Route A1: how an override of an ATen operator is declared, installed, counted and removed."""

from .dispatch import define
from .operator import Composite, Formula, Gradient, NotDifferentiable, Operator, Override
from .registry import Registration, registrations

__all__ = [
    "Composite", "Formula", "Gradient", "NotDifferentiable", "Operator", "Override", "Registration", "define", "registrations",
]  # fmt: skip
