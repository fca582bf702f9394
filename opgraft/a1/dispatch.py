"""Overrides in PyTorch's dispatcher: building them, installing them, and reading who would be reached.

facts of the dispatcher that this rests on (PyTorch 2.13, docs/dispatcher.md):

* a kernel at the backend key is reached in every mode; one at the autograd key is skipped in inference_mode;
* ``torch.library.get_kernel`` gives the kernel that was there before, and calling it does not recurse;
* the ``Autograd`` alias keeps PyTorch's own formula, which any autograd key without a kernel of its own shows.
"""

from __future__ import annotations

import contextlib
import functools
import re
import threading
import warnings
from typing import Any

import torch
from torch._functorch.utils import enable_single_level_autograd_function

from opgraft import platforms

from .decide import Decider
from .operator import Composite, Gradient, NotDifferentiable, Override

_below_autograd = torch._C._AutoDispatchBelowAutograd
#: An autograd key that no backend uses here: its computed kernel is PyTorch's own autograd kernel.
_UNUSED_AUTOGRAD_KEY = "AutogradXLA"
_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


class _Inside(threading.local):
    """Whether this thread is inside an override. Overridden operators called there go straight to native, so that
    implementations may use each other without recursion and a user's call counts once."""

    active = False


inside = _Inside()


@contextlib.contextmanager
def below_overrides():
    """Run a block below autograd, where overridden operators go straight to native: how kernels are called directly."""
    before, inside.active = inside.active, True
    try:
        with torch._C._AutoDispatchBelowADInplaceOrView():
            yield
    finally:
        inside.active = before


@functools.cache
def _tensor_positions(overload: torch._ops.OpOverload) -> tuple[int, ...]:
    return tuple(i for i, a in enumerate(overload._schema.arguments) if str(a.type) == "Tensor" and i > 0)


def _without_numbers(overload):
    """The dispatcher hands a Python override the bare number where native is handed a wrapped one
    (``x[i] = 32`` calls copy_); returns a function that makes it a 0-dim tensor again, or None if there is no need."""
    positions = _tensor_positions(overload)
    if not positions:
        return None

    def wrap(args):
        for i in positions:
            if i < len(args) and type(args[i]) in _NUMBERS:
                number = torch.tensor(args[i], dtype=_NUMBERS[type(args[i])], device="cpu")
                args = (*args[:i], number, *args[i + 1 :])
        return args

    return wrap


def backend_kernel(override: Override, decide: Decider, native, count, hand_over):
    """The kernel for the backend key.

    Args:
        override: what is replaced.
        decide: what becomes of a call.
        native: the kernel that was there before.
        count: called once for each call that arrives.
        hand_over: called with the reason for each call that goes to native.
    """
    wrap = _without_numbers(override.overload)

    def kernel(*args, **kwargs):
        if wrap is not None:
            args = wrap(args)
        if inside.active:
            return native(*args, **kwargs)
        count()
        inside.active = True
        try:
            decided = decide(*args, **kwargs)
            if not isinstance(decided, str):
                return decided(*args, **kwargs)
            hand_over(decided)
            return native(*args, **kwargs)
        finally:
            inside.active = False

    return kernel


def autograd_kernel(override: Override, decide: Decider, native, count, hand_over):
    """The kernel for the autograd key of an operator that PyTorch composes from others.

    Without a gradient to keep it goes on below autograd, where :func:`backend_kernel` counts the call. An input
    that the kernels do not take goes to native here, while autograd still records, so native's gradient is kept.
    """
    overload = override.overload
    wrap = _without_numbers(overload)
    gradient: Any = override.gradient
    composite = issubclass(gradient, Composite)
    ours = _composed(gradient) if composite else differentiable(overload, gradient)
    any_requires_grad = torch._C._any_requires_grad
    after_autograd = torch._C._after_autograd_keyset

    def kernel(keyset, *args, **kwargs):
        if wrap is not None:
            args = wrap(args)
        if inside.active:
            return native(keyset, *args, **kwargs)
        forward_mode = torch.autograd.forward_ad._current_level >= 0
        if not forward_mode and not (torch.is_grad_enabled() and any_requires_grad(*args)):
            with _below_autograd():
                return overload.redispatch(keyset & after_autograd, *args, **kwargs)
        traced = _traced(args)
        decided = "forward-mode AD" if forward_mode else (decide.traced if traced else decide)(*args, **kwargs)
        reason = decided if isinstance(decided, str) else None
        if reason is None and not composite:
            return ours(keyset, *args, **kwargs)
        if not traced:
            count()
            if reason is not None:
                hand_over(reason)
        inside.active = True
        try:
            return (ours if reason is None else native)(keyset, *args, **kwargs)
        finally:
            inside.active = False

    return kernel


