"""sdpa (scaled_dot_product_attention): what it replaces, with which kernels, its routes, and which inputs it takes."""

from __future__ import annotations

import torch

from opgraft.a1 import Operator, Override
from opgraft.ops.sdpa import inputs
from opgraft.ops.sdpa.composed import Attention, sdpa

OPERATOR = Operator(
    "sdpa",
    overrides=(
        Override(
            "aten::scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, "
            "float dropout_p=0.0, bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor",
            kernels={"torch": sdpa, "triton": sdpa},  # the kernel level is chosen in opgraft::attention
            unsupported=inputs.unsupported,
            features=inputs.features,
            gradient=Attention,
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
        query: (…, heads, M, E).
        key: (…, heads or fewer, N, E).
        value: (…, as key, N, Ev).
        attn_mask: bool (True is seen) or float (added), broadcast to (…, heads, M, N).
        dropout_p: the probability that a weight is dropped.
        is_causal: whether query i sees keys 0 to i only (top-left aligned).
        scale: of the scores; None is 1/sqrt(E).
        enable_gqa: whether key and value have fewer heads, each shared by a group of query heads.

    Returns:
        (…, heads, M, Ev). No gradient is recorded.
    """
    return OPERATOR.call(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
