"""Op level: does the ordinary PyTorch call reach the kernel, and mean the same?

The operator is registered for the platform and called as a user calls it; results are compared with native PyTorch
on the CPU, and every call must be counted exactly once.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch

from opgraft.a1 import Operator, Registration
from opgraft.kernels import interpreted
from opgraft.platforms import Profile

from . import modes
from .compare import assert_same
from .inputs import Case, TensorSpec
from .levels import Check


@dataclass
class OpLevel:
    """The op level of one operator.

    Attributes:
        operator: its declaration.
        call: the user's call, as ``torch.clone`` or ``lambda x: x.clone()``.
        cases: what it is called with; ``native`` in a case says that the call must be handed over, and why.
        sample: the case that the modes are run with; its first tensor is floating-point and small.
        exact: bit for bit; else within the contract's tolerances.
        compare: compares a result with native's; None compares values, dtype and strides.
        differentiable: whether the result carries a gradient.
        storage: ``new`` if the sample's result must lie in memory of its own, ``same`` if in its first argument's; None
            if there is no tensor to tell of.
        without: modes that do not apply to the operator, each with the reason.
        rewritten: modes in which PyTorch itself rewrites the call into others before any backend sees it: the result is
            compared, but hits are not this call's.
        register: how it is registered; other than the operator's own only to test this level.
        extra: checks that are particular to the operator.
    """

    operator: Operator
    call: Callable
    cases: Iterable[Case]
    sample: Case
    exact: bool = True
    compare: Callable | None = None
    differentiable: bool = True
    storage: str | None = None
    without: Mapping[str, str] = field(default_factory=dict)
    rewritten: frozenset[str] = frozenset()
    register: Callable[[Profile], Registration] | None = None
    extra: Callable[[Profile], Iterable[Check]] = lambda profile: ()
    level = "op"

    def checks(self, profile: Profile) -> Iterator[Check]:
        """A check for every mode and case, gradients, removal, and what is particular."""
        name = self.operator.name
        if self.operator.refusal is not None:
            yield Check("registering is refused, with the reason", lambda: self._refusal(profile), "opgraft/a1/register.py")
            yield from self.extra(profile)
            return
        reach = "the dispatch key and opgraft/a1/install.py: `opgraft probe` shows which modes reach the override"
        kernel = f"ops/{name}/kernel and `unsupported` in ops/{name}/register.py"
        for mode in self.modes():
            yield Check(f"mode {mode}", lambda mode=mode: self._mode(mode, profile), reach)
        if self.differentiable:
            gradient = f"`gradient` in ops/{name}/register.py"
            yield Check("gradient", lambda: self._gradient(profile), gradient)
            yield Check("second gradient", lambda: self._second_gradient(profile), gradient)
            if "compile" not in self.without:
                yield Check("gradient, compiled with symbolic sizes", lambda: self._compiled_gradient(profile), gradient)
        if "FakeTensor" not in self.without:
            yield Check("FakeTensor", lambda: self._fake(profile), reach)
        for case in self.cases:
            yield Check(case.name, lambda case=case: self._case(case, profile), kernel)
        if profile.device_graph() is not None and "device graph" not in self.without:
            yield Check("device graph", lambda: self._device_graph(profile), "what the kernel's Python does beside launching")
        if profile.device_type != "cpu":
            yield Check("another device index", lambda: self._other_device(profile), "opgraft/kernels/launch.py")
        yield Check("removal", lambda: self._removal(profile), "opgraft/a1/register.py")
        yield from self.extra(profile)

    def modes(self) -> dict[str, Callable]:
        """The modes that apply to the operator."""
        return {name: prepare for name, prepare in modes.MODES.items() if name not in self.without}

    def _compare(self, got, want, what: str) -> None:
        if self.compare is not None:
            self.compare(got, want, what)
        else:
            assert_same(got, want, what, self.exact)

    def _compare_gradients(self, got: tuple, want: tuple, what: str) -> None:
        assert_same(got, want, what, self.exact, strides=False)

    @contextlib.contextmanager
    def registered(self, profile: Profile) -> Iterator[Registration]:
        """The operator registered for the platform."""
        make = self.register or (lambda p: self.operator.register_a1(p.dispatch_key, platform=p.name))
        with make(profile) as registration, warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*not implemented the autograd.*")
            yield registration

    def native(self, case: Case):
        """What native PyTorch gives on the CPU."""
        return self.call(*case.arguments("cpu"), **case.kwargs)

    def _refusal(self, profile: Profile) -> dict:
        try:
            self.operator.register_a1(profile.dispatch_key, platform=profile.name)
        except NotImplementedError as error:
            assert self.operator.refusal in str(error), f"the error does not give the reason: {error}"
            return {"refused": str(error)}
        raise AssertionError("registering must raise NotImplementedError")

    def _mode(self, mode: str, profile: Profile) -> dict:
        case, prepare = self.sample, self.modes()[mode]
        args = case.arguments(profile.device)  # before registering: making inputs calls operators too
        with self.registered(profile) as registration:
            run = prepare(self.call, args, case.kwargs, torch.device(profile.device))
            before = registration.hits
            got = run()
            hits = registration.hits - before
        want = prepare(self.call, case.arguments("cpu"), case.kwargs, torch.device("cpu"))()
        self._compare(got, want, mode)
        self.check_storage(got, args)
        if mode in self.rewritten:
            return {"hits": hits, "rewritten by PyTorch": True}
        assert hits == 1, f"{mode}: one call was counted {hits} times" + (
            "; the override is never reached there" if not hits else ""
        )
        return {"hits": hits}

    def check_storage(self, result, args: tuple) -> None:
        """Assert that a result's memory is new, or its first argument's, as :attr:`storage` says."""
        if self.storage is not None:
            pointers = result.untyped_storage().data_ptr(), args[0].untyped_storage().data_ptr()
            same = pointers[0] == pointers[1]
            assert same == (self.storage == "same"), f"the result must lie in {self.storage} memory as its input"

    def _leaves(self, case: Case, device):
        args = tuple(
            a.with_grad().on(device) if isinstance(a, TensorSpec) and a.torch_dtype.is_floating_point else a for a in case.args
        )
        args = tuple(a.on(device) if isinstance(a, TensorSpec) else a for a in args)
        return args, [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]

    def _differentiated(self, device, order: int):
        args, leaves = self._leaves(self.sample, device)
        result = self.call(*args, **self.sample.kwargs)
        assert result.requires_grad, f"the result does not require grad (grad_fn {result.grad_fn}): the gradient is lost"
        weight = torch.linspace(-1, 1, result.numel()).reshape(result.shape).to(result)
        gradients = torch.autograd.grad((result * weight).pow(2).sum(), leaves, create_graph=True, allow_unused=True)
        assert any(g is not None for g in gradients), "backward gave no gradient to the inputs: the gradient is lost"
        if order == 2:
            total = sum(g.pow(2).sum() for g in gradients if g is not None)
            gradients = torch.autograd.grad(total, leaves, allow_unused=True)
        return gradients

    def _gradient(self, profile: Profile, order: int = 1) -> dict:
        with self.registered(profile) as registration:
            got = self._differentiated(profile.device, order)
            assert registration.hits >= 1, "the call was not counted"
        self._compare_gradients(got, self._differentiated("cpu", order), f"gradient of order {order}")
        return {"hits": registration.hits}

    def _second_gradient(self, profile: Profile) -> dict | None:
        return self._gradient(profile, 2)

    def _compiled_gradient(self, profile: Profile) -> None:
        """What decides about a call must not ask a size that is a symbol for its number, nor look it up in a dictionary."""

        def gradients(call: Callable, device):
            args, leaves = self._leaves(self.sample, device)
            result = call(*args)
            weight = torch.linspace(-1, 1, result.numel()).reshape(result.shape).to(result)
            return torch.autograd.grad((result * weight).sum(), leaves, allow_unused=True)

        def call(*args):
            return self.call(*args, **self.sample.kwargs)

        torch._dynamo.reset()
        with self.registered(profile):
            got = gradients(torch.compile(call, backend="aot_eager", dynamic=True, fullgraph=True), profile.device)
        self._compare_gradients(got, gradients(call, "cpu"), "gradient of the compiled call")

    def _fake(self, profile: Profile) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode

        real = self.sample.arguments(profile.device)

        def fake():
            with FakeTensorMode(allow_non_fake_inputs=True) as mode:
                args = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in real]
                return self.call(*args, **self.sample.kwargs)

        want = fake()
        with self.registered(profile) as registration:
            got = fake()
            assert registration.hits == 0, "a fake tensor has no data, yet the kernel was called with it"
        if isinstance(got, torch.Tensor):
            assert (got.shape, got.stride(), got.dtype) == (want.shape, want.stride(), want.dtype), (
                f"fake result {tuple(got.shape)} {got.stride()} {got.dtype}, native {tuple(want.shape)} {want.stride()} {want.dtype}"
            )

    def _case(self, case: Case, profile: Profile) -> dict:
        refused = (RuntimeError, TypeError, ValueError, IndexError)
        want, error = _outcome(lambda: self.native(case), refused)
        args = case.arguments(profile.device)
        with self.registered(profile) as registration:
            got, raised = _outcome(lambda: self.call(*args, **case.kwargs), refused if error is not None else ())
            if error is not None:
                assert raised is not None, f"native raises {type(error).__name__}: {error}; the override gave a result"
                assert isinstance(raised, type(error)), f"raised {raised!r}, native raises {error!r}"
                return {"raises": type(raised).__name__}
            assert registration.hits == 1, f"one call was counted {registration.hits} times"
            handed = registration.handed_to_native
        # On a real device a call that native answers has that device's native result, which `want` is not.
        if case.native is None or interpreted(torch.device(profile.device)):
            self._compare(got, want, case.name)
        if case.native is None:
            assert not handed, f"the kernel must take this call, but it was handed to native: {handed}"
        else:
            assert any(case.native in reason for reason in handed), f"expected native because of {case.native!r}, got {handed}"
        return {"handed to native": handed} if handed else {}

    def _device_graph(self, profile: Profile) -> None:
        """Captured once, replayed after the override is removed and its inputs hold other numbers."""
        case, backend = self.sample, torch.get_device_module(profile.device_type)
        args, others = case.arguments(profile.device), _negated(case.arguments(profile.device))
        graph, stream = profile.device_graph()(), backend.Stream()
        stream.wait_stream(backend.current_stream())
        with self.registered(profile) as registration, backend.stream(stream):
            self.call(*args, **case.kwargs)  # compiles
            with backend.graph(graph, stream=stream):
                got = self.call(*args, **case.kwargs)
            assert registration.hits == 2, f"two calls were counted {registration.hits} times"
        backend.synchronize()
        for mine, other in zip(args, others):
            if isinstance(mine, torch.Tensor):
                mine.copy_(other)
        graph.replay()
        backend.synchronize()
        self._compare(got, self.call(*_negated(case.arguments("cpu")), **case.kwargs), "replay of a device graph")

    def _other_device(self, profile: Profile) -> dict:
        backend = torch.get_device_module(profile.device_type)
        if backend.device_count() < 2:
            return {"not run": "one device only"}
        device = f"{profile.device_type}:1"
        args = self.sample.arguments(device)
        with self.registered(profile) as registration:
            got = self.call(*args, **self.sample.kwargs)
            assert registration.hits == 1, f"one call on {device} was counted {registration.hits} times"
        if isinstance(got, torch.Tensor):
            assert got.device == torch.device(device), f"the result is on {got.device}, the input was on {device}"
        self._compare(got, self.native(self.sample), device)
        return {}

    def _removal(self, profile: Profile) -> None:
        names = [o.qualified_name for o in self.operator.overrides]
        before = {name: torch._C._dispatch_dump(name) for name in names}
        first, second = self.sample.arguments(profile.device), self.sample.arguments(profile.device)
        with self.registered(profile) as registration:
            self.call(*first, **self.sample.kwargs)
        hits = registration.hits
        got = self.call(*second, **self.sample.kwargs)
        assert registration.hits == hits, "the override was reached after its removal"
        after = {name: torch._C._dispatch_dump(name) for name in names}
        assert after == before, f"the dispatch table of {[n for n in names if after[n] != before[n]]} is not as it was"
        self._compare(got, self.native(self.sample), "after removal")


def _negated(args: tuple) -> tuple:
    return tuple(-a if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args)


def _outcome(call: Callable, expected: tuple[type[Exception], ...]) -> tuple:
    """(result, None) of a call, or (None, error) if it raises one of the expected."""
    try:
        return call(), None
    except expected as error:
        return None, error


def with_registration(level: OpLevel, register: Callable[[Profile], Registration]) -> OpLevel:
    """The same level over another way of registering, to test that the level catches what is wrong with it."""
    return replace(level, register=register)
