"""``opgraft::attention``: attention of four-dimensional tensors as an operator of ours, with its derivative."""

from __future__ import annotations

import torch

from opgraft import platforms
from opgraft.a1 import Gradient, NotDifferentiable, define
from opgraft.ops.sdpa.kernel import torch_level, triton_level

KERNELS = {"torch": torch_level.attention, "triton": triton_level.attention}
BACKWARD_KERNELS = {"torch": torch_level.attention_backward, "triton": triton_level.attention_backward}


def _level(tensor: torch.Tensor) -> str:
    return platforms.profile_for_device(tensor.device.type).kernel_level


def _forward(q, *rest):
    return KERNELS[_level(q)](q, *rest)


def _backward(grad, q, k, v, *rest):
    return BACKWARD_KERNELS[_level(q)](grad, q, k, v, *rest)


class FlashBackward(Gradient):
    """The backward kernel computes the weights again from q, k and two numbers of each row."""

    @staticmethod
    def save(ctx, q, k, v, mask, seed, p: float, causal: bool, scale: float, output) -> None:  # type: ignore[override]
        """Keep q, k, v, the mask, the results, the seed (one int64) and the numbers."""
        ctx.numbers = p, causal, scale
        ctx.save_for_backward(q, k, v, mask, seed, *output)
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx, *grads: torch.Tensor) -> tuple:
        """(gradients of q, k, v and a float mask that asks for one). Under ``create_graph`` in plain PyTorch calls, since a
        flash backward has no derivative of its own."""
        q, k, v, mask, seed, out, lost, statistics = ctx.saved_tensors
        mask_grad = mask is not None and ctx.needs_input_grad[5]  # after the key set and the keywords
        backward = torch_level.attention_backward if torch.is_grad_enabled() else attention_backward
        dq, dk, dv, dmask = backward(grads[0], q, k, v, mask, out, lost, statistics, seed, *ctx.numbers, mask_grad)
        return dq, dk, dv, dmask if mask_grad else None, None, None, None, None, None


attention = define(
    "attention(Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor? seed, float p, bool causal, float scale, bool training) "
    "-> (Tensor, Tensor, Tensor)",
    _forward,
    lambda q, k, v, *rest: (
        q.new_empty(*q.shape[:3], v.shape[3]),
        q.new_empty((*q.shape[:3], v.shape[3]) if rest[-1] else (0,)),
        q.new_empty((2, *q.shape[:3]) if rest[-1] else (0,), dtype=torch.float32),
    ),
    FlashBackward,
)
attention_backward = define(
    "attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor out, Tensor lost, Tensor statistics, Tensor? seed, "
    "float p, bool causal, float scale, bool mask_grad) -> (Tensor, Tensor, Tensor, Tensor)",
    _backward,
    lambda grad, q, k, v, mask, *rest: (
        *(t.new_empty(t.shape) for t in (q, k, v)),
        q.new_empty((*q.shape[:3], k.shape[2]) if rest[-1] else (0,), dtype=mask.dtype if rest[-1] else q.dtype),
    ),
    NotDifferentiable,
)
