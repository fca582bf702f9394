"""Running Triton kernels through Triton's interpreter, on the tensors' own memory: the CPU and the simulated device.

It needs no TRITON_INTERPRET, and kernels keep compiling in the same process.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import types

import numpy as np
import torch
import triton.language as tl
from triton._C.libtriton import ir
from triton.runtime import interpreter
from triton.runtime.interpreter import GridExecutor, InterpretedFunction
from triton.runtime.jit import JITFunction, mangle_type

_interpreting = threading.RLock()
_triton_convert_float = interpreter._convert_float
_triton_dot = interpreter.InterpreterBuilder.create_dot


def _convert_float(data: np.ndarray, source: tl.dtype, target: tl.dtype, rounding_mode) -> np.ndarray:
    """The interpreter's conversion between floating-point formats held as bits, rounding to nearest even.

    Triton's own (3.6 and 3.9) truncates fp32 to bf16 where compiled kernels round, so it is replaced while
    kernels are interpreted; other rounding modes stay Triton's.
    """
    formats = {tl.bfloat16: torch.bfloat16, tl.float16: torch.float16, tl.float32: torch.float32}
    if rounding_mode not in (None, ir.ROUNDING_MODE.RTNE) or not {source, target} <= formats.keys():
        return _triton_convert_float(data, source, target, rounding_mode)
    bits = {16: torch.int16, 32: torch.int32}
    signed = torch.from_numpy(np.ascontiguousarray(data).view(f"i{source.primitive_bitwidth // 8}").reshape(-1))
    converted = signed.view(formats[source]).to(formats[target]).view(bits[target.primitive_bitwidth])
    return converted.numpy().view(f"u{target.primitive_bitwidth // 8}").reshape(data.shape)


def _dot(builder, a, b, d, *rest):
    """``tl.dot`` of bf16 operands in fp32, which holds their products; Triton's (3.6 and 3.9) multiplies their bits."""

    def widened(operand):
        if operand.dtype.scalar != tl.bfloat16:
            return operand
        data = _convert_float(operand.data, tl.bfloat16, tl.float32, None).view(np.float32)
        return interpreter.TensorHandle(data, tl.float32)

    return _triton_dot(builder, widened(a), widened(b), d, *rest)


class _InPlaceExecutor(GridExecutor):
    """The interpreter's executor without its copies to and from the host: the memory is the host's already."""

    def _init_args_hst(self, args_dev, kwargs):
        return args_dev, kwargs

    def _restore_args_dev(self, args_dev, args_hst, kwargs, kwargs_hst):
        return None


class _DeviceFunction(InterpretedFunction):
    """Triton's, without patching the language anew at every call: :func:`interpret` does that once a launch, and half of the
    time of a kernel with helpers went there."""

    def __call__(self, *args, **kwargs):
        return self.rewrite()(*args, **kwargs)


#: Stands for a function that sees all of the language, so that all of it is patched.
_SEES_ALL = types.SimpleNamespace(__globals__={"tl": tl, "core": tl.core})


@functools.cache
def _interpreted_function(kernel: _Identity) -> InterpretedFunction:
    return _DeviceFunction(kernel.function.fn)


class _Identity:
    """A dictionary key for a JITFunction, whose own hash compiles it."""

    def __init__(self, function: JITFunction):
        self.function = function

    def __hash__(self):
        return id(self.function)

    def __eq__(self, other):
        return self.function is other.function


@functools.cache
def _namespaces(kernel: _Identity) -> list[dict]:
    """Every namespace in which the kernel, its helpers or triton.language may find a JIT function."""
    mangle_type(torch.empty(0, device="cpu"))  # Triton finishes importing its language modules here
    spaces = [vars(m) for n, m in list(sys.modules.items()) if n.startswith("triton.language") and m is not None]
    waiting, seen = [kernel.function], set()
    while waiting:
        function = waiting.pop()
        space = function.fn.__globals__
        if id(space) not in seen:
            seen.add(id(space))
            spaces.append(space)
            waiting.extend(v for v in space.values() if isinstance(v, JITFunction))
    return spaces


@functools.cache
def _language(kernel: _Identity) -> list:
    """The modules of triton.language and the classes they define: what Triton's interpreter patches."""
    _namespaces(kernel)  # by now Triton has imported all of them
    modules = [m for n, m in list(sys.modules.items()) if n.startswith("triton.language") and m is not None]
    classes = {c for m in modules for c in vars(m).values() if isinstance(c, type) and c.__module__.startswith("triton.")}
    return [*modules, *classes]


_left_patched: dict[_Identity, list[tuple]] = {}


@contextlib.contextmanager
def _language_restored(kernel: _Identity):
    """Undo what the interpreter leaves patched (3.6: everything; 3.9: what device functions patch), so that kernels
    still compile in this process afterwards.

    What a kernel's interpretation leaves changed is found by comparing everything, once; after that only those names are
    put back. Names that it adds stay: functions that were rewritten for interpretation need them.
    """
    before = None if kernel in _left_patched else [(target, dict(vars(target))) for target in _language(kernel)]
    try:
        yield
    finally:
        if before is not None:
            _left_patched[kernel] = [
                (target, name, original)
                for target, saved in before
                for name, original in saved.items()
                if vars(target).get(name) is not original
            ]
        for target, name, original in _left_patched[kernel]:
            setattr(target, name, original)


def interpret(kernel: JITFunction, grid, args, meta) -> None:
    """Interpret one launch: ``args`` are tensors, numbers and tuples of numbers, ``meta`` the constants.

    ``@triton.jit`` decided at import that these functions compile, so for the length of the launch every JIT
    function the kernel can name is replaced by its interpreted twin.
    """
    key = _Identity(kernel)
    with _interpreting, _language_restored(key):
        replaced = [(vars(interpreter), "_convert_float", _triton_convert_float)]
        interpreter._convert_float = _convert_float
        interpreter.InterpreterBuilder.create_dot = _dot
        for space in _namespaces(key):
            for name, value in list(space.items()):
                if isinstance(value, JITFunction):
                    replaced.append((space, name, value))
                    space[name] = _interpreted_function(_Identity(value))
        scope = interpreter._patch_lang(_SEES_ALL)
        try:
            function = _interpreted_function(key)
            with np.errstate(all="ignore"):  # casts of NaN and out of range values are the kernel's business
                _InPlaceExecutor(function.rewrite(), function.arg_names, grid)(*args, **meta)
        finally:
            if scope is not None:  # Triton 3.6 restores nothing
                scope.restore()
            interpreter.InterpreterBuilder.create_dot = _triton_dot
            for space, name, value in replaced:
                space[name] = value
