"""``opgraft new``: render an operator's folder from ``templates/operator``."""

from __future__ import annotations

import pathlib
import re
from dataclasses import dataclass

import jinja2
import torch

TEMPLATES = pathlib.Path(__file__).parent / "templates" / "operator"
_PYTHON_TYPES = {"Tensor": "torch.Tensor", "int": "int", "float": "float", "bool": "bool", "number": "float"}


@dataclass(frozen=True)
class Rendered:
    """What was written: the folder, its files, and the places left to fill in as (file, line number, line)."""

    folder: pathlib.Path
    files: tuple[pathlib.Path, ...]
    left: tuple[tuple[pathlib.Path, int, str], ...]


def _context(name: str, schema: str, folder: pathlib.Path, package: str) -> dict:
    try:
        parsed = torch._C.parse_schema(schema)
    except RuntimeError as error:
        raise ValueError(
            f"{schema!r} is no schema, such as 'aten::relu(Tensor self) -> Tensor': {str(error).splitlines()[0]}"
        ) from None
    try:
        found = [torch._C._dispatch_find_schema_or_throw(parsed.name, parsed.overload_name)]
    except RuntimeError:
        found = []
    if not found:
        raise ValueError(
            f"PyTorch {torch.__version__} has no operator {parsed.name}{'.' if parsed.overload_name else ''}{parsed.overload_name}"
        )
    positional = [a for a in parsed.arguments if not a.kwarg_only]
    if not positional or str(positional[0].type) != "Tensor":
        raise ValueError(f"{schema!r}: the scaffold is for operators whose first argument is a Tensor")
    first, rest = positional[0].name, positional[1:]

    def parameter(argument) -> str:
        text = f"{argument.name}: {_PYTHON_TYPES.get(str(argument.type), 'object')}"
        return f"{text} = {argument.default_value!r}" if argument.has_default_value() else text

    def value(argument) -> str:
        if str(argument.type) == "Tensor":
            return "TensorSpec((3, 5), seed=1)"
        return (
            repr(argument.default_value)
            if argument.has_default_value()
            else {"float": "0.5", "int": "1", "bool": "True", "number": "0.5"}.get(str(argument.type), "None")
        )

    qualified = parsed.name + (f".{parsed.overload_name}" if parsed.overload_name else "")
    return {
        "name": name,
        "function": re.sub(r"\W", "_", name),
        "schema": schema,
        "package": package,
        "folder": folder,
        "composite": torch._C._dispatch_has_kernel_for_dispatch_key(qualified, "CompositeImplicitAutograd"),
        "first": first,
        "parameters": ", ".join(map(parameter, positional)),
        "arguments": ", ".join(a.name for a in positional),
        "wide_arguments": ", ".join(["wide", *(a.name for a in rest)]),
        "rest": ", ".join(a.name for a in rest),
        "rest_values": ", ".join(map(value, rest)),
        "call": f"torch.ops.aten.{parsed.name.partition('::')[2]}.{parsed.overload_name or 'default'}",
    }


def render(name: str, schema: str, into: pathlib.Path, package: str) -> Rendered:
    """Render a new operator's folder.

    Args:
        name: the folder's and the operator's name.
        schema: the ATen schema it replaces.
        into: the folder of operators, in which ``name`` is made.
        package: the importable package of ``into``, for example ``opgraft.ops`` or ``yours.ops``.

    Raises:
        ValueError: not a name, not a schema, no such operator in this PyTorch, or the folder exists.
    """
    if not name.isidentifier():
        raise ValueError(f"{name!r} cannot be a folder that Python imports; use letters, digits and _")
    folder = into / name
    if folder.exists():
        raise ValueError(f"{folder} exists already")
    context = _context(name, schema, folder, f"{package}.{name}")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    files, left = [], []
    for template in sorted(TEMPLATES.rglob("*.j2")):
        relative = template.relative_to(TEMPLATES)
        target = folder / relative.with_suffix("")
        text = environment.get_template(relative.as_posix()).render(context)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        files.append(target)
        left += [(target, number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if "FILL IN" in line]
    return Rendered(folder, tuple(files), tuple(left))
