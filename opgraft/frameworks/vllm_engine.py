"""Real vLLM with and without overrides: the same prompts, tokens and logprobs compared, counts summed over its processes.

vLLM runs in a process of its own each time (``python -m opgraft.frameworks.vllm_engine MODEL RESULT`` is that process);
the overrides reach its workers through the plugin alone. The model is a tiny Llama with random weights, made on the spot.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from dataclasses import dataclass

from . import shards

PROMPTS = [[1, 5, 9], [2] * 11, [7, 3, 8, 4, 40, 41, 42, 43], [60], [11, 12], list(range(3, 24))]
NEW_TOKENS = 8
LOGPROB_TOLERANCE = 1e-4


@dataclass
class Generation:
    """What vLLM gave: new tokens and their logprobs for each prompt, and counts by operator (empty without overrides)."""

    tokens: list[list[int]]
    logprobs: list[list[float]]
    counts: dict[str, shards.Counts]


def make_model(folder: pathlib.Path) -> pathlib.Path:
    """Save a Llama of 2 layers, width 32, 64 tokens, with weights from a fixed seed; returns the folder."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        max_position_embeddings=64, initializer_range=0.5, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def generate(model: pathlib.Path, ops: list[str] | None, platform: str, timeout: float = 600) -> Generation:
    """Run vLLM on :data:`PROMPTS`, greedily, more prompts than sequences at once.

    Args:
        model: a folder from :func:`make_model`.
        ops: operators to replace; None runs without the plugin being asked.
        platform: for the overrides.
        timeout: seconds.

    Raises:
        RuntimeError: vLLM is not installed here, or it failed; carries the end of its output.
    """
    if importlib.util.find_spec("vllm") is None:
        raise RuntimeError("vLLM is not installed in this environment; docs/vllm.md says how")
    with tempfile.TemporaryDirectory() as work:
        result, counts = pathlib.Path(work, "result.json"), pathlib.Path(work, "counts")
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
        if ops is not None:
            environment |= {
                "OPGRAFT_VLLM_OPS": ",".join(ops),
                "OPGRAFT_VLLM_PLATFORM": platform,
                "OPGRAFT_VLLM_COUNTS": str(counts),
            }
        command = [sys.executable, "-m", "opgraft.frameworks.vllm_engine", str(model), str(result)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
        if done.returncode != 0:
            raise RuntimeError(f"vLLM with {ops or 'no overrides'} failed:\n{(done.stdout + done.stderr)[-3000:]}")
        given = json.loads(result.read_text(encoding="utf-8"))
        return Generation(given["tokens"], given["logprobs"], shards.total(counts) if ops is not None else {})


def main() -> None:
    """In vLLM's own process: load the model given as first argument, generate, write the second argument."""
    from vllm import LLM, SamplingParams

    model, result = sys.argv[1:3]
    engine = LLM(model, dtype="float32", enforce_eager=True, max_model_len=64, max_num_seqs=2, skip_tokenizer_init=True, seed=0)
    parameters = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, logprobs=0, detokenize=False, ignore_eos=True)
    outputs = engine.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], parameters)
    completions = [output.outputs[0] for output in outputs]
    tokens = [list(c.token_ids) for c in completions]
    logprobs = [[step[token].logprob for step, token in zip(c.logprobs, c.token_ids)] for c in completions]
    pathlib.Path(result).write_text(json.dumps({"tokens": tokens, "logprobs": logprobs}), encoding="utf-8")


if __name__ == "__main__":
    main()
