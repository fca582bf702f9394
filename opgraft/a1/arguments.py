"""A call's arguments by the schema's names, so that what an operator declares takes those that it names and no others."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

#: Given by whoever calls, beside the schema's arguments: autograd's context, and the operator's result.
BESIDES = ("ctx", "output")
#: By c10::MemoryFormat's numbers.
_MEMORY_FORMATS = (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def bound(schema: torch._C.FunctionSchema, args: tuple, kwargs: dict) -> dict[str, Any]:
    """Every argument of a call by name, defaults filled in."""
    found = {}
    for i, argument in enumerate(schema.arguments):
        if i < len(args):
            found[argument.name] = args[i]
        else:
            found[argument.name] = kwargs[argument.name] if argument.name in kwargs else default(argument)
    return found


def default(argument: torch._C.Argument) -> Any:
    """An argument's default as Python code would write it: a schema holds a memory format as its number."""
    value = argument.default_value
    return _MEMORY_FORMATS[value] if isinstance(value, int) and str(argument.real_type) == "MemoryFormat" else value


def by_name(function: Callable[..., Any], schema: torch._C.FunctionSchema) -> Callable[..., Any]:
    """``function`` as one that is called with the operator's own arguments, of which it takes those that its parameters name.

    One that takes ``*args`` gets the call as it is. What is not the schema's (:data:`BESIDES`) is passed by keyword.

    Raises:
        TypeError: a parameter is no argument of the schema; lists those that are.
    """
    parameters = inspect.signature(function).parameters
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters.values()):
        return function
    names = [p.name for p in parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    known = [a.name for a in schema.arguments]
    wrong = [name for name in names if name not in (*known, *BESIDES)]
    if wrong:
        raise TypeError(
            f"{function.__qualname__} names {', '.join(wrong)}, which {schema.name} has not; its arguments are {', '.join(known)}"
        )
    if (
        names == known
        and all(parameters[n].kind in _POSITIONAL for n in names)
        and not any(a.kwarg_only for a in schema.arguments)
    ):
        defaults = [p.default for p in parameters.values()]
        if all(d is inspect.Parameter.empty or d == default(a) for d, a in zip(defaults, schema.arguments)):
            return function  # it is the call already

    def call(*args, **kwargs):
        besides = {name: kwargs.pop(name) for name in BESIDES if name in kwargs and name not in known}
        values = bound(schema, args, kwargs) | besides
        return function(**{name: values[name] for name in names})

    return call
