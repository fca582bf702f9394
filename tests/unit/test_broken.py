"""Six things broken on purpose; each must turn red the level that should catch it, with a message that leads to it."""

import contextlib
import dataclasses

import pytest
import torch
import triton
import triton.language as tl

from opgraft import platforms
from opgraft.a1 import Operator
from opgraft.kernels import launch, new_like
from opgraft.ops.clone.reference import clone as reference
from opgraft.ops.clone.register import OPERATOR
from opgraft.platforms import profiles
from opgraft.verify import Case, KernelLevel, OpLevel, TensorSpec, run_check
from opgraft.verify.op_level import with_registration

SIM = profiles()["sim"]
CASE = Case("37 float32", (TensorSpec((37,)),))


@triton.jit
def broken_copy_kernel(out, x, numel, write, ignore, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    value = tl.load(x + offsets, mask=offsets < numel)
    tl.store(out + offsets, tl.where(ignore != 0, 1.0, value), mask=offsets < write)


def broken(write=0, ignore=False, run=launch):
    """clone with a kernel that writes ``numel + write`` elements, or ignores its input."""

    def clone(self, *, memory_format=None):
        out = new_like(self)
        run(broken_copy_kernel, (1,), out, self, self.numel(), self.numel() + write, int(ignore), BLOCK=64)
        return out

    return Operator("broken", (dataclasses.replace(OPERATOR.overrides[0], kernels={"triton": clone}),))


def failures(level):
    """The errors of a level's failed checks by name."""
    return {r.name: r.error for r in map(run_check, level.checks(SIM)) if not r.ok}


def op_level(operator=OPERATOR):
    return OpLevel(operator, torch.clone, [CASE], sample=Case("sample", (TensorSpec((3, 5)),)))


def test_the_unbroken_operator_passes():
    assert not failures(KernelLevel(broken(), reference, [CASE])) and not failures(op_level(broken()))


def test_an_unwritten_output():
    found = failures(KernelLevel(broken(write=-1), reference, [CASE]))
    assert "1 of 37 elements differ; the first is element 36" in found["triton: 37 float32"]


def test_an_unwritten_output_that_happens_to_be_right():
    """The reference cannot see it; the two poisons do."""

    def lucky(self, *, memory_format=None):
        out = broken(write=-1).overrides[0].kernels["triton"](self)
        if int(out[-1:].view(torch.int32).cpu()) == 0x5A5A5A5A:
            out[-1] = self[-1]
        return out

    operator = Operator("broken", (dataclasses.replace(OPERATOR.overrides[0], kernels={"triton": lucky}),))
    assert "left unwritten" in failures(KernelLevel(operator, reference, [CASE]))["triton: 37 float32"]


def test_one_element_too_far():
    found = failures(KernelLevel(broken(write=1), reference, [CASE]))
    assert "wrote 4 byte(s) just after its output of 148 bytes" in found["triton: 37 float32"]
    found = failures(op_level(broken(write=1)))
    assert "kernel broken_copy_kernel" in found["37 float32"] and "past its end" in found["37 float32"]


def test_an_ignored_input():
    found = failures(KernelLevel(broken(ignore=True), lambda x, **_: torch.ones_like(x), [CASE]))
    assert list(found) == ["triton: another input, another result"] and "the input is ignored" in found.popitem()[1]


class _Bare:
    """A registration as the autograd key alone gives it."""

    handed_to_native: dict = {}

    def __init__(self, key):
        self.hits = 0
        native = torch.library.get_kernel("aten::clone", "PrivateUse1").call_boxed

        def forward(keyset, *args, **kwargs):
            self.hits += 1
            with torch._C._AutoDispatchBelowAutograd():
                return native(keyset, *args, **kwargs)

        self._library = torch.library.Library("aten", "IMPL")
        self._library.impl("clone", forward, key, with_keyset=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._library._destroy()


def test_a_lost_gradient_and_a_key_that_inference_mode_never_reaches():
    found = failures(with_registration(op_level(), lambda profile: _Bare("AutogradPrivateUse1")))
    assert "the gradient is lost" in found["gradient"]
    assert "counted 0 times; the override is never reached there" in found["mode inference_mode"]
    assert "mode grad" not in found and "mode no_grad" not in found


def test_a_key_that_is_never_reached():
    found = failures(with_registration(op_level(), lambda profile: _Bare("CUDA")))
    assert "never reached" in found["mode grad"] and "counted 0 times" in found["37 float32"]


def test_a_launch_in_the_wrong_device_context():
    def without_context(kernel, grid, *args, **meta):
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        with contextlib.nullcontext():  # where the launcher enters the tensors' device
            platforms.simulator("sim").launch(kernel, grid, tensors, args, meta)

    found = failures(op_level(broken(run=without_context)))
    assert list(found) == ["another device index"]
    assert "launched in the context of device 0 with a tensor on sim:1" in found["another device index"]


@pytest.mark.parametrize("fault", [broken(write=-1), broken(write=1)])
def test_the_command_exits_with_an_error_and_says_what_to_look_at(fault, tmp_path, monkeypatch, capsys):
    from opgraft.verify import run

    monkeypatch.setattr(run, "load_level", lambda name, level: KernelLevel(fault, reference, [CASE]))
    monkeypatch.setattr(run.evidence, "render", lambda folder, reports: [folder / "matrix.md"])
    assert run.verify(["clone"], "sim", ["kernel"], tmp_path) is False
    printed = " ".join(capsys.readouterr().out.split())
    assert "FAILED clone · kernel · triton: 37 float32" in printed and "look at: ops/broken/kernel/triton_level.py" in printed
    assert '"ok": false' in (tmp_path / "sim" / "clone.kernel.json").read_text()
