"""Faults that the framework level must find, each with a message that leads to the operator."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "framework_level"
has_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vLLM has an environment of its own: see docs/vllm.md"
)


def verify(name, tmp_path, *options, platform="cpu"):
    """The command's exit code and its output, on one line, with the broken operator as an outside package."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(FOLDER), str(ROOT)]),
        "OPGRAFT_OPERATORS": f"faults.{name}",
        "COLUMNS": "200",
    }
    command = [sys.executable, "-m", "opgraft.cli", "verify", name, "-p", platform, "-l", "framework", *options]
    done = subprocess.run(
        [*command, "--evidence", str(tmp_path)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900
    )
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize("platform", ["cpu", "sim"])
def test_a_wrong_element(tmp_path, platform):
    code, printed = verify("wrong_element", tmp_path, platform=platform)
    assert code == 1 and "FAILED wrong_element · framework" in printed and "elements differ" in printed, printed
    assert "look at: ops/wrong_element/register.py" in printed


@pytest.mark.parametrize("platform", ["cpu", "sim"])
def test_a_lost_gradient(tmp_path, platform):
    code, printed = verify("lost_gradient", tmp_path, platform=platform)
    assert code == 1 and "FAILED lost_gradient · framework" in printed, printed
    assert "parameters without a gradient" in printed or "gradients of the first step" in printed, printed


@pytest.mark.parametrize("platform", ["cpu", "sim"])
def test_an_override_that_inference_mode_never_reaches(tmp_path, platform):
    code, printed = verify("shadowed", tmp_path, platform=platform)
    assert code == 1 and "never reached in inference_mode" in printed, printed


@has_vllm
def test_a_wrong_element_in_vllm(tmp_path):
    code, printed = verify("wrong_element", tmp_path, "--engine", "vllm")
    assert code == 1 and "FAILED wrong_element · framework · vLLM, wrong_element alone" in printed, printed
    assert "differ" in printed and "look at: ops/wrong_element" in printed


@has_vllm
def test_an_override_that_vllm_never_reaches_in_inference_mode(tmp_path):
    code, printed = verify("shadowed", tmp_path, "--engine", "vllm")
    assert code == 1 and "registered but never reached in inference_mode: vLLM (llama) calls shadowed" in printed, printed
