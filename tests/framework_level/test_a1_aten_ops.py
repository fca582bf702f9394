"""Real vLLM with many operators at once: the run of ``opgraft verify --engine vllm`` as a test, where vLLM is installed."""

import importlib.util

import pytest

from opgraft import ops, platforms
from opgraft.verify.engine_level import EngineLevel
from opgraft.verify.levels import run_check

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vLLM has an environment of its own: see docs/vllm.md"
)


def checks(name):
    return list(EngineLevel(ops.load(name).OPERATOR).checks(platforms.profiles()["cpu"]))


@pytest.mark.parametrize("name", ["copy_", "detach", "empty_strided", "item"])
def test_all_operators_together_are_reached_in_inference_mode(name):
    result = run_check(checks(name)[0])
    assert result.ok, result.error
    assert result.figures["hits in inference_mode"] > 0, result.figures


def test_what_the_forward_never_calls_is_said():
    result = run_check(checks("dropout")[0])
    assert result.ok and "not exercised" in result.figures