def _composed(gradient: type[Composite]):
    return lambda keyset, *args, **kwargs: gradient.forward(*args, **kwargs)


def _traced(args) -> bool:
    """Whether a call only records what it would do: fake and functional tensors answer in Python and have no data."""
    python = torch._C.DispatchKey.Python
    return any(isinstance(a, torch.Tensor) and torch._C._dispatch_keys(a).has(python) for a in args)


def differentiable(overload: torch._ops.OpOverload, gradient: type[Gradient]):
    """A call of an operator below autograd, recorded with a derivative of ours.

    Returns:
        A function of (key set, arguments, keywords).
    """
    after_autograd = torch._C._after_autograd_keyset
    positional = [a for a in overload._schema.arguments if not a.kwarg_only]

    class Function(torch.autograd.function._SingleLevelFunction):
        # Single level: inside the dispatcher functorch is already at one of its levels, and a Function that started
        # its own interpretation there would lose it.
        @staticmethod
        def forward(ctx, keyset, keywords, *args):
            with _below_autograd():
                output = overload.redispatch(keyset & after_autograd, *args, **keywords)
                ctx.given = len(args)
                gradient.save(ctx, args + tuple(a.default_value for a in positional[len(args) :]), keywords, output)
            return output

        @staticmethod
        def backward(ctx, *grads):
            return (None, None, *gradient.backward(ctx, *grads)[: ctx.given])

    Function.__name__ = Function.__qualname__ = f"Opgraft{overload._schema.name.partition('::')[2].title()}"

    def record(keyset, *args, **keywords):
        if torch._C._functorch.peek_interpreter_stack() is None:
            return Function.apply(keyset, keywords, *args)  # type: ignore[attr-defined]
        with enable_single_level_autograd_function():
            return Function.apply(keyset, keywords, *args)  # type: ignore[attr-defined]

    return record


_own = torch.library.Library("opgraft", "FRAGMENT")


def define(schema: str, kernel, fake, gradient: type) -> torch._ops.OpOverload:
    """Define an operator of ours, ``opgraft::name``, that a :class:`Composite` may call.

    Args:
        schema: ``name(Tensor x, …) -> Tensor``, or several tensors.
        kernel: its implementation, for every device.
        fake: the geometry of its results, for FakeTensor and meta.
        gradient: its derivative, a :class:`Gradient`, or :class:`NotDifferentiable`.
    """
    name = f"opgraft::{_own.define(schema)}"
    overload = getattr(torch.ops.opgraft, name.partition("::")[2]).default
    record = differentiable(overload, gradient)
    after_autograd = torch._C._after_autograd_keyset

    def autograd(keyset, *args, **kwargs):
        if gradient is not NotDifferentiable and torch.is_grad_enabled() and torch._C._any_requires_grad(*args):
            return record(keyset, *args, **kwargs)
        with _below_autograd():
            return overload.redispatch(keyset & after_autograd, *args, **kwargs)

    _own.impl(overload, kernel, "CompositeExplicitAutograd")
    _own.impl(overload, autograd, "Autograd", with_keyset=True)
    torch.library.register_fake(name, fake, lib=_own)
    return overload


def call_directly(override: Override, self: torch.Tensor, *args, **kwargs):
    """Run an override's kernel for the platform of ``self``, below autograd; native where it is not supported.

    Raises:
        RuntimeError: no platform describes the device of ``self``.
    """
    profile = platforms.profile_for_device(self.device.type)
    if profile is None:
        known = ", ".join(p.device_type for p in platforms.profiles().values())
        raise RuntimeError(f"no platform describes the device type {self.device.type!r}; described: {known}")
    with below_overrides():
        if override.unsupported(self, *args, **kwargs) is None:
            return override.kernel_for(profile)(self, *args, **kwargs)
        return override.overload(self, *args, **kwargs)


