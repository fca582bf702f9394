"""`opgraft new`: a folder in somebody else's package, filled in, taken through the three levels."""

import os
import subprocess
import sys

import pytest

from opgraft import scaffold

RELU = "aten::relu(Tensor self) -> Tensor"


def command(package, *args, **environment):
    done = subprocess.run(
        [sys.executable, "-m", "opgraft.cli", *args], cwd=package, capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": str(package), **environment},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_relu_through_three_levels(tmp_path):
    (tmp_path / "chips" / "ops").mkdir(parents=True)
    for folder in ("chips", "chips/ops"):
        (tmp_path / folder / "__init__.py").write_text("")
    code, printed = command(tmp_path, "new", "relu", "--schema", RELU, "--into", "chips/ops", "--package", "chips.ops")
    assert code == 0 and "kernel/triton_level.py" in printed and "OPGRAFT_OPERATORS=chips.ops.relu" in printed, printed

    code, printed = command(tmp_path, "verify", "relu", OPGRAFT_OPERATORS="chips.ops.relu")
    assert code == 1 and "FAILED relu · kernel" in printed and "triton_level.py" in printed, (
        "as rendered, the Triton kernel is the identity"
    )
    assert "torch: 7x13 float32 contiguous" not in printed, "as rendered, the torch level is right"

    kernel = tmp_path / "chips/ops/relu/kernel/triton_level.py"
    kernel.write_text(kernel.read_text().replace("result = value  # FILL IN", "result = tl.where(value < 0, 0.0, value)"))
    code, printed = command(tmp_path, "verify", "relu", OPGRAFT_OPERATORS="chips.ops.relu")
    assert code == 0, printed
    assert (tmp_path / "evidence/sim/relu.framework.json").exists() and "sim (simulated)" in (
        tmp_path / "chips/ops/relu/REPORT.md"
    ).read_text()
    code, printed = command(tmp_path, "probe", "relu", OPGRAFT_OPERATORS="chips.ops.relu")
    assert code == 0, printed


def test_a_composite_is_told_from_an_operator_with_a_formula(tmp_path):
    rendered = scaffold.render("square", "aten::square(Tensor self) -> Tensor", tmp_path, "chips.ops")
    text = (rendered.folder / "register.py").read_text()
    assert "class Backward(Gradient)" in text and "gradient=Backward" in text
    for path in rendered.files:
        if path.suffix == ".py":
            compile(path.read_text(), path, "exec")


def test_other_arguments(tmp_path):
    rendered = scaffold.render(
        "leaky", "aten::leaky_relu(Tensor self, Scalar negative_slope=0.01) -> Tensor", tmp_path, "chips.ops"
    )
    assert "negative_slope: float = 0.01" in (rendered.folder / "kernel/torch_level.py").read_text()
    for path in rendered.files:
        if path.suffix == ".py":
            compile(path.read_text(), path, "exec")


@pytest.mark.parametrize(
    "name, schema, words",
    [
        ("re-lu", RELU, "letters, digits and _"),
        ("relu", "relu", "is no schema"),
        ("relu", "aten::nonsense(Tensor self) -> Tensor", "has no operator aten::nonsense"),
        ("ones", "aten::ones(SymInt[] size) -> Tensor", "first argument is a Tensor"),
    ],
)
def test_what_is_refused(tmp_path, name, schema, words):
    with pytest.raises(ValueError, match=words):
        scaffold.render(name, schema, tmp_path, "chips.ops")


def test_an_existing_folder_is_kept(tmp_path):
    (tmp_path / "relu").mkdir()
    with pytest.raises(ValueError, match="exists already"):
        scaffold.render("relu", RELU, tmp_path, "chips.ops")
