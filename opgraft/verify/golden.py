"""Golden data: small committed inputs and results, made on the CPU from an operator's reference.

``golden/spec.json`` declares the inputs and holds the hash of ``golden/data.safetensors``. ``script/make_golden.py``
writes both; no test run does.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from opgraft import catalogue

from .inputs import Case, TensorSpec


def folder(operator: str) -> pathlib.Path:
    """The operator's golden folder."""
    return catalogue.folder(operator) / "golden"


def exists(operator: str) -> bool:
    """Whether the operator has golden data."""
    return operator in catalogue.modules() and (folder(operator) / "spec.json").exists()


def make(operator: str, cases: Iterable[Case], reference: Callable, geometry_only: bool = False) -> int:
    """Write golden data for the cases marked golden; returns how many there were.

    Args:
        operator: whose folder to write to.
        cases: candidates.
        reference: gives the results.
        geometry_only: the results have no values to hold (uninitialised tensors, dtypes); their description is held.
    """
    tensors: dict[str, torch.Tensor] = {}
    declared = []
    for number, case in enumerate(c for c in cases if c.golden):
        args = case.arguments("cpu")
        for place, arg in enumerate(args):
            if isinstance(arg, torch.Tensor):
                # The bytes of the storage, so that the declared strides apply to the stored tensor.
                span = arg.untyped_storage().nbytes() // arg.dtype.itemsize
                tensors[f"{number}.in{place}"] = arg.as_strided((span,), (1,), 0).clone()
        result = reference(*args, **case.kwargs)
        entry = {
            "name": case.name,
            "args": [_declare(a) for a in case.args],
            "kwargs": {k: _declare(v) for k, v in case.kwargs.items()},
        }
        if geometry_only:
            entry["result"] = describe(result)
        else:
            tensors[f"{number}.out"] = (result if isinstance(result, torch.Tensor) else torch.tensor(result)).contiguous()
        declared.append(entry)
    data = save_tensors(tensors)
    target = folder(operator)
    target.mkdir(exist_ok=True)
    (target / "data.safetensors").write_bytes(data)
    spec = {"made with": f"torch {torch.__version__}", "sha256": hashlib.sha256(data).hexdigest(), "cases": declared}
    (target / "spec.json").write_text(json.dumps(spec, indent=1) + "\n", encoding="utf-8")
    return len(declared)


def load(operator: str, device: str | torch.device = "cpu") -> list[tuple[Case, tuple, Any]]:
    """The stored cases: (case, positional arguments on a device in their declared geometry, expected result).

    The result is a CPU tensor, or the description of a result without values.

    Raises:
        AssertionError: the data is not what the spec's hash says.
    """
    spec = json.loads((folder(operator) / "spec.json").read_text(encoding="utf-8"))
    data = (folder(operator) / "data.safetensors").read_bytes()
    assert hashlib.sha256(data).hexdigest() == spec["sha256"], f"{operator}: golden/data.safetensors was changed (sha256)"
    tensors = load_tensors(data)
    stored = []
    for number, declared in enumerate(spec["cases"]):
        kwargs = {k: _restore(v) for k, v in declared["kwargs"].items()}
        case = Case(declared["name"], tuple(_restore(a) for a in declared["args"]), kwargs)
        args = []
        for place, arg in enumerate(case.args):
            if isinstance(arg, TensorSpec):
                strides = arg.strides if arg.strides is not None else torch.empty(arg.shape, device="meta").stride()
                arg = tensors[f"{number}.in{place}"].to(device).as_strided(arg.shape, strides, arg.offset)
            args.append(arg)
        stored.append((case, tuple(args), declared.get("result", tensors.get(f"{number}.out"))))
    return stored


def describe(result: torch.Tensor | torch.dtype) -> dict[str, Any]:
    """What is compared of a result without values."""
    if isinstance(result, torch.dtype):
        return {"dtype": str(result)}
    return {"shape": list(result.shape), "stride": list(result.stride()), "dtype": str(result.dtype)}


def _declare(arg):
    if isinstance(arg, TensorSpec):
        return {"tensor": dataclasses.asdict(arg)}
    return {"torch": str(arg).removeprefix("torch.")} if isinstance(arg, (torch.dtype, torch.memory_format)) else arg


def _restore(arg):
    if isinstance(arg, list):
        return tuple(arg)
    if not isinstance(arg, dict):
        return arg
    if "torch" in arg:
        return getattr(torch, arg["torch"])
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in arg["tensor"].items()}
    return TensorSpec(**fields)
