"""sdpa (scaled_dot_product_attention): what it replaces, with which kernels, its routes, and which inputs it takes."""

from __future__ import annotations

import math
from collections.abc import Hashable

import torch

from opgraft.a1 import Composite, Operator, Override, signature
from opgraft.kernels.philox import draw_seed
from opgraft.ops.sdpa.attention import attention
from opgraft.routing import Features

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MAX_HEAD_DIM = 256


def unsupported(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> str | None:  # fmt: skip
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
        batch = _batch(query, key, value, enable_gqa)
        if attn_mask is not None:
            whole = (*batch, query.shape[-2], key.shape[-2])
            if torch.broadcast_shapes(attn_mask.shape, whole) != whole:
                return "a mask larger than the scores, which native refuses"
    except RuntimeError:
        return "shapes do not broadcast, which native refuses"
    if attn_mask is not None and (is_causal or attn_mask.dtype not in (torch.bool, torch.float32, query.dtype)):
        return "is_causal beside a mask, or a mask of another dtype"
    return None


def _batch(query, key, value, enable_gqa: bool) -> torch.Size:
    """The leading sizes of the result: those of the three, broadcast; with enable_gqa the heads are query's."""
    if not enable_gqa:
        return torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    outer = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
    return torch.Size((*outer, query.shape[-3]))


def _four(t: torch.Tensor, batch: tuple[int, ...]) -> torch.Tensor:
    """Expanded to these leading sizes and brought to rank 4 (a copy only if the outer ones do not collapse)."""
    t = t.expand(*batch, *t.shape[-2:])
    if len(batch) == 2:
        return t
    return t[None, None] if not batch else t[None] if len(batch) == 1 else t.flatten(0, len(batch) - 2)


def sdpa(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Attention by :func:`opgraft.ops.sdpa.attention.attention`, from differentiable calls."""
    batch = _batch(query, key, value, enable_gqa)
    shared = (*batch[:-1], key.shape[-3]) if enable_gqa else batch
    if attn_mask is not None:
        attn_mask = _four(attn_mask.expand(*batch, query.shape[-2], key.shape[-2]), batch)
    q, k, v = _four(query, batch), _four(key, shared), _four(value, shared)
    heads, group = k.shape[1], q.shape[1] // k.shape[1]
    one_query = group > 1 and q.shape[2] == 1 and not is_causal
    if one_query:  # decoding: the heads of a group are as many queries, so each key and value is read once a group
        q = q.squeeze(2).unflatten(1, (heads, group))
        attn_mask = None if attn_mask is None else attn_mask.squeeze(2).unflatten(1, (heads, group))
    seed = draw_seed(query.device) if dropout_p > 0 else None
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    out, *_ = attention(q, k, v, attn_mask, seed, dropout_p, is_causal, scale, _training(query, key, value, attn_mask))
    if one_query:
        out = out.flatten(1, 2).unsqueeze(2)
    return out if len(batch) == 2 else out.reshape(*batch, *out.shape[-2:])


def _training(*tensors: torch.Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def features(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Features:  # fmt: skip
    """The route ``decode`` (one query) or ``prefill``; causal, masked and dropout calls and head dims apart; size is the
    number of scores. Training is apart from inference, since it pays for the backward too."""
    route = "decode" if query.shape[-2] == 1 else "prefill"
    route += " training" if _training(query, key, value, attn_mask) else ""
    kind = "dropout" if dropout_p else "masked" if attn_mask is not None else "causal" if is_causal else "plain"
    fields = (("head_dim", query.shape[-1]), ("kind", kind), ("gqa", query.shape[:-2] != key.shape[:-2]))
    return Features(route, query.dtype, fields, math.prod(query.shape[:-1]) * key.shape[-2])


def call_signature(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Hashable:  # fmt: skip
    """The geometry of the tensors, what else is given, and whether a gradient is kept."""
    given = signature.of_call(query, key, value, attn_mask, dropout_p, is_causal)
    return given, enable_gqa, _training(query, key, value, attn_mask)


class Attention(Composite):
    """sdpa with a gradient to keep."""

    forward = staticmethod(sdpa)


OPERATOR = Operator(
    "sdpa",
    overrides=(
        Override(
            "aten::scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, "
            "float dropout_p=0.0, bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor",
            kernels={"torch": sdpa, "triton": sdpa},  # the kernel level is chosen in opgraft::attention
            unsupported=unsupported,
            gradient=Attention,
            features=features,
            signature=call_signature,
        ),
    ),
)
register_a1 = OPERATOR.register_a1


def sdpa_aten(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Run the kernel of ``query``'s platform directly, without the dispatcher; arguments as
    ``torch.nn.functional.scaled_dot_product_attention``.

    Args:
        query: (…, heads, M, E). key: (…, heads or fewer, N, E). value: (…, as key, N, Ev).
        key: see query.
        value: see query.
        attn_mask: bool (True is seen) or float (added), broadcast to (…, heads, M, N).
        dropout_p: the probability that a weight is dropped.
        is_causal: whether query i sees keys 0 to i only (top-left aligned).
        scale: of the scores; None is 1/sqrt(E).
        enable_gqa: whether key and value have fewer heads, each shared by a group of query heads.

    Returns:
        (…, heads, M, Ev). No gradient is recorded.
    """
    rest = {"scale": scale, "enable_gqa": enable_gqa}
    return OPERATOR.overrides[0].call(query, key, value, attn_mask, dropout_p, is_causal, **rest)
