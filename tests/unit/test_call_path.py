"""The call path: what is decided once and for which calls, counts, threads, errors, and where it comes from. On either path."""

import ctypes
import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import numpy as np
import pytest
import torch

import opgraft
from opgraft import call_path, routing
from opgraft.a1 import Formula, NotDifferentiable, Operator, Override

CPP = call_path.state().way == "c++"
only_cpp = pytest.mark.skipif(not CPP, reason="of the C++ call path")


def asked(schema, kernel, gradient=Formula, reason=None):
    """An operator of one override that notes what its ``unsupported`` was asked."""
    questions = []

    def unsupported(*args, **kwargs):
        questions.append((args, kwargs))
        return reason

    name = schema.partition("::")[2].partition("(")[0].replace(".", "_")
    override = Override(schema, kernels={"torch": kernel}, unsupported=unsupported, gradient=gradient)
    return Operator(name, (override,)), questions


CLONE = "aten::clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor"
COPY = "aten::copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)"
ADD = "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"
EMPTY = (
    "aten::empty_strided(SymInt[] size, SymInt[] stride, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, "
    "bool? pin_memory=None) -> Tensor"
)


def _native(name, overload="default"):
    op = getattr(getattr(torch.ops.aten, name), overload)
    return lambda *args, **kwargs: op(*args, **kwargs)


x = torch.randn(4, 6)
buffer = torch.zeros(80, dtype=torch.uint8)
complex_ = torch.randn(3, dtype=torch.complex64)
zero = torch._efficientzerotensor(3)
#: Pairs of calls of one operator that a decision may tell apart.
DIFFERENT = {
    "dtype": (CLONE, lambda: x.clone(), lambda: x.int().view(4, 6).clone()),
    "sizes": (CLONE, lambda: x.clone(), lambda: torch.randn(6, 4).clone()),
    "strides": (CLONE, lambda: x.clone(), lambda: torch.randn(6, 4).t().clone()),
    "rank": (CLONE, lambda: x.clone(), lambda: x.reshape(24).clone()),
    "memory format": (
        CLONE,
        lambda: torch.ones(1, 2, 3, 4).clone(memory_format=torch.channels_last),
        lambda: torch.ones(1, 2, 3, 4).clone(memory_format=torch.contiguous_format),
    ),
    "alignment": (CLONE, lambda: buffer[:8].clone(), lambda: buffer[1:9].clone()),
    "conj bit": (CLONE, lambda: complex_.clone(), lambda: torch._conj(complex_).clone()),
    "neg bit": (CLONE, lambda: torch.zeros(3).clone(), lambda: torch._neg_view(torch.zeros(3)).clone()),
    "shared memory": (COPY, lambda: x[0].copy_(x[1]), lambda: x[0, :3].copy_(x[0, 2:5])),
    "how much is shared": (COPY, lambda: buffer[0:40].copy_(buffer[16:56]), lambda: buffer[0:40].copy_(buffer[32:72])),
    "a flag": (COPY, lambda: torch.zeros(3).copy_(torch.ones(3), True), lambda: torch.zeros(3).copy_(torch.ones(3), False)),
    "a number": (ADD, lambda: torch.add(x, x, alpha=1), lambda: torch.add(x, x, alpha=2)),
    "a number's kind": (ADD, lambda: torch.add(x, x, alpha=1), lambda: torch.add(x, x, alpha=1.0)),
    "the default dtype": (EMPTY, lambda: torch.empty_strided((3,), (1,)), lambda: _with_double(lambda: torch.empty_strided((3,), (1,)))),
    "a forced route": (CLONE, lambda: x.clone(), lambda: _forced(lambda: x.clone())),
    "a gradient": (CLONE, lambda: x.clone(), lambda: x.detach().requires_grad_().clone()),
}  # fmt: skip


def _with_double(call):
    torch.set_default_dtype(torch.float64)
    try:
        return call()
    finally:
        torch.set_default_dtype(torch.float32)


def _forced(call):
    with routing.force("own"):
        return call()


@pytest.mark.parametrize("what", DIFFERENT)
def test_calls_that_differ_are_decided_apart(what):
    schema, one, other = DIFFERENT[what]
    name = schema.partition("::")[2].partition("(")[0]
    kernel = (lambda self, *rest: self) if schema == COPY else _native(*name.split("."))  # native refuses what overlaps
    operator, questions = asked(schema, kernel)
    numbers = []
    with operator.register_a1("CPU"):
        for call in (one, one, other, other, one):
            questions.clear()
            call()
            numbers.append(len(questions))
    assert numbers == [1, 0, 1, 0, 0], f"{what}: decided {numbers} times"


