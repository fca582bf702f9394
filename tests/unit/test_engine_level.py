"""The engine level without the engine: what it makes of two generations."""

from collections import Counter

import pytest

from opgraft import ops, platforms
from opgraft.verify import engine_level
from opgraft.verify.levels import run_check
from opgraft.verify.run import verify
from opgraft.vllm.engine import SCENARIOS, Generation
from opgraft.vllm.shards import Counts

TOKENS, LOGPROBS, MARGINS = [[1, 2, 3], [4]], [[-0.1, -0.2, -0.3], [-1.0]], [[1.0, 1e-5, 1.0], [1.0]]
NATIVE = Generation(TOKENS, LOGPROBS, MARGINS, {}, Counter({"aten::copy_": 5}))
CPU = platforms.profiles()["cpu"]


def results(monkeypatch, ours, name="copy_", native=NATIVE):
    """The check of the first scenario, and that of the operator alone."""
    monkeypatch.setattr(engine_level, "_generation", lambda scenario, names, platform: native if names is None else ours)
    checks = [run_check(check) for check in engine_level.EngineLevel(ops.load(name).OPERATOR).checks(CPU)]
    assert len(checks) == len(SCENARIOS) + 1
    return checks[0], checks[-1]


def generation(tokens=TOKENS, logprobs=LOGPROBS, hits=9, inference=5):
    return Generation(tokens, logprobs, MARGINS, {"copy_": Counts(hits, inference), "clone": Counts()}, Counter())


def test_equal_answers_pass_with_the_counts(monkeypatch):
    together, alone = results(monkeypatch, generation())
    assert together.ok and alone.ok and alone.name == "vLLM, copy_ alone"
    assert together.figures["hits in inference_mode"] == 5 and alone.figures["scenario"] == "llama"
    assert together.figures["calls by native"] == 5
    # sdpa, which is among all of them, sums in another order than native.
    assert together.figures["tokens compared"] == "prefix rule" and alone.figures["tokens compared"] == "all"


def test_another_token_fails_and_says_where(monkeypatch):
    result = results(monkeypatch, generation(tokens=[[1, 2, 9], [4]]))[1]
    assert not result.ok and "prompt 0: token 2 differs" in result.error and "copy_" in result.look_at


def test_a_missing_prompt_or_token_fails(monkeypatch):
    assert not results(monkeypatch, generation(tokens=[[1, 2, 3]]))[0].ok
    assert "token 2 differs" in results(monkeypatch, generation(tokens=[[1, 2], [4]]))[1].error


def test_other_logprobs_fail(monkeypatch):
    result = results(monkeypatch, generation(logprobs=[[-0.1, -0.2, -0.4], [-1.0]]))[1]
    assert not result.ok and "logprobs differ by up to 0.1" in result.error


def test_the_prefix_rule_stops_where_rounding_may_choose(monkeypatch):
    other = generation(tokens=[[1, 7, 8], [4]], logprobs=[[-0.1, -0.9, -0.9], [-1.0]])
    with pytest.raises(AssertionError, match="token 1 differs"):
        engine_level.compare(other, NATIVE, exact=True)
    assert engine_level.compare(other, NATIVE, exact=False) == 0
    with pytest.raises(AssertionError, match="token 0 differs"):
        engine_level.compare(generation(tokens=[[5, 2, 3], [4]]), NATIVE, exact=False)


def test_hits_while_loading_weights_do_not_count_as_use(monkeypatch):
    result = results(monkeypatch, generation(hits=9, inference=0))[1]
    assert "registered but never reached in inference_mode: vLLM (llama) calls copy_ 5 times" in result.error
    assert "counted 9 calls, none of them there" in result.error


def test_what_no_scenario_calls_is_said(monkeypatch):
    result = results(monkeypatch, generation(), name="clone")[1]
    assert result.ok and "llama, gemma3n served" in result.figures["not exercised"]


def test_what_the_command_refuses(tmp_path):
    with pytest.raises(ValueError, match="unknown engine 'sglang'; engines: vllm"):
        verify(["copy_"], "cpu", None, tmp_path, engine="sglang")
    with pytest.raises(ValueError, match="for the framework level"):
        verify(["copy_"], "cpu", ["op"], tmp_path, engine="vllm")
