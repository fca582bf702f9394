"""How an operator declares itself: which ATen schemas it replaces, with what, and how the gradient is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    def save(ctx) -> None:
        """Keep on ``ctx`` what the backward needs. It may name arguments of the schema, and ``output``, which the call returns (a tensor,
        or a tuple of them)."""

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

    ``unsupported``, ``features`` and a :class:`Gradient`'s ``save`` name in their parameters those of the schema's arguments that they
    read, in any order; the others are not passed.

    Attributes:
        schema: as PyTorch spells it; checked against the PyTorch that is running.
        kernels: the implementation for each kernel level, called with the schema's arguments.
        unsupported: why the kernels do not take a call, or None. Such a call goes to native and the reason is counted. It may read
            what the call's signature holds (docs/call-path.md): dtype, sizes, strides, device, whether memory is shared, numbers …
        gradient: how the gradient is kept.
        prefer: the kernel level to use although the platform prefers another; None leaves it to the platform.
        backward: whether this is the derivative of another override, which autograd calls: such calls are counted apart.
        features: for an operator whose kernel does not win everywhere: describes the call for the routing table
            (:mod:`opgraft.routing`). It may read what ``unsupported`` may.
        routes: the operator whose table that is, if another's: those that share the copy engine share copy_'s.
    """

    schema: str
    kernels: Mapping[str, Kernel]
    unsupported: Kernel
    gradient: type = Formula
    prefer: str | None = None
    backward: bool = False
    features: Callable[..., Features] | None = None
    routes: str | None = None

    def kernel_for(self, profile) -> Kernel:
        """The kernel that serves a platform: of its kernel level, or of the level this override prefers."""
        return self.kernels[self.prefer or profile.kernel_level]

    @property
    def qualified_name(self) -> str:
        """``aten::clone`` or ``aten::empty.memory_format``."""
        return self.schema.partition("(")[0]

    @property
    def overload(self) -> torch._ops.OpOverload:
        """The operator as an object."""
        namespace, _, rest = self.qualified_name.partition("::")
        packet, _, overload = rest.partition(".")
        return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
