"""The engine level without the engine: what it makes of two generations."""

import pytest

from opgraft import ops, platforms
from opgraft.frameworks.shards import Counts
from opgraft.frameworks.vllm_engine import Generation
from opgraft.verify import engine_level
from opgraft.verify.levels import run_check
from opgraft.verify.run import verify

NATIVE = Generation([[1, 2, 3], [4]], [[-0.1, -0.2, -0.3], [-1.0]], {})
CPU = platforms.profiles()["cpu"]


def results(monkeypatch, ours, name="copy_"):
    monkeypatch.setattr(engine_level, "_generation", lambda names, platform: NATIVE if names is None else ours)
    return [run_check(check) for check in engine_level.EngineLevel(ops.load(name).OPERATOR).checks(CPU)]


def generation(tokens=NATIVE.tokens, logprobs=NATIVE.logprobs, hits=9, inference=5):
    return Generation(tokens, logprobs, {"copy_": Counts(hits, inference)})


def test_equal_answers_pass_with_the_counts(monkeypatch):
    together, alone = results(monkeypatch, generation())
    assert together.ok and alone.ok and alone.name == "vLLM, copy_ alone"
    assert together.figures["hits in inference_mode"] == 5 and "not exercised" not in together.figures


def test_another_token_fails_and_says_where(monkeypatch):
    result = results(monkeypatch, generation(tokens=[[1, 2, 9], [4]]))[1]
    assert not result.ok and "prompt 0: token 2 differs" in result.error and "copy_" in result.look_at


def test_other_logprobs_fail(monkeypatch):
    result = results(monkeypatch, generation(logprobs=[[-0.1, -0.2, -0.4], [-1.0]]))[0]
    assert not result.ok and "logprobs differ by up to 0.1" in result.error


def test_hits_while_loading_weights_do_not_count_as_use(monkeypatch):
    result = results(monkeypatch, generation(hits=9, inference=0))[0]
    assert result.ok and "never calls it" in result.figures["not exercised"]


def test_what_the_command_refuses(tmp_path):
    with pytest.raises(ValueError, match="unknown engine 'sglang'; engines: vllm"):
        verify(["copy_"], "cpu", None, tmp_path, engine="sglang")
    with pytest.raises(ValueError, match="for the framework level"):
        verify(["copy_"], "cpu", ["op"], tmp_path, engine="vllm")
