"""Framework level with a real engine: does vLLM use the override, and is the answer still the same?

In each scenario the engine runs without overrides and with all operators of ours together; then each operator runs
alone, so that a failure names it. Tokens must be equal and logprobs within a tolerance. vLLM's own profiler says which
operators native calls while it generates: one that is called and whose override is not reached under inference_mode is
a failure; one that no scenario calls is reported as not exercised.
"""

from __future__ import annotations

import functools
import os
import pathlib
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from opgraft import catalogue
from opgraft.a1 import Operator
from opgraft.platforms import Profile
from opgraft.vllm import engine as vllm_engine
from opgraft.vllm import models as vllm_models
from opgraft.vllm.engine import SCENARIOS, Generation, Scenario

from .levels import Check, load_level

ENGINES = ("vllm",)
LOGPROB_TOLERANCE = 1e-4


@functools.cache
def _model(name: str) -> pathlib.Path:
    return vllm_models.save(name, pathlib.Path(tempfile.mkdtemp(prefix=f"opgraft-{name}-")))


_generations: dict[tuple, Future[Generation]] = {}
_lock = threading.Lock()
#: Starting vLLM is mostly importing, on one core; more at once than this would take too much memory.
_pool = ThreadPoolExecutor(min(os.cpu_count() or 1, 4))


def _started(scenario: Scenario, names: tuple[str, ...] | None, platform: str) -> Future[Generation]:
    """The one run of vLLM for these arguments, started if it is not yet."""
    with _lock:
        key = (scenario, names, platform)
        if key not in _generations:
            _generations[key] = _pool.submit(_generate, *key)
        return _generations[key]


def _generation(scenario: Scenario, names: tuple[str, ...] | None, platform: str) -> Generation:
    return _started(scenario, names, platform).result()


def _generate(scenario: Scenario, names: tuple[str, ...] | None, platform: str) -> Generation:
    together = names is not None and len(names) > 1  # only these need every process that vLLM would start
    return vllm_engine.generate(
        scenario, _model(scenario.model), list(names) if names else None, platform, one_process=not together
    )


def run_ahead(levels: list[EngineLevel], profile: Profile) -> None:
    """Start the runs that the checks of several operators will wait for, so that they use every core."""
    together = tuple(o.name for o in catalogue.select(None))
    for scenario in SCENARIOS:
        _model(scenario.model)
        for names in (None, together):
            _started(scenario, names, profile.name)

    def alone() -> None:
        for level in levels:
            scenario = level.scenario(profile) if level.operator.refusal is None else None
            if scenario is not None:
                _started(scenario, (level.operator.name,), profile.name)

    threading.Thread(target=alone, daemon=True).start()


def compare(ours: Generation, native: Generation, exact: bool) -> float:
    """Assert that two generations say the same; returns the largest difference of their logprobs.

    Args:
        ours: with overrides.
        native: without.
        exact: whether every token must be equal. Else a prompt is compared up to the first step at which native's two
            best tokens are closer than twice the tolerance (the prefix rule), because rounding may choose between them.

    Raises:
        AssertionError: they differ; says at which prompt and token.
    """
    largest = 0.0
    for number, (got, want) in enumerate(zip(ours.tokens, native.tokens, strict=True)):
        steps = len(want)
        if not exact:
            steps = next((i for i, gap in enumerate(native.margins[number]) if gap < 2 * LOGPROB_TOLERANCE), steps)
        different = [i for i in range(steps) if got[i : i + 1] != want[i : i + 1]]
        assert not different, f"prompt {number}: token {different[0]} differs: {got}, without overrides {want}"
        pairs = zip(ours.logprobs[number][:steps], native.logprobs[number][:steps])
        largest = max([largest, *(abs(g - w) for g, w in pairs)])
    assert largest <= LOGPROB_TOLERANCE, f"logprobs differ by up to {largest:.3g}, allowed {LOGPROB_TOLERANCE:g}"
    return largest


@dataclass
class EngineLevel:
    """The framework level of one operator in vLLM."""

    operator: Operator
    level = "framework"

    def checks(self, profile: Profile) -> Iterator[Check]:
        """All operators together in each scenario, and this one alone."""
        name = self.operator.name
        look_at = f"ops/{name}: `opgraft verify {name} -p {profile.name} -l op` says which call differs, `opgraft probe {name}` which mode"
        if self.operator.refusal is not None:
            yield Check("not exercised: it cannot be registered", lambda: {"not exercised": self.operator.refusal}, look_at)
            return
        together = tuple(o.name for o in catalogue.select(None))
        for scenario in SCENARIOS:
            yield Check(
                f"vLLM {scenario.name}, all operators together", lambda s=scenario: self._compare(s, together, profile), look_at
            )
        yield Check(f"vLLM, {name} alone", lambda: self._alone(profile), look_at)

    def _called(self, scenario: Scenario, profile: Profile) -> int:
        calls = _generation(scenario, None, profile.name).calls
        return sum(calls[name] for name in self.operator.aten_names)

    def _compare(self, scenario: Scenario, names: tuple[str, ...], profile: Profile) -> dict:
        native = _generation(scenario, None, profile.name)
        ours = _generation(scenario, names, profile.name)
        counts = ours.counts[self.operator.name]
        exact = all(load_level(name, "framework").decodes_exactly for name in names)
        return {
            "calls by native": self._called(scenario, profile),
            "hits": counts.hits,
            "hits in inference_mode": counts.inference_hits,
            "handed to native": dict(counts.handed_to_native),
            "largest logprob difference": compare(ours, native, exact),
            "tokens compared": "all" if exact else "prefix rule",
            "prompts": len(native.tokens),
        }

    def scenario(self, profile: Profile) -> Scenario | None:
        """The first one in which native calls the operator."""
        return next((s for s in SCENARIOS if self._called(s, profile)), None)

    def _alone(self, profile: Profile) -> dict:
        scenario = self.scenario(profile)
        if scenario is None:
            return {"not exercised": f"no model of these calls it: {', '.join(s.name for s in SCENARIOS)}"}
        figures = self._compare(scenario, (self.operator.name,), profile)
        assert figures["hits in inference_mode"], (
            f"registered but never reached in inference_mode: vLLM ({scenario.name}) calls {self.operator.name} "
            f"{figures['calls by native']} times while it generates, the override counted {figures['hits']} calls, none of them there"
        )
        return {"scenario": scenario.name, **figures}
