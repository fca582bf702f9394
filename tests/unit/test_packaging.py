"""What the packaging gate (ops/test_packaging.py) does where a device is missing, and operators that live side by side."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]


def gate(*arguments):
    done = subprocess.run(
        [sys.executable, "ops/test_packaging.py", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    return done.returncode, done.stdout + done.stderr


def test_a_missing_device_is_said_and_fails():
    code, printed = gate("--npu-e2e")
    assert code == 1 and "torch_npu is not installed" in printed
    code, printed = gate("--e2e", "cuda")
    assert code == 1 and "no cuda device is present" in printed
    code, printed = gate("--e2e", "acme")
    assert code == 1 and "unknown platform 'acme'" in printed


def test_an_operator_that_does_not_import_fails_the_gate(tmp_path, python):
    (tmp_path / "chips").mkdir()
    (tmp_path / "chips" / "__init__.py").write_text("")
    (tmp_path / "chips" / "wrong.py").write_text("raise ImportError('a missing piece')")
    code = "from opgraft.ops import test_packaging as gate\nassert gate.run(['check_import(\"wrong\")']) is False"
    assert "a missing piece" in python(code, PYTHONPATH=str(tmp_path), OPGRAFT_OPERATORS="chips.wrong")


def test_same_named_kernel_modules_in_one_process_each_run_their_own(python):
    """Every operator has a kernel/triton_level.py; neither package mode nor registration may confuse them."""
    python(
        """
import torch, opgraft.sim
opgraft.sim.enable()
from ops.clone.kernel import triton_level as one
from ops.dropout.kernel import triton_level as two
assert one is not two and one.__file__ != two.__file__ and hasattr(two, "masked_scale_kernel") and not hasattr(one, "masked_scale_kernel")
import ops.clone, ops.dropout, ops.type_as
registrations = [module.register_a1(platform="sim") for module in (ops.clone, ops.dropout, ops.type_as)]
x = torch.ones(1000, device="sim")
assert x.clone().eq(1).all().item()
assert set(torch.dropout(x, 0.5, True).tolist()) == {0.0, 2.0}
assert x.type_as(torch.zeros(1, dtype=torch.int64, device="sim")).dtype is torch.int64
assert [r.hits for r in registrations] == [1, 1, 1], registrations
"""
    )


def test_state_does_not_depend_on_the_module_name(python):
    python(
        """
import sys, opgraft.sim
opgraft.sim.enable()
import ops.clone, opgraft.ops.clone
sys.path.insert(0, "ops/clone")
import register
first = ops.clone.register_a1()
for again in (opgraft.ops.clone.register_a1, register.register_a1):
    try:
        again()
    except RuntimeError as error:
        assert "already" in str(error)
    else:
        raise SystemExit("registered twice")
first.remove()
register.register_a1().remove()
"""
    )
