"""Route A1: how an override of an ATen operator is declared, decided, installed, registered; each imports what stands before it."""

from .declare import Composite, Formula, Gradient, NotDifferentiable, Override
from .derive import define
from .register import Operator, Registration, registrations

__all__ = [
    "Composite", "Formula", "Gradient", "NotDifferentiable", "Operator", "Override", "Registration", "define", "registrations",
]  # fmt: skip
