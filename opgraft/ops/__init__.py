"""The operators: one folder each (:mod:`opgraft.catalogue` finds them)."""

from opgraft.catalogue import folder, load, modules, select

__all__ = ["folder", "load", "modules", "select"]
