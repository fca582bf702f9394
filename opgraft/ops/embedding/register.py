"""embedding: what it replaces, with which kernels, its routes, and which inputs it takes."""

from __future__ import annotations

import torch

from opgraft.a1 import Formula, Operator, Override, signature
from opgraft.ops.embedding.kernel import torch_level, triton_level
from opgraft.routing import Features

INDEX_DTYPES = (torch.int32, torch.int64)
SUMMED_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def unsupported(
    weight: torch.Tensor, indices: torch.Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> str | None:
    """The kernels gather from a strided table of any dtype up to 8 bytes."""
    if sparse:
        return "sparse=True"
    if weight.dim() != 2:
        return "weight is not 2-D, which native refuses"
    if weight.dtype.itemsize > 8 or weight.dtype.is_complex:
        return f"dtype {weight.dtype}"
    if indices.numel() == 0 or weight.numel() == 0:
        return "empty"
    return _unsupported_pair(weight, indices)


def unsupported_backward(
    grad_output: torch.Tensor, indices: torch.Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> str | None:
    """The kernels sum floating-point gradients."""
    if grad_output.dtype not in SUMMED_DTYPES:
        return f"dtype {grad_output.dtype}"
    if indices.numel() == 0 or grad_output.numel() == 0 or num_weights == 0:
        return "empty"
    if grad_output.shape[:-1] != indices.shape:
        return "shapes that native refuses"
    return _unsupported_pair(grad_output, indices)


def _unsupported_pair(values: torch.Tensor, indices: torch.Tensor) -> str | None:
    if indices.dtype not in INDEX_DTYPES:
        return f"indices of dtype {indices.dtype}, which native refuses"
    if values.device != indices.device:
        return "tensors on several devices"
    if values.layout is not torch.strided or values.is_quantized or values.is_neg():
        return f"layout {values.layout}, quantized {values.is_quantized}, or neg bit set"
    return None


def features(
    weight: torch.Tensor, indices: torch.Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Features:
    """The route ``gather``; size is the bytes of the result."""
    return Features(
        "gather", None, (("width", weight.dtype.itemsize),), indices.numel() * weight.shape[1] * weight.dtype.itemsize
    )


def features_backward(
    grad_output: torch.Tensor, indices: torch.Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Features:
    """The route ``backward``; size is the bytes of both gradients."""
    size = (grad_output.numel() + num_weights * grad_output.shape[-1]) * grad_output.dtype.itemsize
    return Features("backward", grad_output.dtype, (), size)


OPERATOR = Operator(
    "embedding",
    overrides=(
        Override(
            "aten::embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool scale_grad_by_freq=False, "
            "bool sparse=False) -> Tensor",
            kernels={"torch": torch_level.embedding, "triton": triton_level.embedding},
            unsupported=unsupported,
            gradient=Formula,  # EmbeddingBackward0, which calls the next one
            features=features,
            signature=signature.of_call,
        ),
        Override(
            "aten::embedding_dense_backward(Tensor grad_output, Tensor indices, SymInt num_weights, SymInt padding_idx, "
            "bool scale_grad_by_freq) -> Tensor",
            kernels={
                "torch": torch_level.embedding_dense_backward,
                "triton": triton_level.embedding_dense_backward,
            },
            unsupported=unsupported_backward,
            gradient=Formula,  # its derivative: the second order
            features=features_backward,
            signature=signature.of_call,
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
    return OPERATOR.overrides[0].call(weight, indices, padding_idx, scale_grad_by_freq, sparse)
