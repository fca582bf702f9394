"""Framework level with a real engine: does vLLM use the override, and is the answer still the same?

The engine runs without overrides, with all operators of ours together, and with each alone, so that a failure names its
operator. Tokens must be equal and logprobs within a tolerance; an operator that the model's forward never called (counted
under inference_mode, over every process) is reported as not exercised.
"""

from __future__ import annotations

import functools
import pathlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

from opgraft import ops
from opgraft.a1 import Operator
from opgraft.frameworks import vllm_engine
from opgraft.platforms import Profile

from .levels import Check

ENGINES = ("vllm",)


@functools.cache
def _model() -> pathlib.Path:
    return vllm_engine.make_model(pathlib.Path(tempfile.mkdtemp(prefix="opgraft-llama-")))


@functools.cache
def _generation(names: tuple[str, ...] | None, platform: str) -> vllm_engine.Generation:
    return vllm_engine.generate(_model(), list(names) if names is not None else None, platform)


@dataclass
class EngineLevel:
    """The framework level of one operator in vLLM."""

    operator: Operator
    level = "framework"

    def checks(self, profile: Profile) -> Iterator[Check]:
        """All operators together, and this one alone."""
        look_at = f"the op level of {self.operator.name} on {profile.name}; `opgraft probe` for modes that are not reached"
        if self.operator.refusal is not None:
            yield Check("not exercised: it cannot be registered", lambda: {"not exercised": self.operator.refusal}, look_at)
            return
        together = tuple(o.name for o in ops.select(None))
        yield Check("vLLM, all operators together", lambda: self._compare(together, profile), look_at)
        yield Check(f"vLLM, {self.operator.name} alone", lambda: self._compare((self.operator.name,), profile), look_at)

    def _compare(self, names: tuple[str, ...], profile: Profile) -> dict:
        native, ours = _generation(None, profile.name), _generation(names, profile.name)
        for number, (got, want) in enumerate(zip(ours.tokens, native.tokens)):
            same = next((i for i, (g, w) in enumerate(zip(got, want)) if g != w), len(want))
            assert got == want, f"prompt {number}: token {same} differs: {got}, without overrides {want}"
        distance = max(abs(g - w) for got, want in zip(ours.logprobs, native.logprobs) for g, w in zip(got, want))
        assert distance <= vllm_engine.LOGPROB_TOLERANCE, f"logprobs differ by up to {distance:.3g}"
        counts = ours.counts[self.operator.name]
        figures = {
            "hits": counts.hits,
            "hits in inference_mode": counts.inference_hits,
            "handed to native": dict(counts.handed_to_native),
            "largest logprob difference": distance,
            "prompts": len(native.tokens),
        }
        if not counts.inference_hits:
            figures["not exercised"] = "this model's forward never calls it"
        return figures
