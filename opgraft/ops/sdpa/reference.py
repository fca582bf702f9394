"""The meaning of scaled_dot_product_attention: softmax(q kᵀ · scale + mask) v, a row without keys is zero."""

from __future__ import annotations

import math

import torch


def sdpa(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Computed in fp64 and cast back, without dropout.

    Args:
        query: (…, heads, M, E). key: (…, heads or fewer, N, E). value: (…, as key, N, Ev).
        key: see query.
        value: see query.
        attn_mask: bool (True is seen) or float (added), broadcast to (…, heads, M, N).
        dropout_p: only 0.
        is_causal: whether query i sees keys 0 to i only (top-left aligned).
        scale: of the scores; None is 1/sqrt(E).
        enable_gqa: whether key and value heads are shared by groups of query heads.
    """
    assert dropout_p == 0, "dropout's mask is a matter of the seed: see test/kernel_level.py"
    q, k, v = query.double(), key.double(), value.double()
    if enable_gqa:
        k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    scores = q @ k.transpose(-1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if is_causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril(), -math.inf)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype is torch.bool else scores + attn_mask.double()
    none = (scores == -math.inf).all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(none, 0.0), -1).masked_fill(none, 0.0)
    return (weights @ v).to(query.dtype)
