"""How an operator declares itself: which ATen schemas it replaces, with what, and how the gradient is kept."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from opgraft.routing import Features

Kernel = Callable[..., Any]


class Formula:
    """PyTorch's own derivative formula stays in charge (clone, copy_, embedding).

    The kernel goes to the backend key, below autograd. Only where a vendor's package put its own kernel at the
    autograd key, which would shadow ours, PyTorch's formula is put back on top of it.
    """


class NotDifferentiable:
    """The result carries no gradient (item, empty_like): the kernel goes to the backend key."""


class Gradient:
    """Our own derivative, for operators that PyTorch composes from others (contiguous, type_as, dropout).

    A kernel at the backend key switches such a composite off together with its gradient, so the autograd key
    gets a function built from these two methods.
    """

    @staticmethod
    def save(ctx, inputs: tuple, keywords: dict, output: Any) -> None:
        """Keep on ``ctx`` what the backward needs; ``inputs`` are the positional arguments, defaults filled in, and
        ``output`` is what the call returns (a tensor, or a tuple of them)."""

    @staticmethod
    def backward(ctx, *grads: torch.Tensor) -> tuple:
        """One gradient (or None) for each positional argument, from one for each output. Built from differentiable
        calls, it can itself be differentiated."""
        raise NotImplementedError


class Composite:
    """Our own composite, for operators whose result depends on more than their arguments (dropout's random state).

    The autograd key gets :meth:`forward`, which computes the operator from differentiable calls, among them an
    operator of ours (:func:`opgraft.a1.define`); without a gradient to keep, the kernel at the backend key runs.
    """

    @staticmethod
    def forward(*args, **kwargs):
        """The operator, with its arguments, from differentiable calls."""
        raise NotImplementedError


@dataclass(frozen=True)
class Override:
    """One ATen schema and what replaces it.

    Attributes:
        schema: as PyTorch spells it; checked against the PyTorch that is running.
        kernels: the implementation for each kernel level, called with the schema's arguments.
        unsupported: called with the same arguments, returns why the kernels do not take them, or None. Such a
            call goes to native and the reason is counted. It may read metadata only (shape, dtype, …).
        gradient: how the gradient is kept.
        prefer: the kernel level to use although the platform prefers another; None leaves it to the platform.
        backward: whether this is the derivative of another override, which autograd calls: such calls are counted apart.
        features: for an operator whose kernel does not win everywhere: called with the same arguments, describes the
            call for the routing table (:mod:`opgraft.routing`).
        signature: called with the same arguments, a key of everything that ``unsupported`` and ``features`` read, or None for a
            call that must be looked at anew; what they decide is then remembered by it.
        routes: the operator whose table that is, if another's: those that share the copy engine share copy_'s.
    """

    schema: str
    kernels: Mapping[str, Kernel]
    unsupported: Kernel
    gradient: type = Formula
    prefer: str | None = None
    backward: bool = False
    features: Callable[..., Features] | None = None
    signature: Callable[..., Hashable] | None = None
    routes: str | None = None

    def kernel_for(self, profile) -> Kernel:
        """The kernel that serves a platform: of its kernel level, or of the level this override prefers."""
        return self.kernels[self.prefer or profile.kernel_level]

    @property
    def qualified_name(self) -> str:
        """``aten::clone`` or ``aten::empty.memory_format``."""
        return self.schema.partition("(")[0]

    def call(self, *args, **kwargs):
        """Run the kernel of the first argument's platform directly: no registration, no counting, no gradient."""
        from opgraft.a1 import dispatch

        return dispatch.call_directly(self, *args, **kwargs)

    @property
    def overload(self) -> torch._ops.OpOverload:
        """The operator as an object."""
        namespace, _, rest = self.qualified_name.partition("::")
        packet, _, overload = rest.partition(".")
        return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")


@dataclass(frozen=True)
class Operator:
    """An operator's declaration. Its folder holds one of these, and nothing of how registration works.

    Attributes:
        name: the folder's name.
        overrides: the ATen schemas it replaces together.
        refusal: for an operator that cannot be registered by design, why. Its overrides then only declare its
            schema and kernels.
        companion: called with the platform when the operator is installed, for what must change beside the
            dispatcher; returns the function that undoes it.
    """

    name: str
    overrides: tuple[Override, ...]
    refusal: str | None = None
    companion: Callable[[Any], Callable[[], None]] | None = None

    @property
    def aten_names(self) -> set[str]:
        """The ATen operators it replaces, without overloads, as a profiler names them: ``{"aten::clone"}``."""
        return {override.qualified_name.partition(".")[0] for override in self.overrides}

    def register_a1(self, dispatch_key: str = "AutogradPrivateUse1", counter: dict | None = None, platform: str | None = None):
        """Replace the operator on a platform by our kernel.

        Args:
            dispatch_key: one of the platform's two keys, its autograd key (canonical) or its backend key. Either
                way the override is reached in grad mode, ``no_grad`` and ``inference_mode``.
            counter: ``counter["n"]`` counts the calls that reach the operator, from 0 if it is not set.
            platform: the platform's name; if None it follows from the key and the backend that is present.

        Returns:
            The :class:`~opgraft.a1.Registration`: a context manager with ``remove()``, ``hits`` and
            ``handed_to_native``. The library keeps it alive until it is removed.

        Raises:
            RuntimeError: unknown platform or key, the device is not usable here, the operator is registered for
                this platform already, or the override could not be reached.
            NotImplementedError: the operator cannot be registered by design.
            TypeError: an argument is of the wrong type.
        """
        from . import registry

        return registry.register(self, dispatch_key, counter, platform)
