"""Whole models, by the wall clock: native, every call handed back to native, our kernels, and as the tables route
(``opgraft bench --model``).

Small Hugging Face models with random weights, where the call path weighs most: a Llama's training step and its generation with a cache,
a ViT's forward, a compiled Llama; in fp32 and bf16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from rich.table import Table

from opgraft import call_path, evidence, platforms
from opgraft.verify.levels import ready

from .turns import per_call, registered, summary, times_native

SCHEMA = "opgraft.model/1"
SECONDS = 0.3  # of a sample
Run = Callable[[], object]


def _llama(device: str, dtype: torch.dtype) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    return LlamaForCausalLM(config).to(dtype).to(device)  # type: ignore[arg-type]


def _ids(device: str) -> torch.Tensor:
    return torch.randint(3, 256, (2, 16), generator=torch.Generator().manual_seed(1)).to(device)


def _training(device: str, dtype: torch.dtype) -> Run:
    model, ids = _llama(device, dtype).train(), _ids(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimiser.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimiser.step()

    return step


def _generation(device: str, dtype: torch.dtype) -> Run:
    model, prompt = _llama(device, dtype).eval(), _ids(device)[:1, :4]

    def generate() -> None:
        with torch.inference_mode():
            model.generate(prompt, max_new_tokens=64, min_new_tokens=64, do_sample=False)  # type: ignore[operator]

    return generate


def _vit(device: str, dtype: torch.dtype) -> Run:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=64, num_hidden_layers=4, num_attention_heads=4, intermediate_size=128, image_size=64, patch_size=16
    )
    torch.manual_seed(0)
    model = ViTModel(config).to(dtype).to(device).eval()  # type: ignore[arg-type]
    image = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1)).to(device, dtype)

    def forward() -> None:
        with torch.inference_mode():
            model(image)

    return forward


def _compiled(device: str, dtype: torch.dtype) -> Run:
    model, ids = torch.compile(_llama(device, dtype).eval()), _ids(device)

    def forward() -> None:
        with torch.no_grad():
            model(input_ids=ids, use_cache=False)

    return forward


MODELS: dict[str, Callable[[str, torch.dtype], Run]] = {
    "Llama, a training step": _training,
    "Llama, 64 tokens": _generation,
    "ViT, forward": _vit,
    "Llama, compiled forward": _compiled,
}
DTYPES = (torch.float32, torch.bfloat16)


def run(platform: str, rounds: int, match: str = "") -> dict[str, Any]:
    """Measure every model whose name contains ``match`` with all operators, on a platform.

    Returns:
        The record; times in µs.

    Raises:
        RuntimeError: the platform is not usable here, or is simulated. ValueError: no model matches.
    """
    profile = ready(platform)
    if platforms.probe(profile).simulated:
        raise RuntimeError(
            f"{platform} is simulated here: its native kernels are Python, so there is nothing to time; use cpu or a chip"
        )
    torch.set_num_threads(1)
    ways = ("native", "handed", "own", "routed")
    found = []
    for name, make in MODELS.items():
        for dtype in DTYPES:
            title = f"{name}, {str(dtype).removeprefix('torch.')}"
            if match not in title:
                continue
            runs: dict[str, Run] = {}
            samples: dict[str, list[float]] = {way: [] for way in ways}
            for number in range(rounds):
                for way in ways[number % 4 :] + ways[: number % 4]:
                    with registered(way, None, platform):
                        if way not in runs:  # each way compiles its own
                            torch._dynamo.reset()
                            runs[way] = make(profile.device, dtype)
                        for _ in range(2):
                            runs[way]()
                        once = per_call(runs[way], 1, profile, wait=True)
                        samples[way].append(per_call(runs[way], max(1, int(SECONDS / once)), profile, wait=True))
            found.append({"model": title, "ways": {way: summary(times) for way, times in samples.items()}})
    if not found:
        raise ValueError(f"no model matches {match!r}; models: {', '.join(MODELS)}")
    return {
        "schema": SCHEMA,
        **evidence.environment(profile),
        "call path": call_path.state().way,
        "rounds": rounds,
        "models": found,
    }


def table(record: dict[str, Any]) -> Table:
    """A line for each model."""
    shown = Table(
        title=f"{record['platform']} ({record['device']}), {record['call path']} call path: all operators, ms a run, medians"
    )
    for head in ("model", "native", "handed ×", "call path", "own ×", "routed ×"):
        shown.add_column(head, justify="left" if head == "model" else "right")
    for entry in record["models"]:
        ways = entry["ways"]
        shown.add_row(
            entry["model"], f"{ways['native']['median'] / 1e3:.2f}", f"{times_native(ways, 'handed'):.3f}", f"{share(ways):.1%}",
            *(f"{times_native(ways, way):.3f}" for way in ("own", "routed")),
        )  # fmt: skip
    return shown


def share(ways: dict[str, dict[str, float]]) -> float:
    """The part of a run's time, with every call handed back, that is the way there and back."""
    return 1 - ways["native"]["median"] / ways["handed"]["median"]
