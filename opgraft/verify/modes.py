"""The ways PyTorch calls an operator: grad mode, inference_mode, functorch, compile, …

Each mode is given a user's call with tensors of the platform's device and returns a function that makes that call
once, and returns its result. What a mode must do beforehand (compiling) it does before it returns that function, so
that hits counted while it runs are the call's own.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Call = Callable[..., object]


class _PassThrough(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def _under(context: Callable[[], object]):
    def prepare(call: Call, args: tuple, kwargs: dict, device: torch.device):
        def run():
            with context():
                return call(*args, **kwargs)

        return run

    return prepare


def _autocast(call, args, kwargs, device):
    return _under(lambda: torch.autocast(device.type, dtype=torch.bfloat16))(call, args, kwargs, device)


def _vmap(call, args, kwargs, device):
    """One call over a batch of two, each with the strides of the sample; the first of the two results."""
    batched = tuple(a.expand(2, *a.shape) if isinstance(a, torch.Tensor) else a for a in args)
    axes = tuple(0 if isinstance(a, torch.Tensor) else None for a in args)
    mapped = torch.func.vmap(lambda *a: call(*a, **kwargs), axes, randomness="same")
    return lambda: mapped(*batched)[0]


def _functional_grad(call, args, kwargs, device):
    """The call inside ``torch.func.grad``; its primal result."""

    def loss(x):
        result = call(x, *args[1:], **kwargs)
        return result.sum(), result

    return lambda: torch.func.grad(loss, has_aux=True)(args[0])[1]


def _thread(call, args, kwargs, device):
    def run():
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(call, *args, **kwargs).result()

    return run


def _compile(call, args, kwargs, device):
    torch._dynamo.reset()
    compiled = torch.compile(lambda *a: call(*a, **kwargs), backend="aot_eager", fullgraph=True)
    compiled(*args)
    return lambda: compiled(*args)


#: Modes by name. ``vmap`` and ``func.grad`` need a tensor result and a floating-point first argument.
MODES: dict[str, Callable] = {
    "grad": _under(torch.enable_grad),
    "no_grad": _under(torch.no_grad),
    "inference_mode": _under(torch.inference_mode),
    "autocast": _autocast,
    "dispatch mode": _under(_PassThrough),
    "thread": _thread,
    "compile": _compile,
    "vmap": _vmap,
    "func.grad": _functional_grad,
}
