"""Kernel level: is the kernel itself right?

The kernel is called directly, without the dispatcher, and compared with the operator's reference. Sentinels: its
output is allocated with one poison and then with another (an element that differs was not written), lies between
guard zones, is the same for the same input, and another for another input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch

from opgraft.a1 import Operator
from opgraft.kernels import GuardedOutputs
from opgraft.platforms import Profile

from . import golden
from .compare import assert_same, same_bits
from .inputs import Case, TensorSpec
from .levels import Check, pytest_function

FILLS = (0x5A, 0xA5)


@dataclass
class KernelLevel:
    """The kernel level of one operator.

    Attributes:
        operator: its declaration.
        reference: its meaning, on CPU tensors.
        cases: what it is called with.
        exact: bit for bit; else within the contract's tolerances.
        override: which of the operator's overrides.
        extra: checks that are particular to the operator: called with the platform.
    """

    operator: Operator
    reference: Callable
    cases: Iterable[Case]
    exact: bool = True
    override: int = 0
    extra: Callable[[Profile], Iterable[Check]] = lambda profile: ()
    level = "kernel"

    def checks(self, profile: Profile) -> Iterator[Check]:
        """A check for every case, the sentinel over two inputs, golden data, and what is particular."""
        look_at = f"ops/{self.operator.name}/kernel/{profile.kernel_level}_level.py, against reference.py"
        for case in self.cases:
            yield Check(case.name, lambda case=case: self._case(case, profile), look_at)
        varied = [c for c in self.cases if _varies(c)]
        if varied:
            yield Check("another input, another result", lambda: self._differs(varied[0], profile), look_at)
        if golden.exists(self.operator.name):
            yield Check("golden data", lambda: self._golden(profile), look_at + " and golden/")
        yield from self.extra(profile)

    @property
    def test(self):
        """The level as a pytest test."""
        return pytest_function(self)

    def call(self, case: Case, profile: Profile, fill: int = FILLS[0]):
        """Call the kernel on a case with guarded outputs; returns its result."""
        override = self.operator.overrides[self.override]
        args = case.arguments(profile.device)
        reason = override.unsupported(*args, **case.kwargs)
        assert reason is None, f"the kernel does not take this case ({reason}); it belongs to the op level"
        with GuardedOutputs(fill) as outputs:
            result = override.call(*args, **case.kwargs)
        outputs.check()
        return result

    def _case(self, case: Case, profile: Profile) -> None:
        first = self.call(case, profile)
        want = self.reference(*case.arguments("cpu"), **case.kwargs)
        assert_same(first, want, f"{self.operator.name} {case.name}", self.exact)
        second = self.call(case, profile, FILLS[1])
        if isinstance(first, torch.Tensor):
            assert same_bits(first, second), (
                "the same input gave two results: elements were left unwritten, or the kernel depends on more than its input"
            )

    def _differs(self, case: Case, profile: Profile) -> None:
        one, other = self.call(case, profile), self.call(case.reseeded(), profile)
        assert not same_bits(one, other), f"{case.name}: another input gave the same result, so the input is ignored"

    def _golden(self, profile: Profile) -> dict:
        stored = golden.load(self.operator.name)
        for case, args, want in stored:
            device = tuple(a.to(profile.device) if isinstance(a, torch.Tensor) else a for a in args)
            got = self.operator.overrides[self.override].call(*device, **case.kwargs)
            assert_same(got, want, f"golden {case.name}", self.exact, strides=False)
        return {"golden cases": len(stored)}


def _varies(case: Case) -> bool:
    return any(isinstance(a, TensorSpec) and a.dtype != "bool" and 0 not in a.shape and a.shape for a in case.args)
