"""The contract's snippets, to the letter, each in a fresh process."""

import inspect
import pathlib
import subprocess
import sys

import pytest

from opgraft import ops

ROOT = pathlib.Path(__file__).parents[2]

REGISTRATION = """
from ops.clone import register_a1
counter = {"n": 0}
lib = register_a1("PrivateUse1", counter=counter, platform="cambricon")
x = torch.zeros(2, device="mlu:0")
y = x.clone()
assert counter["n"] > 0 and y.data_ptr() != x.data_ptr()
"""


def test_registration_snippet_on_a_device_named_mlu(python):
    python("import torch, opgraft.sim\nopgraft.sim.enable('mlu')" + REGISTRATION)


def test_registration_snippet_with_the_device_from_the_environment(python):
    """As a vendor's script is run unchanged: nothing of opgraft is imported before it."""
    python("import torch, torch_mlu\nassert torch.mlu.is_available()" + REGISTRATION, OPGRAFT_SIM="mlu")


def test_package_mode_from_the_root(python):
    python(
        "import torch\nfrom ops.clone.register import clone_aten\nx = torch.zeros(2)\nassert clone_aten(x).data_ptr() != x.data_ptr()"
    )


def test_script_mode(python):
    python(
        "import sys, torch\nsys.path.insert(0, 'ops/clone')\nimport register\n"
        "with register.register_a1('CPU') as r:\n    torch.ones(3).clone()\nassert r.hits == 1"
    )


@pytest.mark.parametrize("name", ops.modules())
def test_signature_and_pieces(name):
    module = ops.load(name)
    signature = str(inspect.signature(module.register_a1)).replace("'", '"').partition(" ->")[0]
    parameters = list(inspect.signature(module.register_a1).parameters.values())
    assert [p.name for p in parameters] == ["dispatch_key", "counter", "platform"], signature
    assert [p.default for p in parameters] == ["AutogradPrivateUse1", None, None], signature


@pytest.mark.parametrize("name", ops.modules())
def test_the_eight_pieces(name):
    home = pathlib.Path(ops.load(name).__file__).parent
    pieces = "README.md REPORT.md __init__.py reference.py register.py example.py kernel/torch_level.py test/kernel_level.py test/op_level.py test/framework_level.py"
    missing = [piece for piece in pieces.split() if not (home / piece).exists()]
    assert not missing


def test_example_from_another_directory(tmp_path):
    done = subprocess.run(
        [sys.executable, f"{ROOT}/ops/clone/example.py", "cpu"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0 and "everything passed" in done.stdout, done.stdout + done.stderr


def test_example_on_a_missing_device(tmp_path):
    done = subprocess.run(
        [sys.executable, f"{ROOT}/ops/clone/example.py", "cambricon"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 2 and "torch_mlu is not installed" in done.stdout, done.stdout + done.stderr
