"""Which inputs sdpa's kernels take, how they become four-dimensional, and what its routing table knows of a call."""

from __future__ import annotations

import math

import torch

from opgraft.routing import Features

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MAX_HEAD_DIM = 256
Maybe = torch.Tensor | None


def unsupported(query, key, value, attn_mask: Maybe, dropout_p: float, is_causal: bool, enable_gqa: bool) -> str | None:
    """The kernels take what native takes, but for the dtypes and head dims named here. What native refuses, native answers."""
    given = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
    if any(t.layout is not torch.strided or t.device != query.device for t in given) or query.is_nested:
        return "nested, sparse, or on several devices"
    if query.dtype not in DTYPES or not query.dtype == key.dtype == value.dtype:
        return f"dtypes {query.dtype}, {key.dtype}, {value.dtype}"
    if min(t.dim() for t in (query, key, value)) < 2 or not query.dim() == key.dim() == value.dim():
        return "ranks differ or are below 2"
    if any(t.numel() == 0 for t in given):
        return "empty"
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        return "shapes that native refuses"
    if max(query.shape[-1], value.shape[-1]) > MAX_HEAD_DIM:
        return f"head dim over {MAX_HEAD_DIM}"
    if not 0 <= dropout_p < 1:
        return "nothing is kept, or a probability that native refuses"
    if enable_gqa and (query.dim() < 3 or key.shape[-3] != value.shape[-3] or query.shape[-3] % key.shape[-3]):
        return "enable_gqa with heads that do not divide, which native refuses"
    try:
        batch = batch_sizes(query, key, value, enable_gqa)
        if attn_mask is not None:
            whole = (*batch, query.shape[-2], key.shape[-2])
            if torch.broadcast_shapes(attn_mask.shape, whole) != whole:
                return "a mask larger than the scores, which native refuses"
    except RuntimeError:
        return "shapes do not broadcast, which native refuses"
    if attn_mask is not None and (is_causal or attn_mask.dtype not in (torch.bool, torch.float32, query.dtype)):
        return "is_causal beside a mask, or a mask of another dtype"
    return None


def batch_sizes(query, key, value, enable_gqa: bool) -> torch.Size:
    """The leading sizes of the result: those of the three, broadcast; with enable_gqa the heads are query's."""
    if not enable_gqa:
        return torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    outer = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
    return torch.Size((*outer, query.shape[-3]))


def four_dimensional(t: torch.Tensor, batch: tuple[int, ...]) -> torch.Tensor:
    """Expanded to these leading sizes and brought to rank 4 (a copy only if the outer ones do not collapse)."""
    t = t.expand(*batch, *t.shape[-2:])
    if len(batch) == 2:
        return t
    return t[None, None] if not batch else t[None] if len(batch) == 1 else t.flatten(0, len(batch) - 2)


def training(*tensors: Maybe) -> bool:
    """Whether a backward may follow: one of them asks for a gradient, and gradients are recorded."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def features(query, key, value, attn_mask: Maybe = None, dropout_p: float = 0.0, is_causal: bool = False) -> Features:
    """The route ``decode`` (one query) or ``prefill``; causal, masked and dropout calls and head dims apart; size is the
    number of scores. Training is apart from inference, since it pays for the backward too."""
    route = "decode" if query.shape[-2] == 1 else "prefill"
    route += " training" if training(query, key, value, attn_mask) else ""
    kind = "dropout" if dropout_p else "masked" if attn_mask is not None else "causal" if is_causal else "plain"
    fields = (("head_dim", query.shape[-1]), ("kind", kind), ("gqa", query.shape[:-2] != key.shape[:-2]))
    return Features(route, query.dtype, fields, math.prod(query.shape[:-1]) * key.shape[-2])