def test_a_zero_tensor_is_decided_apart():
    assert zero._is_zerotensor()
    with opgraft.use("clone", platform="cpu") as (registration,):
        torch.zeros(3).clone()
        assert torch.equal(zero.clone(), torch.zeros(3)) and torch.equal(torch.ones(3).clone(), torch.ones(3))
    assert registration.hits >= 2


def test_a_table_is_bounded_and_forgotten():
    operator, questions = asked(CLONE, _native("clone"))
    with operator.register_a1("CPU") as registration:
        for n in range(4200):
            torch.empty(n, 0).clone()
        assert 0 < registration.plans <= 4096
        torch.empty(4199, 0).clone()
        assert len(questions) == 4200, "the last ones are still remembered"
    assert registration.plans == 0 and registration.hits == 4201


def test_no_tensor_is_kept_alive():
    with opgraft.use(platform="cpu"):
        source = torch.randn(5, 7)
        kept = [
            weakref.ref(source),
            weakref.ref(source.clone()),
            weakref.ref(source.t().contiguous()),
            weakref.ref(torch.empty_like(source)),
        ]
        del source
        gc.collect()
        assert not any(r() is not None for r in kept)


def test_results_of_every_kind_and_lists_of_tensors():
    """Operators that no typed entry serves: several results, lists, strings, optional numbers."""
    calls = {
        "aten::max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)": lambda: torch.max(x, 1),
        "aten::cat(Tensor[] tensors, int dim=0) -> Tensor": lambda: torch.cat([x, x + 1], 1),
        "aten::gelu(Tensor self, *, str approximate='none') -> Tensor": lambda: torch.nn.functional.gelu(x, approximate="tanh"),
        "aten::sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor": lambda: (
            x.sum((0, 1), dtype=torch.float64)
        ),
        "aten::_local_scalar_dense(Tensor self) -> Scalar": lambda: torch.tensor([2 + 3j]).item(),
    }
    for schema, call in calls.items():
        name = schema.partition("::")[2].partition("(")[0].split(".")
        for reason in (None, "by design"):
            operator, questions = asked(schema, _native(*name), NotDifferentiable, reason)
            want = call()
            with operator.register_a1("CPU") as registration:
                got = [call() for _ in range(3)]
            assert registration.hits == 3 and len(questions) == 1, schema
            assert registration.handed_to_native == ({reason: 3} if reason else {})
            for result in got:
                if isinstance(want, torch.Tensor):
                    assert torch.equal(result, want) and result.dtype == want.dtype
                elif isinstance(want, tuple):
                    assert all(torch.equal(a, b) for a, b in zip(result, want))
                else:
                    assert result == want and type(result) is type(want)


@pytest.mark.parametrize("where", ["unsupported", "kernel"])
def test_an_error_reaches_the_caller_and_the_next_call_is_ours(where):
    wrong = [True]

    def fail(*args, **kwargs):
        if wrong[0]:
            raise ZeroDivisionError(f"in {where}")

    def kernel(self, memory_format=None):
        if where == "kernel":
            fail()
        return torch.ops.aten.clone.default(self)

    override = Override(CLONE, {"torch": kernel}, unsupported=lambda *a, **k: fail() if where == "unsupported" else None)
    with Operator("clone", (override,)).register_a1("CPU") as registration:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError, match=f"in {where}"):
                x.clone()
        assert not call_path.inside()
        wrong[0] = False
        assert torch.equal(x.clone(), x)
    assert registration.hits == 3


@pytest.mark.parametrize("reason", [None, "by design"])
def test_what_a_call_calls_in_turn_is_natives(reason):
    """Whether our kernel runs or native's: native's `contiguous` calls clone, and so does the kernel here."""
    outer, _ = asked("aten::contiguous(Tensor(a) self, *, MemoryFormat memory_format=contiguous_format) -> Tensor(a)",
                     lambda self, memory_format=None: self.clone(), NotDifferentiable, reason)  # fmt: skip
    inner, _ = asked(CLONE, _native("clone"))
    with outer.register_a1("CPU") as contiguous, inner.register_a1("CPU") as clone:
        for n in range(3):
            assert torch.equal(x.t().contiguous(), x.t()) and (contiguous.hits, clone.hits) == (n + 1, n)
            assert torch.equal(x.clone(), x) and clone.hits == n + 1


FORWARD_AD = {
    "contiguous": lambda a: a.t().contiguous(),
    "type_as": lambda a: a.type_as(torch.zeros(1, dtype=torch.float64)),
    "dropout": lambda a: torch.nn.functional.dropout(a, 0.5, training=False),
    "clone": lambda a: a.clone(),
    "sdpa": lambda a: torch.nn.functional.scaled_dot_product_attention(a[None], a[None], a[None]),
}


