"""Attention in plain PyTorch, with the same dropout mask and results as the Triton level; computed in fp32 and cast back."""

from __future__ import annotations

import math

import torch

from opgraft.kernels.philox import PER, keeps

Maybe = torch.Tensor | None


def _weights(q: torch.Tensor, k: torch.Tensor, mask: Maybe, causal: bool, scale: float) -> torch.Tensor:
    """The softmax weights in fp32; zero for a row without keys. ``k`` has q's heads."""
    scores = (q.float() @ k.float().transpose(-1, -2)) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else scores + mask.float()
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    none = (scores == -math.inf).all(-1, keepdim=True)
    return torch.softmax(scores.masked_fill(none, 0.0), -1).masked_fill(none, 0.0)


def kept(seed: torch.Tensor, p: float, shape: tuple[int, ...]) -> torch.Tensor:
    """Which weights of a shape (B, H, M, N) dropout keeps: an index counts rows of N rounded up to a multiple of eight."""
    row = -(-shape[3] // PER) * PER
    return keeps(seed, math.prod(shape[:3]) * row, p).reshape(*shape[:3], row)[..., : shape[3]]


def _factor(seed: Maybe, p: float, shape: torch.Size) -> torch.Tensor | float:
    """What dropout multiplies each weight with."""
    return 1.0 if seed is None or p == 0 else kept(seed, p, shape).float() / (1 - p)


def _for_all_heads(t: torch.Tensor, heads: int) -> torch.Tensor:
    return t if t.shape[1] == heads else t.repeat_interleave(heads // t.shape[1], 1)


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Maybe, seed: Maybe, p: float, causal: bool, scale: float,
    training: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """(out, nothing, nothing); arguments as at the Triton level."""
    weights = _weights(q, _for_all_heads(k, q.shape[1]), mask, causal, scale)
    out = (weights * _factor(seed, p, weights.shape)) @ _for_all_heads(v, q.shape[1]).float()
    return out.to(q.dtype), q.new_empty(0), q.new_empty(0, dtype=torch.float32)


def attention_backward(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Maybe, out: torch.Tensor, lost: torch.Tensor,
    statistics: torch.Tensor, seed: Maybe, p: float, causal: bool, scale: float, mask_grad: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """(dq, dk, dv, dmask), by the chain rule from q, k and v alone, in differentiable calls; arguments as at the Triton level."""
    heads = q.shape[1]
    wide_k, wide_v, upstream = _for_all_heads(k, heads).float(), _for_all_heads(v, heads).float(), grad.float()
    weights = _weights(q, wide_k, mask, causal, scale)
    factor = _factor(seed, p, weights.shape)
    dv = (weights * factor).transpose(-1, -2) @ upstream
    weight_grad = upstream @ wide_v.transpose(-1, -2) * factor
    scores_grad = weights * (weight_grad - (weight_grad * weights).sum(-1, keepdim=True))
    dq = scores_grad @ wide_k * scale
    dk = scores_grad.transpose(-1, -2) @ q.float() * scale
    dk, dv = (t.unflatten(1, (k.shape[1], -1)).sum(2) for t in (dk, dv))
    dmask = scores_grad.to(mask.dtype) if mask_grad and mask is not None else q.new_empty(0)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), dmask
