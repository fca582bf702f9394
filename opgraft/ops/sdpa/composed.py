"""sdpa as the user calls it, from :func:`opgraft.ops.sdpa.attention.attention` of four-dimensional tensors."""

from __future__ import annotations

import math

import torch

from opgraft.a1 import Composite
from opgraft.kernels.philox import draw_seed
from opgraft.ops.sdpa.attention import attention
from opgraft.ops.sdpa.inputs import batch_sizes, four_dimensional, training


def sdpa(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Attention of any rank by :func:`attention`, from differentiable calls; arguments as
    ``torch.nn.functional.scaled_dot_product_attention``."""
    batch = batch_sizes(query, key, value, enable_gqa)
    shared = (*batch[:-1], key.shape[-3]) if enable_gqa else batch
    if attn_mask is not None:
        attn_mask = four_dimensional(attn_mask.expand(*batch, query.shape[-2], key.shape[-2]), batch)
    q, k, v = four_dimensional(query, batch), four_dimensional(key, shared), four_dimensional(value, shared)
    heads, group = k.shape[1], q.shape[1] // k.shape[1]
    one_query = group > 1 and q.shape[2] == 1 and not is_causal
    if one_query:  # decoding: the heads of a group are as many queries, so each key and value is read once a group
        q = q.squeeze(2).unflatten(1, (heads, group))
        attn_mask = None if attn_mask is None else attn_mask.squeeze(2).unflatten(1, (heads, group))
    seed = draw_seed(query.device) if dropout_p > 0 else None
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    out, *_ = attention(q, k, v, attn_mask, seed, dropout_p, is_causal, scale, training(query, key, value, attn_mask))
    if one_query:
        out = out.flatten(1, 2).unsqueeze(2)
    return out if len(batch) == 2 else out.reshape(*batch, *out.shape[-2:])


class Attention(Composite):
    """sdpa with a gradient to keep."""

    forward = staticmethod(sdpa)
