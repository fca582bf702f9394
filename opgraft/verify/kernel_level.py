"""Kernel level: is the kernel itself right?

The kernel is called directly, without the dispatcher, and compared with the operator's reference. Sentinels: its
output is allocated with one poison and then with another (an element that differs was not written), lies between
guard zones, is the same for the same input, and another for another input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch

from opgraft.a1 import Operator
from opgraft.call_path import below_overrides
from opgraft.kernels import GuardedOutputs
from opgraft.platforms import Profile

from . import golden
from .compare import assert_same, same_bits
from .inputs import Case, TensorSpec
from .levels import Check

FILLS = (0x5A, 0xA5)


@dataclass
class KernelLevel:
    """The kernel level of one operator.

    Attributes:
        operator: its declaration.
        reference: its meaning, on CPU tensors.
        cases: what it is called with.
        exact: bit for bit; else within the contract's tolerances.
        kernels: the kernels by level, called as the reference is; None means those of the first override.
        compare: compares a result with the expected one; None compares values, dtype and strides, under two poisons.
        values: whether results hold values; an uninitialised tensor and a dtype do not, and golden data holds their
            description.
        keywords: what a kernel is given besides on a platform: the device, for factories.
        extra: checks that are particular to the operator: called with the platform.
    """

    operator: Operator
    reference: Callable
    cases: Iterable[Case]
    exact: bool = True
    kernels: Mapping[str, Callable] | None = None
    compare: Callable | None = None
    values: bool = True
    keywords: Callable[[Profile], dict] = lambda profile: {}
    extra: Callable[[Profile], Iterable[Check]] = lambda profile: ()
    level = "kernel"

    def checks(self, profile: Profile) -> Iterator[Check]:
        """For each kernel that can run there: every case, the sentinel over two inputs, golden data; then what is particular."""
        kernels = self.kernels or self.operator.overrides[0].kernels
        for name, kernel in kernels.items():
            if name != "torch" and name != profile.kernel_level:
                continue
            look_at = f"ops/{self.operator.name}/kernel/{name}_level.py, against reference.py"
            for case in self.cases:
                yield Check(f"{name}: {case.name}", partial(self._case, kernel, case, profile), look_at)
            varied = next((c for c in self.cases if _varies(c)), None)
            if varied is not None and self.compare is None:
                yield Check(f"{name}: another input, another result", partial(self._differs, kernel, varied, profile), look_at)
            if golden.exists(self.operator.name):
                yield Check(f"{name}: golden data", partial(self._golden, kernel, profile), look_at + " and golden/")
        yield from self.extra(profile)

    def _call(self, kernel: Callable, case: Case, profile: Profile, fill: int = FILLS[0]):
        args = case.arguments(profile.device)
        with GuardedOutputs(fill) as outputs, below_overrides():
            result = kernel(*args, **case.kwargs, **self.keywords(profile))
        outputs.check()
        return result

    def _case(self, kernel: Callable, case: Case, profile: Profile) -> None:
        first = self._call(kernel, case, profile)
        want = self.reference(*case.arguments("cpu"), **case.kwargs)
        what = f"{self.operator.name} {case.name}"
        if self.compare is not None:
            self.compare(first, want, what)
            return
        assert_same(first, want, what, self.exact)
        second = self._call(kernel, case, profile, FILLS[1])
        if isinstance(first, torch.Tensor):
            assert same_bits(first, second), (
                "the same input gave two results: elements were left unwritten, or the kernel depends on more than its input"
            )

    def _differs(self, kernel: Callable, case: Case, profile: Profile) -> None:
        one, other = self._call(kernel, case, profile), self._call(kernel, case.reseeded(), profile)
        same = same_bits(one, other) if isinstance(one, torch.Tensor) else one == other
        assert not same, f"{case.name}: another input gave the same result, so the input is ignored"

    def _golden(self, kernel: Callable, profile: Profile) -> dict:
        stored = golden.load(self.operator.name, profile.device)
        for case, args, want in stored:
            with below_overrides():
                got = kernel(*args, **case.kwargs, **self.keywords(profile))
            if isinstance(want, dict):
                assert golden.describe(got) == want, f"golden {case.name}: got {golden.describe(got)}, expected {want}"
            else:
                got = got if isinstance(got, torch.Tensor) else torch.tensor(got, dtype=want.dtype)
                assert_same(got, want, f"golden {case.name}", self.exact, strides=False)
        return {"golden cases": len(stored)}


def _varies(case: Case) -> bool:
    return any(isinstance(a, TensorSpec) and a.dtype != "bool" and 0 not in a.shape for a in case.args)
