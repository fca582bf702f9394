"""Derivatives of ours: what is put at the autograd key of an operator that PyTorch composes from others, and operators of our own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._functorch.utils import enable_single_level_autograd_function

from opgraft.call_path import set_inside

from .arguments import by_name
from .decide import Decider
from .declare import Composite, Gradient, NotDifferentiable, Override

_below_autograd = torch._C._AutoDispatchBelowAutograd
_PYTHON = torch._C.DispatchKey.Python


class Recorded:
    """A call whose gradient is kept, by our own derivative: called with (key set, arguments, keywords).

    Attributes:
        whole: whether it is the whole call, which counts it and runs inside the override: so for a :class:`Composite`. A
            :class:`Gradient` goes on below autograd, and counts where it arrives.
    """

    def __init__(self, override: Override):
        gradient: Any = override.gradient
        self.whole = issubclass(gradient, Composite)
        if self.whole:
            self._run: Callable = lambda keyset, *args, **kwargs: gradient.forward(*args, **kwargs)
        else:
            self._run = differentiable(override.overload, gradient)

    def __call__(self, keyset, *args, **kwargs):
        """The operator's result, recorded."""
        return self._run(keyset, *args, **kwargs)


def recorder(override: Override, decide: Decider) -> Callable[..., str | Recorded] | None:
    """What becomes of a call whose gradient is kept: why native runs, or ours. None for an operator whose gradient is not ours to keep."""
    if not issubclass(override.gradient, (Gradient, Composite)):
        return None
    ours = Recorded(override)

    def record(*args, **kwargs) -> str | Recorded:
        return decide.reason(*args, **kwargs) or ours

    return record


def uncertain(override: Override, decide: Decider, native, tallies) -> Callable[..., Any] | None:
    """Runs a call at the autograd key that no plan serves: one that is only traced, has symbols for sizes, or carries a tangent of
    forward-mode AD. Called with (key set, arguments, keywords).

    Args:
        override: what is replaced.
        decide: what becomes of a call.
        native: the kernel that was there before; called with the same.
        tallies: counts, ``count()`` and ``hand_over(reason)``.
    """
    if not issubclass(override.gradient, (Gradient, Composite)):
        return None
    ours = Recorded(override)

    def run(keyset, *args, **kwargs):
        traced = is_traced(args)
        reason = "forward-mode AD" if has_tangent(args) else (decide.traced if traced else decide.reason)(*args, **kwargs)
        if reason is None and not ours.whole:
            return ours(keyset, *args, **kwargs)
        if not traced:
            tallies().count() if reason is None else tallies().hand_over(reason)
        before = set_inside(True)
        try:
            return (ours if reason is None else native)(keyset, *args, **kwargs)
        finally:
            set_inside(before)

    return run


def is_traced(args: tuple) -> bool:
    """Whether a call only records what it would do: fake and functional tensors answer in Python and have no data."""
    return any(isinstance(a, torch.Tensor) and torch._C._dispatch_keys(a).has(_PYTHON) for a in args)


def has_tangent(args: tuple) -> bool:
    """Whether a tensor carries a tangent of forward-mode AD."""
    if torch.autograd.forward_ad._current_level < 0:
        return False
    unpack = torch.autograd.forward_ad.unpack_dual
    return any(isinstance(a, torch.Tensor) and unpack(a, level=0).tangent is not None for a in args)


def differentiable(overload: torch._ops.OpOverload, gradient: type[Gradient]):
    """A call of an operator below autograd, recorded with a derivative of ours.

    Returns:
        A function of (key set, arguments, keywords).
    """
    after_autograd = torch._C._after_autograd_keyset
    save = by_name(gradient.save, overload._schema)

    class Function(torch.autograd.function._SingleLevelFunction):
        # Single level: inside the dispatcher functorch is already at one of its levels, and a Function that started
        # its own interpretation there would lose it.
        @staticmethod
        def forward(ctx, keyset, keywords, *args):
            with _below_autograd():
                output = overload.redispatch(keyset & after_autograd, *args, **keywords)
                ctx.given = len(args)
                save(*args, **keywords, ctx=ctx, output=output)
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
    record = None if gradient is NotDifferentiable else differentiable(overload, gradient)
    after_autograd = torch._C._after_autograd_keyset

    def autograd(keyset, *args, **kwargs):
        if record is not None and torch.is_grad_enabled() and torch._C._any_requires_grad(*args):
            return record(keyset, *args, **kwargs)
        with _below_autograd():
            return overload.redispatch(keyset & after_autograd, *args, **kwargs)

    _own.impl(overload, kernel, "CompositeExplicitAutograd")
    _own.impl(overload, autograd, "Autograd", with_keyset=True)
    torch.library.register_fake(name, fake, lib=_own)
    return overload