@pytest.mark.parametrize("operator", FORWARD_AD)
def test_a_tangent_is_kept(operator):
    """Forward-mode AD, also of calls whose twins without a tangent are planned."""
    call, tangent = FORWARD_AD[operator], torch.randn(4, 6)
    forward_ad = torch.autograd.forward_ad
    with torch.no_grad() if operator == "sdpa" else torch.enable_grad(), forward_ad.dual_level():
        dual = forward_ad.make_dual(x, tangent)
        want = forward_ad.unpack_dual(call(dual))
        with opgraft.use(operator, platform="cpu"):
            for _ in range(2):
                torch.testing.assert_close(call(x), want.primal)
                torch.testing.assert_close(tuple(forward_ad.unpack_dual(call(dual))), tuple(want))


def test_what_is_declared_takes_the_arguments_that_it_names():
    seen = []

    def unsupported(non_blocking, src):
        seen.append((non_blocking, src.shape))
        return "seen"

    with Operator("copy_", (Override(COPY, {"torch": _native("copy_")}, unsupported),)).register_a1("CPU"):
        torch.zeros(3).copy_(torch.ones(3))
        torch.zeros(2).copy_(torch.ones(2), non_blocking=True)
    assert seen == [(False, (3,)), (True, (2,))]
    wrong = Operator("copy_", (Override(COPY, {"torch": _native("copy_")}, lambda source: None),))
    with pytest.raises(TypeError, match="names source, which aten::copy_ has not; its arguments are self, src, non_blocking"):
        wrong.register_a1("CPU")


def test_a_users_counter_is_right_at_every_moment_and_in_every_thread():
    counter, wrong = {}, []

    def calls():
        for _ in range(200):
            before = counter["n"]
            x.clone()
            if not counter["n"] > before:
                wrong.append(before)

    from opgraft.ops.clone import register_a1

    with register_a1("CPU", counter=counter) as registration:
        threads = [threading.Thread(target=calls) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert counter["n"] == registration.hits == 800 and not wrong
        counter["n"] = 0  # the user's to set
        x.clone()
        assert counter == {"n": 1}


@pytest.mark.parametrize("device", ["cpu", "sim"])
@pytest.mark.parametrize("operator", ["clone", "copy_", "empty_strided", "embedding", "item", "contiguous", "detach"])
def test_threads_may_call_while_an_operator_is_registered_and_removed(operator, device):
    """Also where native is Python (the simulated device's empty_strided, embedding): its object and ours must not be paired wrongly."""
    a = torch.arange(24.0).reshape(4, 6).to(device)
    index = torch.tensor([1, 3]).to(device)
    scalar = torch.tensor(7).to(device)
    call, expected = {
        "clone": (lambda: a.clone(), a),
        "copy_": (lambda: torch.empty_like(a).copy_(a), a),
        "empty_strided": (lambda: torch.empty_strided((2, 3), (3, 1), device=device).fill_(1), torch.ones(2, 3)),
        "embedding": (lambda: torch.nn.functional.embedding(index, a), a[index]),
        "item": (lambda: torch.tensor(scalar.item()), torch.tensor(7)),
        "contiguous": (lambda: a.t().contiguous(), a.t()),
        "detach": (lambda: a.detach(), a),
    }[operator]
    expected = expected.cpu()
    wrong, stop = [], threading.Event()

    def caller():
        while not stop.is_set():
            try:
                got = call().cpu()
                if not torch.equal(got, expected):
                    wrong.append(got)
            except Exception as error:
                wrong.append(error)
                return

    threads = [threading.Thread(target=caller) for _ in range(4)]
    for thread in threads:
        thread.start()
    end, rounds = time.monotonic() + 0.7, 0
    while time.monotonic() < end:
        with opgraft.use(operator, platform=device):
            pass
        rounds += 1
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[:1]
    assert rounds > 10
    with opgraft.use("clone", platform=device):  # what a Python path had to leave behind goes with the next registration
        pass


def test_a_removed_operator_is_natives_again_with_threads_about():
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)  # another thread, that calls nothing
    thread.start()
    before = torch._C._dispatch_dump("aten::clone")
    with opgraft.use("clone", platform="cpu"):
        x.clone()
    after = torch._C._dispatch_dump("aten::clone")
    stop.set()
    thread.join()
    assert after == before


@only_cpp
def test_the_operators_of_ours_have_typed_entries():
    with opgraft.use(platform="cpu") as registrations:
        boxed = [r.operator.name for r in registrations for _, i in r._installed for k in i._kernels if not k.typed]
    assert not boxed


