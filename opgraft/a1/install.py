"""Putting overrides into PyTorch's dispatcher, and reading who would be reached.

Facts of the dispatcher that this rests on (PyTorch 2.13, docs/dispatcher.md):

* a kernel at the backend key is reached in every mode; one at the autograd key is skipped in inference_mode;
* a captured kernel can be called without going through the dispatcher again;
* the ``Autograd`` alias keeps PyTorch's own formula, which any autograd key without a kernel of its own shows.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from opgraft import call_path

from . import python_path
from .decide import Decider
from .declare import Composite, Gradient, NotDifferentiable, Override
from .derive import recorder, uncertain

#: An autograd key that no backend uses here: its computed kernel is PyTorch's own autograd kernel.
_UNUSED_AUTOGRAD_KEY = "AutogradXLA"


class Installed:
    """The kernels of one override in the dispatcher, in either call path, and their counts."""

    def __init__(self, override: Override, profile, operator: str, counter: dict | None):
        overload, (autograd_key, backend_key) = override.overload, profile.keys
        self._overload = overload
        decide = Decider(operator, override, profile)
        self._kernels: list[Any] = []
        self._undo: list[Callable[[], None]] = []
        if _needs_autograd_key(override, autograd_key):
            own = issubclass(override.gradient, (Gradient, Composite, NotDifferentiable))
            native = torch.library.get_kernel(overload, autograd_key).call_boxed
            unsure = uncertain(override, decide, native, lambda: self._kernels[0])
            given: tuple[Any, ...] = (decide, recorder(override, decide), unsure, counter) if own else (None,) * 4
            native_key = autograd_key if own else _UNUSED_AUTOGRAD_KEY
            self._kernels.append(_kernel(overload, autograd_key, "autograd" if own else "formula", native_key, *given))
        self._kernels.append(_kernel(overload, backend_key, "backend", backend_key, decide, None, None, counter))
        # The autograd key comes first, and goes last: between the two a composite would lose its gradient.
        try:
            for kernel in self._kernels:
                kernel.install(f"registered at {__file__}")
                self._forget()
        except BaseException:
            self.remove()
            raise

    def start(self) -> None:
        """From here on calls are ours; before, they pass through to native."""
        for kernel in self._kernels:
            kernel.start()

    def remove(self) -> None:
        """Take the kernels out. Removing twice does nothing."""
        for kernel in reversed(self._kernels):
            kernel.stop()
        for kernel in reversed(self._kernels):
            kernel.uninstall()
        self._forget()
        while self._undo:
            self._undo.pop()()

    def when_gone(self, undo: Callable[[], None]) -> None:
        """Call ``undo`` once the kernels are out of the dispatcher, which on the Python path may be after :meth:`remove`."""
        kernel = self._kernels[-1]
        if isinstance(kernel, python_path.PythonInstalled):
            kernel.when_gone(undo)
        else:
            self._undo.append(undo)

    @property
    def hits(self) -> int:
        """Calls that reached the override."""
        return sum(kernel.hits for kernel in self._kernels)

    @property
    def inference_hits(self) -> int:
        """Of these, those in inference mode."""
        return sum(kernel.inference_hits for kernel in self._kernels)

    @property
    def handed(self) -> list[tuple[int, str, int]]:
        """Of these, those that native answered: a number by which to sort reasons as they came up, the reason, how many."""
        return [entry for kernel in self._kernels for entry in kernel.handed]

    @property
    def plans(self) -> int:
        """How many decisions are remembered."""
        return sum(kernel.plans for kernel in self._kernels)

    def renew_locks(self) -> None:
        """In a forked child."""
        for kernel in self._kernels:
            if isinstance(kernel, python_path.PythonInstalled):
                kernel.renew_lock()

    def _forget(self) -> None:
        """torch.compile's Python dispatcher remembers "call the kernel at CPU" per operator (PyTorch 2.13:
        ``OpOverload._dispatch_cache``). After a removal there is none at that key, and it calls address 0."""
        self._overload._dispatch_cache.clear()


def _needs_autograd_key(override: Override, autograd_key: str) -> bool:
    """Where PyTorch composes the operator from others, a kernel at the backend key alone would hide the composite and its gradient;
    where a vendor's package put a kernel of its own, that would hide ours."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    composed = issubclass(override.gradient, (Gradient, Composite)) or has(override.qualified_name, "CompositeImplicitAutograd")
    return composed or has(override.qualified_name, autograd_key)


def _kernel(
    overload: torch._ops.OpOverload, key: str, role: str, native_key: str, planner=None, record=None, unsure=None, counter=None
) -> Any:
    extension = call_path.extension()
    if extension is None:
        return python_path.PythonInstalled(overload, key, role, planner, record, unsure, counter, native_key)
    schema = overload._schema
    return extension.Installed(schema.name, schema.overload_name, key, role, planner, record, unsure, counter, native_key)


_ROW = re.compile(r"^(?P<key>\w+): (?P<where>.*) \[(?P<kind>[^\]]+)\]$")
_OURS = (f"registered at {__file__}", f"registered at {python_path.__file__}")


def table(name: str) -> dict[str, tuple[str, str]]:
    """The computed dispatch table of an operator: key -> (where the kernel was registered, what kind it is)."""
    rows = (_ROW.match(line) for line in torch._C._dispatch_dump_table(name).splitlines())
    return {row["key"]: (row["where"], row["kind"]) for row in rows if row}


def unreachable(override: Override, profile) -> str | None:
    """Why an installed override would not be reached in some mode, or None. Reads the dispatcher's tables only."""
    name, (autograd_key, backend_key) = override.qualified_name, profile.keys
    rows = table(name)
    where, kind = rows.get(backend_key, ("nothing", "none"))
    if not where.startswith(_OURS):
        return (
            f"{name} at {backend_key} would run the kernel {where} [{kind}], so the override is not reached in inference_mode "
            "(vLLM runs its forward in that mode)"
        )
    where, kind = rows.get(autograd_key, ("nothing", "none"))
    if not where.startswith(_OURS) and kind in ("kernel", "math kernel"):
        return f"{name} at {autograd_key} runs the kernel {where} [{kind}], which hides the override in grad and no_grad mode"
    return None


def schema_problem(override: Override) -> str | None:
    """How the running PyTorch's schema differs from the declared one, or None if calls made for either fit."""
    declared = torch._C.parse_schema(override.schema)
    try:
        actual = override.overload._schema
    except AttributeError:
        return f"PyTorch {torch.__version__} has no operator {override.qualified_name}"
    if not actual.is_backward_compatible_with(declared):  # type: ignore[attr-defined]
        return f"PyTorch {torch.__version__} declares {actual}, the override was written for {override.schema}"
    return None
