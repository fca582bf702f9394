"""Faults that the framework level must find, each with a message that leads to the operator."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

from opgraft import ops, platforms
from opgraft.verify.engine_level import EngineLevel
from opgraft.verify.levels import run_check

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


def alone_in_vllm(name, monkeypatch):
    """The result of the broken operator's own run in vLLM, whose worker finds it as an outside package."""
    monkeypatch.setenv("OPGRAFT_OPERATORS", f"faults.{name}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FOLDER), str(ROOT)]))
    monkeypatch.syspath_prepend(str(FOLDER))
    ops.modules.cache_clear()
    try:
        *_, alone = EngineLevel(ops.load(name).OPERATOR).checks(platforms.profiles()["cpu"])
        return run_check(alone)
    finally:
        ops.modules.cache_clear()


@has_vllm
def test_a_wrong_element_in_vllm(monkeypatch):
    result = alone_in_vllm("wrong_element", monkeypatch)
    assert not result.ok and "differ" in result.error, result
    assert "ops/wrong_element" in result.look_at


@has_vllm
def test_an_override_that_vllm_never_reaches_in_inference_mode(monkeypatch):
    result = alone_in_vllm("shadowed", monkeypatch)
    assert "registered but never reached in inference_mode: vLLM (llama) calls shadowed" in result.error, result
