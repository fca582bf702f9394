"""The meaning of embedding: row ``indices[i]`` of the table, and of its backward: each row's sum of what was sent to it."""

from __future__ import annotations

import torch


def embedding(
    weight: torch.Tensor, indices: torch.Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> torch.Tensor:
    """The rows of ``weight`` (R, D) at ``indices`` (any shape): (*indices.shape, D). Nothing is computed."""
    rows = [weight[int(i)] for i in indices.reshape(-1)]
    flat = torch.stack(rows) if rows else weight.new_empty(0, weight.shape[1])
    return flat.reshape(*indices.shape, weight.shape[1])


def embedding_dense_backward(
    grad_output: torch.Tensor, indices: torch.Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> torch.Tensor:
    """Summed in fp64 and cast back, one index after the other."""
    grad = grad_output.reshape(-1, grad_output.shape[-1])
    total = torch.zeros(num_weights, grad.shape[1], dtype=torch.float64)
    flat = indices.reshape(-1).tolist()
    for place, index in enumerate(flat):
        if index != padding_idx:
            total[index] += grad[place].double() / (flat.count(index) if scale_grad_by_freq else 1)
    return total.to(grad.dtype)
