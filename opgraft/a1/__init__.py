"""Route A1: how an override of an ATen operator is declared, installed, counted and removed."""

from .operator import Formula, Gradient, NotDifferentiable, Operator, Override
from .registry import Registration, registrations

__all__ = ["Formula", "Gradient", "NotDifferentiable", "Operator", "Override", "Registration", "registrations"]
