"""A small decoder-only language model, written so that one step calls every operator of the contract."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Sizes:
    """Sizes of the model: vocabulary, width, heads, layers, longest sequence; dropout probability."""

    vocabulary: int = 61
    width: int = 32
    heads: int = 4
    layers: int = 2
    positions: int = 24
    dropout: float = 0.0


class Block(nn.Module):
    """Attention and a feed-forward layer with residuals; keeps a key/value cache when decoding."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.sizes = sizes
        self.norm1, self.norm2 = nn.LayerNorm(sizes.width), nn.LayerNorm(sizes.width)
        self.qkv = nn.Linear(sizes.width, 3 * sizes.width)
        self.out = nn.Linear(sizes.width, sizes.width)
        self.up, self.down = nn.Linear(sizes.width, 4 * sizes.width), nn.Linear(4 * sizes.width, sizes.width)

    def forward(self, x: Tensor, cache: Tensor | None = None, start: int = 0) -> Tensor:
        """x: (batch, length, width). cache: (2, batch, heads, positions, head width), written at ``start``."""
        batch, length, width = x.shape
        residual = x.clone()
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.sizes.heads, -1).permute(2, 0, 3, 1, 4)
        if cache is not None:
            cache[0, :, :, start : start + length].copy_(k)
            cache[1, :, :, start : start + length].copy_(v)
            k, v = cache[0, :, :, : start + length], cache[1, :, :, : start + length]
        attended = F.scaled_dot_product_attention(q, k.contiguous(), v.contiguous(), is_causal=length > 1)
        x = residual + F.dropout(
            self.out(attended.transpose(1, 2).contiguous().view(batch, length, width)), self.sizes.dropout, self.training
        )
        return x + self.down(F.gelu(self.up(self.norm2(x)))).type_as(x)


class Decoder(nn.Module):
    """Embeddings, blocks, tied output layer."""

    def __init__(self, sizes: Sizes = Sizes()):
        super().__init__()
        self.sizes = sizes
        self.tokens = nn.Embedding(sizes.vocabulary, sizes.width)
        self.positions = nn.Embedding(sizes.positions, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.width)

    def forward(self, ids: Tensor, caches: list[Tensor] | None = None, start: int = 0) -> Tensor:
        """ids: (batch, length) int64. Returns logits (batch, length, vocabulary) in fp32."""
        at = torch.arange(start, start + ids.shape[1], device=ids.device)
        x = self.tokens(ids) + self.positions(at)
        for number, block in enumerate(self.blocks):
            x = block(x, caches[number] if caches else None, start)
        logits = self.norm(x) @ self.tokens.weight.t()
        return logits.type_as(torch.empty_like(logits, dtype=torch.float32))

    def generate(self, prompt: Tensor, steps: int) -> list[int]:
        """Greedy decoding of one prompt (1, length) under inference_mode, with a cache; the new tokens."""
        sizes, made = self.sizes, []
        shape = (2, 1, sizes.heads, sizes.positions, sizes.width // sizes.heads)
        with torch.inference_mode():
            strides = torch.empty(shape, device="meta").stride()
            caches = [torch.empty_strided(shape, strides, device=prompt.device).zero_() for _ in self.blocks]
            logits = self(prompt, caches)
            for step in range(steps):
                token = logits[0, -1].argmax().item()
                made.append(token)
                following = torch.tensor([[token]], device=prompt.device)
                logits = self(following, caches, prompt.shape[1] + step)
        return made


@dataclass
class Outcome:
    """What a run gave.

    Attributes:
        losses: one a step.
        gradients: of the first step, by parameter name.
        weights: after training, by parameter name.
        tokens: decoded greedily under inference_mode.
        inference_calls: how often each ATen operator (``aten::clone``) was called there.
    """

    losses: list[float]
    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]
    tokens: list[int]
    inference_calls: Counter[str]


@contextlib.contextmanager
def counted_calls() -> Iterator[Counter[str]]:
    """Count the ATen operators that a block calls, by PyTorch's profiler, which knows nothing of our registrations."""
    calls: Counter[str] = Counter()
    with torch.autograd.profiler.profile() as profile:
        yield calls
    calls.update(event.name for event in profile.function_events if event.name.startswith("aten::"))


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    """CPU copies of a model's gradients by parameter name, of those that have one."""
    return {n: p.grad.detach().cpu().clone() for n, p in model.named_parameters() if p.grad is not None}


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """CPU copies of a model's parameters by name."""
    return {n: p.detach().cpu().clone() for n, p in model.named_parameters()}


def run(device: str | torch.device, sizes: Sizes = Sizes(), steps: int = 2, decode: int = 6, seed: int = 0) -> Outcome:
    """Build the model on the CPU, move it, train it with AdamW, then decode greedily.

    Args:
        device: where it runs.
        steps: optimiser steps.
        decode: tokens to generate.
        seed: of weights, data and dropout; the run depends on nothing else.
    """
    torch.manual_seed(seed)
    model = Decoder(sizes).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.randint(sizes.vocabulary, (3, 13), generator=torch.Generator().manual_seed(seed)).to(device)
    losses, gradients = [], {}
    torch.manual_seed(seed + 1)
    for step in range(steps):
        logits = model(data[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), data[:, 1:].reshape(-1))
        optimiser.zero_grad()
        loss.backward()
        if step == 0:
            gradients = gradients_of(model)
        optimiser.step()
        losses.append(loss.detach().item())
    model.eval()
    with counted_calls() as calls:
        tokens = model.generate(data[:1, :5], decode)
    return Outcome(losses, gradients, weights_of(model), tokens, calls)