def run(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stdout + done.stderr


TRY = """
    import torch, opgraft
    from opgraft import call_path
    with opgraft.use("clone", platform="cpu") as (registration,):
        torch.ones(3).clone()
    assert registration.hits == 1
    print(call_path.state())
"""


def test_without_a_compiler_the_python_path_serves_and_says_why(tmp_path):
    without = {"CXX": "/nonexistent/c++", "OPGRAFT_CACHE": str(tmp_path), "OPGRAFT_CALL_PATH": ""}
    code, printed = run(TRY, **without)
    assert code == 0 and "way='python'" in printed and "no C++ compiler (/nonexistent/c++) is installed" in printed, printed
    code, printed = run(TRY, **without | {"OPGRAFT_CALL_PATH": "c++"})
    assert code != 0 and "the C++ call path is not to be had here: no C++ compiler" in printed
    code, printed = run("from opgraft.cli import main; import sys; sys.argv = ['opgraft', 'doctor']; main()", **without)
    assert "call path: Python" in printed and "no C++ compiler" in printed, printed


def test_a_compiler_that_fails_is_one_line(tmp_path):
    broken = tmp_path / "c++"
    broken.write_text("#!/bin/sh\necho 'fatal error: no such thing' >&2\nexit 1\n")
    broken.chmod(0o755)
    code, printed = run(TRY, CXX=str(broken), OPGRAFT_CACHE=str(tmp_path / "cache"), OPGRAFT_CALL_PATH="")
    assert code == 0 and "way='python'" in printed and "opgraft: no C++ call path, calls go through Python" in printed, printed


def test_a_wrong_choice_of_path_is_said():
    code, printed = run(TRY, OPGRAFT_CALL_PATH="rust")
    assert code != 0 and "OPGRAFT_CALL_PATH is 'rust'; accepted: c++, python" in printed


def test_a_build_for_another_pytorch_is_not_loaded(tmp_path, monkeypatch):
    from opgraft.call_path import build

    monkeypatch.setattr(build, "BUILT", tmp_path / "built.so")
    monkeypatch.setattr(build, "MADE_FOR", tmp_path / "made_for.json")
    monkeypatch.setattr(build, "cache", lambda: tmp_path / "none")
    monkeypatch.setattr(build, "missing_tools", lambda: "nothing to build with")
    (tmp_path / "built.so").write_text("would crash")
    (tmp_path / "made_for.json").write_text('{"torch": "1.0", "python": "x", "source": "y"}')
    assert build.load() == (None, "nothing to build with")


class Launched:
    """A prepared call that a C function launches, as on a chip: here a callback that takes cuLaunchKernel's arguments and doubles memory."""

    def __init__(self, outputs, operands, result, launches=1, numbers=(b"\x06\0\0\0\0\0\0\0",), hooks=None, errors=()):
        from opgraft.kernels.launch import Direct
        from opgraft.kernels.steps import DirectSteps

        self.calls, self.in_python, self.errors, self.hooks = [], 0, list(errors), hooks
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3)
        self.callback = prototype(self._launch)
        direct = Direct("double", 77, (3, 2, 1), 128, 64, (*operands, *numbers))
        address = ctypes.cast(self.callback, ctypes.c_void_p).value
        self.direct = DirectSteps(torch.device("cpu"), outputs, (direct,) * launches, result, address, hooks)
        self.outputs, self.operands, self.result, self.launches = outputs, operands, result, launches

    def _launch(self, function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra):
        error = self.errors.pop(0) if self.errors else 0
        self.calls.append((function, (gx, gy, gz), (bx, by, bz), shared, stream, extra, error))
        if error:
            return error
        slots = (ctypes.c_void_p * 3).from_address(parameters)
        to, frm = (ctypes.c_void_p.from_address(slots[i]).value for i in (0, 1))
        numel = ctypes.c_int32.from_address(slots[2]).value
        source, target = (np.frombuffer((ctypes.c_float * numel).from_address(a), np.float32) for a in (frm, to))
        target[:] = source * 2
        return 0

    def __call__(self, *args, **kwargs):
        self.in_python += 1
        outputs = [out.allocate() for out in self.outputs]
        tensors = [args[i] if i >= 0 else outputs[-1 - i] for i in self.operands]
        tensors[0].copy_(tensors[1] * 2)
        return args[self.result] if self.result >= 0 else outputs[-1 - self.result]

    def first(self, *args, **kwargs):
        return self(*args, **kwargs), self.direct