def restored_formula(override: Override):
    """A kernel for the autograd key that is PyTorch's own, for where a vendor's kernel shadows it."""
    return torch.library.get_kernel(override.overload, _UNUSED_AUTOGRAD_KEY).call_boxed


class Installed:
    """Kernels of one override in the dispatcher; :meth:`remove` takes them out again, and what was there is reached."""

    def __init__(self, overload: torch._ops.OpOverload):
        self._overload = overload
        self._libraries: list[torch.library.Library] = []

    def add(self, key: str, kernel, with_keyset: bool) -> None:
        """Put a kernel at a dispatch key; it takes the call's key set before the arguments, or does not."""
        library = torch.library.Library("aten", "IMPL")
        self._libraries.append(library)
        with warnings.catch_warnings():
            # Replacing a kernel is what the user asked for.
            warnings.filterwarnings("ignore", message=r"[\s\S]*Overriding a previously registered kernel")
            library.impl(self._overload, kernel, key, with_keyset=with_keyset, allow_override=True)
        self._forget()

    def remove(self) -> None:
        """Take the kernels out, last first. Removing twice does nothing."""
        while self._libraries:
            self._libraries.pop()._destroy()
        self._forget()

    def _forget(self) -> None:
        """torch.compile's Python dispatcher remembers "call the kernel at CPU" per operator (PyTorch 2.13:
        ``OpOverload._dispatch_cache``). After a removal there is none at that key, and it calls address 0."""
        self._overload._dispatch_cache.clear()


def install(override: Override, profile, decide: Decider, count, hand_over) -> Installed:
    """Install one override for a platform."""
    overload, (autograd_key, backend_key) = override.overload, profile.keys
    # Kernels at a backend key do not read the key set, and making one for Python costs a fifth of the way there.
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, backend_key))
    native = functools.partial(torch.library.get_kernel(overload, backend_key).call_boxed, keys)
    at_backend = backend_kernel(override, decide, native, count, hand_over)
    at_autograd: Any = None
    if issubclass(override.gradient, (Gradient, Composite)):
        native_autograd = torch.library.get_kernel(overload, autograd_key).call_boxed
        at_autograd = autograd_kernel(override, decide, native_autograd, count, hand_over)
    elif torch._C._dispatch_has_kernel_for_dispatch_key(override.qualified_name, autograd_key):
        if issubclass(override.gradient, NotDifferentiable):
            at_autograd = torch.library.fallthrough_kernel
        else:
            at_autograd = restored_formula(override)
    installed = Installed(overload)
    try:
        installed.add(backend_key, at_backend, with_keyset=False)
        if at_autograd is not None:
            installed.add(autograd_key, at_autograd, with_keyset=at_autograd is not torch.library.fallthrough_kernel)
    except BaseException:
        installed.remove()
        raise
    return installed


_ROW = re.compile(r"^(?P<key>\w+): (?P<where>.*) \[(?P<kind>[^\]]+)\]$")
_OURS = f"registered at {__file__}:"


def table(name: str) -> dict[str, tuple[str, str]]:
    """The computed dispatch table of an operator: key -> (where the kernel was registered, what kind it is)."""
    rows = (_ROW.match(line) for line in torch._C._dispatch_dump_table(name).splitlines())
    return {row["key"]: (row["where"], row["kind"]) for row in rows if row}


def unreachable(override: Override, profile) -> str | None:
    """Why an installed override would not be reached in some mode, or None. Reads the dispatcher's tables only."""
    name, (autograd_key, backend_key) = override.qualified_name, profile.keys
    rows = table(name)
    where, kind = rows.get(backend_key, ("nothing", "none"))
    if _OURS not in where:
        return (
            f"{name} at {backend_key} would run the kernel {where} [{kind}], so the override is not reached in inference_mode "
            "(vLLM runs its forward in that mode)"
        )
    where, kind = rows.get(autograd_key, ("nothing", "none"))
    if _OURS not in where and kind in ("kernel", "math kernel"):
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
