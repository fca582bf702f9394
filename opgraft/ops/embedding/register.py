"""embedding: what it replaces, with which kernels, its routes, and which inputs it takes."""

from __future__ import annotations

import torch

from opgraft.a1 import Formula, Operator, Override
from opgraft.ops.embedding import inputs
from opgraft.ops.embedding.kernel import torch_level, triton_level

OPERATOR = Operator(
    "embedding",
    overrides=(
        Override(
            "aten::embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool scale_grad_by_freq=False, "
            "bool sparse=False) -> Tensor",
            kernels={"torch": torch_level.embedding, "triton": triton_level.embedding},
            unsupported=inputs.unsupported,
            gradient=Formula,  # EmbeddingBackward0, which calls the next one
            features=inputs.features,
        ),
        Override(
            "aten::embedding_dense_backward(Tensor grad_output, Tensor indices, SymInt num_weights, SymInt padding_idx, "
            "bool scale_grad_by_freq) -> Tensor",
            kernels={"torch": torch_level.embedding_dense_backward, "triton": triton_level.embedding_dense_backward},
            unsupported=inputs.unsupported_backward,
            gradient=Formula,  # its derivative: the second order
            features=inputs.features_backward,
            backward=True,
        ),
    ),
)
register_a1 = OPERATOR.register_a1


def embedding_aten(
    weight: torch.Tensor, indices: torch.Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> torch.Tensor:
    """Run the kernel of ``weight``'s platform directly, without the dispatcher.

    Args:
        weight: (R, D), any strides.
        indices: int32 or int64, any shape, from 0 to R - 1.
        padding_idx: of the backward; as are scale_grad_by_freq and sparse.
        scale_grad_by_freq: see padding_idx.
        sparse: see padding_idx.

    Returns:
        (*indices.shape, D). No gradient is recorded.
    """
    return OPERATOR.call(weight, indices, padding_idx, scale_grad_by_freq, sparse)