def launched(schema, made):
    """An operator whose kernel is ``made``."""
    kernel = lambda *args, **kwargs: made(*args, **kwargs)  # noqa: E731
    kernel.prepare = lambda *args, **kwargs: made
    name = schema.partition("::")[2].partition("(")[0]

    def unsupported(self):
        return None if self.dtype is torch.float32 and self.numel() == 6 else "not of the test"

    return Operator(name, (Override(schema, {"torch": kernel}, unsupported),)).register_a1("CPU")


def output(shape=(6,), stride=(1,)):
    from opgraft.kernels import Output

    return Output(shape, stride, torch.float32, torch.device("cpu"))


@only_cpp
def test_a_launch_without_python():
    """Outputs, operands, numbers, grid, block and shared memory, as planned; the first call alone runs in Python."""
    made = Launched((output((2, 3), (3, 1)),), (-1, 0), -1)
    with launched(CLONE, made) as registration:
        for n in range(4):
            source = (torch.arange(6.0) + n).view(2, 3)
            got = source.clone()
            assert got.stride() == (3, 1) and torch.equal(got, 2 * source)
    assert made.in_python == 1 and registration.hits == 4
    assert made.calls == [(77, (3, 2, 1), (128, 1, 1), 64, None, None, 0)] * 3


@only_cpp
def test_a_launch_that_writes_an_argument():
    made = Launched((), (0, 1), 0)
    target = torch.zeros(6)
    with launched(COPY, made):
        for n in range(3):
            source, version = torch.arange(6.0) + n, target._version
            assert target.copy_(source) is target and torch.equal(target, 2 * source) and target._version == version + 1
    assert len(made.calls) == 2


@only_cpp
def test_a_lazily_cloned_argument_is_copied_before_it_is_written():
    made = Launched((), (0, 1), 0)
    original, source = torch.ones(6), torch.arange(6.0)
    with launched(COPY, made):
        for _ in range(2):
            lazy = torch._lazy_clone(original)
            lazy.copy_(source)
            assert torch.equal(lazy, 2 * source) and torch.equal(original, torch.ones(6))


@only_cpp
def test_a_less_aligned_output_is_launched_anew_from_python():
    """A kernel is compiled for addresses of at least 16 bytes' alignment; a chip's allocator may promise less."""
    made, offset = Launched((output(),), (-1, 0), -1), [0]

    def empty(size, **_):
        raw = torch.empty_strided((64,), (1,), dtype=torch.float32)
        first = -raw.data_ptr() // 4 % 4 + offset[0]
        return raw[first : first + size[0]]

    library = torch.library.Library("aten", "IMPL")
    source = torch.arange(6.0)
    try:
        with launched(CLONE, made):
            source.clone()
            library.impl("empty.memory_format", empty, "CPU", allow_override=True)
            for offset[0], want in ((0, (1, 1)), (1, (2, 1)), (4, (2, 2))):
                assert torch.equal(source.clone(), 2 * source) and (made.in_python, len(made.calls)) == want
    finally:
        library._destroy()


@only_cpp
def test_python_launches_while_a_profiler_watches():
    hooks = []
    made = Launched((output(),), (-1, 0), -1, hooks=hooks)
    source = torch.arange(6.0)
    with launched(CLONE, made):
        source.clone(), source.clone()
        assert (made.in_python, len(made.calls)) == (1, 1)
        hooks.append(print)
        assert torch.equal(source.clone(), 2 * source) and (made.in_python, len(made.calls)) == (2, 1)
        hooks.clear()
        source.clone()
        assert (made.in_python, len(made.calls)) == (2, 2)


@only_cpp
def test_a_launch_that_fails():
    """At once: Python launches, which makes a context of the device or says what is wrong. After others: an error that names the kernel."""
    source = torch.arange(6.0)
    made = Launched((output(),), (-1, 0), -1, errors=[201])
    with launched(CLONE, made) as registration:
        source.clone()
        assert torch.equal(source.clone(), 2 * source) and made.in_python == 2 and registration.hits == 2
    made = Launched((output(),), (-1, 0), -1, launches=2, errors=[0, 700])
    with launched(CLONE, made):
        source.clone()
        with pytest.raises(RuntimeError, match="kernel double: the launch failed with error 700"):
            source.clone()
        assert not call_path.inside()


@only_cpp
def test_steps_keep_no_tensor_and_run_in_every_thread():
    made = Launched((output(),), (-1, 0), -1)
    with launched(CLONE, made) as registration:
        wrong = []

        def caller():
            for n in range(50):
                source = torch.arange(6.0) + n
                if not torch.equal(source.clone(), 2 * source):
                    wrong.append(n)

        threads = [threading.Thread(target=caller) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong and registration.hits == 200
