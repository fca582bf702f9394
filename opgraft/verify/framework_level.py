"""Framework level: does a real model still work with the override?

Here the model is a small decoder trained for some steps (forward, backward, optimiser) and decoded greedily on the
platform's device, with and without the override. Real engines are ``opgraft verify --engine``.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

import torch

from opgraft.a1 import Operator
from opgraft.kernels import interpreted
from opgraft.models import decoder
from opgraft.models import hugging_face as models
from opgraft.platforms import Profile

from .compare import assert_same
from .levels import Check


@dataclass
class FrameworkLevel:
    """The framework level of one operator.

    Attributes:
        operator: its declaration.
        exact: whether losses, gradients and weights must be equal bit for bit; else losses and the first gradients within
            1e-5, and weights are left to the losses: AdamW turns the rounding of a gradient that is zero into a step.
        decodes_exactly: whether an engine's greedy decoding must give every token of native's; else those before rounding
            may choose between two (:func:`opgraft.verify.engine_level.compare`).
        sizes: of the model; dropout is on only for operators that need it.
        model: given a device, builds, trains and decodes, and returns the outcome; None means the decoder.
        baseline: a context for the run without the override, where native alone would not do the same (dropout draws
            other random numbers).
    """

    operator: Operator
    exact: bool = True
    decodes_exactly: bool = True
    sizes: decoder.Sizes = decoder.Sizes()
    model: Callable[[str], decoder.Outcome] | None = None
    baseline: Callable[[], AbstractContextManager] = contextlib.nullcontext
    level = "framework"

    def checks(self, profile: Profile) -> Iterator[Check]:
        """Training and decoding, with and without."""
        look_at = f"ops/{self.operator.name}/register.py: `gradient`, `unsupported`; the op level says which call differs"
        if self.operator.refusal is not None:
            yield Check("not exercised: it cannot be registered", lambda: {"not exercised": self.operator.refusal}, look_at)
            return
        yield Check("training and decoding", lambda: self._compare(profile), look_at)
        if not interpreted(torch.device(profile.device)) and importlib.util.find_spec("transformers"):
            yield Check("transformers: training and generation", lambda: self._transformers(profile), look_at)

    def _compare(self, profile: Profile) -> dict:
        model = self.model or partial(decoder.run, sizes=self.sizes)
        with self.baseline():
            native = model(profile.device)
        with self.operator.register_a1(profile.dispatch_key, platform=profile.name) as registration:
            ours = model(profile.device)
        called = sum(native.inference_calls[name] for name in self.operator.aten_names)
        assert registration.inference_hits or not called, (
            f"registered but never reached in inference_mode: the model calls it {called} times there, the override counted "
            f"{registration.hits} calls, none of them there"
        )
        assert_same_outcome(ours, native, self.exact)
        assert registration.hits, "not exercised: the model never called the operator"
        return {
            "hits": registration.hits,
            "hits in inference_mode": registration.inference_hits,
            "calls in inference_mode by native": called,
            "handed to native": registration.handed_to_native,
            "losses": ours.losses,
            "tokens": ours.tokens,
        }

    def _transformers(self, profile: Profile) -> dict:
        """A Llama and, with dropout, a BERT: losses of every step, and greedy generation. On the simulated device and the CPU, where
        this takes minutes, the test suite does it, with every operator registered together."""

        def run():
            _, of_llama = models.train(models.llama, profile.device, 0.0, checkpointing=True, autocast=True)
            _, of_bert = models.train(models.bert, profile.device, 0.1, checkpointing=False, autocast=False)
            return of_llama, of_bert, *models.generate(profile.device)

        with self.baseline():
            native = run()
        with self.operator.register_a1(profile.dispatch_key, platform=profile.name) as registration:
            ours = run()
        torch.testing.assert_close(ours[0], native[0], rtol=2e-2, atol=0, msg=lambda m: f"losses of the Llama: {m}")
        torch.testing.assert_close(ours[1], native[1], rtol=1e-4, atol=0, msg=lambda m: f"losses of the BERT: {m}")
        assert_same(ours[2], native[2], "greedy generation")
        torch.testing.assert_close(ours[3], native[3], msg=lambda m: f"logits: {m}")
        return {"hits": registration.hits, "handed to native": registration.handed_to_native, "losses of the Llama": ours[0]}


def assert_same_outcome(ours: decoder.Outcome, native: decoder.Outcome, exact: bool) -> None:
    """Assert that a model did the same with and without overrides; ``exact`` as in :class:`FrameworkLevel`."""
    assert ours.gradients.keys() == native.gradients.keys(), (
        f"parameters without a gradient: {sorted(native.gradients.keys() - ours.gradients.keys())}"
    )
    assert_same(ours.gradients, native.gradients, "gradients of the first step", exact)
    if exact:
        assert_same((ours.losses, ours.weights), (native.losses, native.weights), "losses and weights after training")
    else:
        torch.testing.assert_close(ours.losses, native.losses, rtol=1e-5, atol=1e-5)
    assert ours.tokens == native.tokens, f"greedy decoding gave {ours.tokens}, native {native.tokens}"
