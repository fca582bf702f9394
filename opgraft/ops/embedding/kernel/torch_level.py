"""embedding by the platform's own kernels; half-precision gradients are summed in fp32, which native's CPU kernel does not."""

from __future__ import annotations

import torch

embedding = torch.ops.aten.embedding.default
_backward = torch.ops.aten.embedding_dense_backward.default


def embedding_dense_backward(
    grad_output: torch.Tensor, indices: torch.Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> torch.Tensor:
    """The gradient of the table; arguments as at the Triton level."""
    wide = grad_output.float() if grad_output.dtype.itemsize == 2 else grad_output
    return _backward(wide, indices, num_weights, padding_idx, scale_grad_by_freq).to(grad_output.dtype)
