"""Which operators there are and where they lie, found by looking and never listed; nothing of them is imported to know that.

An outside package adds its own through the entry point group ``opgraft.operators``, whose value is the module of an
operator's folder. While such a folder is being written, ``OPGRAFT_OPERATORS=package.ops.name,…`` adds it too.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import os
import pathlib
from collections.abc import Iterable
from types import ModuleType


@functools.cache
def modules() -> dict[str, str]:
    """The importable module of every operator, by operator name."""
    here = pathlib.Path(__file__).parent / "ops"
    found = {p.parent.name: f"opgraft.ops.{p.parent.name}" for p in sorted(here.glob("*/register.py"))}
    for entry in importlib.metadata.entry_points(group="opgraft.operators"):
        found[entry.name] = entry.value
    for module in filter(None, os.environ.get("OPGRAFT_OPERATORS", "").split(",")):
        found[module.rpartition(".")[2]] = module
    return found


def _module(name: str) -> str:
    if name not in modules():
        raise ValueError(f"unknown operator {name!r}; operators: {', '.join(modules())}")
    return modules()[name]


def load(name: str) -> ModuleType:
    """Import an operator's folder. Raises ValueError that lists the operators if there is none of this name."""
    return importlib.import_module(_module(name))


def folder(name: str) -> pathlib.Path:
    """The folder of an operator."""
    spec = importlib.util.find_spec(_module(name))
    if spec is None or spec.origin is None:
        raise ValueError(f"operator {name!r}: its module {modules()[name]} is not installed")
    return pathlib.Path(spec.origin).parent


def select(names: str | Iterable[str] | None) -> list:
    """The declarations of some operators, or of all that can be registered if ``names`` is None."""
    if names is None:
        return [o for o in (load(name).OPERATOR for name in modules()) if o.refusal is None]
    wanted = [names] if isinstance(names, str) else list(names)
    return [load(name).OPERATOR for name in wanted]
