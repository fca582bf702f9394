"""Attention by the kernels of ``flash.py``: geometry, tiles, launches."""

from __future__ import annotations

import functools

import torch
import triton

from opgraft.kernels import Launch, interpreted, new_empty_strided
from opgraft.kernels.geometry import row_major
from opgraft.kernels.philox import threshold
from opgraft.memo import kept

from .flash import (
    attention_delta_kernel,
    attention_forward_kernel,
    attention_keys_backward_kernel,
    attention_queries_backward_kernel,
)

NO_MASK, BOOL_MASK, FLOAT_MASK = 0, 1, 2


def _blocks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor | None = None) -> dict:
    """Rows and columns of a tile, warps and stages, measured on an H200 (docs/h200-notes.md); 16 is the least that ``tl.dot`` takes.

    Two kinds of tile that Triton 3.6 compiles wrongly there are avoided (docs/triton.md): head dims that differ or rows that are
    not whole pieces of 16 bytes take tiles too small for the warp-group matrix unit, and a backward has no tile of 16 queries.
    """
    (M, E), (N, EV) = q.shape[2:], v.shape[2:]
    if interpreted(q.device):
        return {"BLOCK_M": _tile_size(M, 64), "BLOCK_N": _tile_size(N, 64)}
    widest = max(E, EV)
    backward = grad is not None
    regular = E == EV and all(_in_pieces(t, E) for t in (q, k, v, grad) if t is not None)
    if q.dtype is torch.float32:
        m, n, warps, stages = (32, 32, 4, 1) if widest > 64 or backward else (64, 32, 4, 2)
    elif not regular:
        m, n, warps, stages = 32, 32, 4, 1
    elif backward:
        m, n, warps, stages = (64, 64, 4, 2) if widest <= 128 else (64, 32, 4, 2)
    else:
        m, n, warps, stages = 64, 64, 4, 3
    m, n = m if backward else _tile_size(M, m), _tile_size(N, n)
    wide = _tile_size(widest, 256) * q.dtype.itemsize
    room = _shared_memory(q.device.index) - m * wide * (2 if backward else 1)
    stages = max(1, min(stages, room // (2 * (m if backward else n) * wide)))
    return {"BLOCK_M": m, "BLOCK_N": n, "num_warps": warps, "num_stages": stages}


def _in_pieces(t: torch.Tensor, width: int) -> bool:
    """Whether every row of ``width`` elements is whole pieces of 16 bytes in memory."""
    rows = (width, *t.stride()[:3])
    return t.stride(3) == 1 and not t.data_ptr() % 16 and not any(n * t.dtype.itemsize % 16 for n in rows)


@functools.cache
def _shared_memory(device: int) -> int:
    """Bytes of shared memory that a program may use."""
    return triton.runtime.driver.active.utils.get_device_properties(device)["max_shared_mem"]


def _tile_size(size: int, most: int) -> int:
    return max(16, min(triton.next_power_of_2(size), most))


def _common(q, k, mask, p: float, causal: bool, scale: float) -> tuple[tuple, dict, tuple[int, ...]]:
    """What the kernels are given alike: numbers, constants, the mask's strides."""
    kind = NO_MASK if mask is None else BOOL_MASK if mask.dtype is torch.bool else FLOAT_MASK
    strides = (0, 0, 0, 0) if mask is None else mask.stride()
    numbers = (q.shape[0], q.shape[1], q.shape[1] // k.shape[1], q.shape[2], k.shape[2], scale, threshold(p), 1 / (1 - p))
    widths = {"BLOCK_E": _tile_size(q.shape[3], 256)}
    return numbers, {"CAUSAL": causal, "MASK": kind, "DROPOUT": p > 0, **widths}, strides


def _geometry(*tensors: torch.Tensor | None) -> tuple:
    """What a launch depends on of its tensors."""
    return tuple(None if t is None else (t.dtype, t.shape, t.stride(), t.data_ptr() & 15) for t in tensors)


_launches: dict = {}


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, seed: torch.Tensor | None, p: float,
    causal: bool, scale: float, training: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Attention of four-dimensional tensors.

    Args:
        q: (B, H, M, E), fp16, bf16 or fp32; E at most 256.
        k: (B, H/G, N, E).
        v: (B, H/G, N, Ev).
        mask: (B, H, M, N), bool (True is seen) or float (added), expanded where it is broadcast; or None.
        seed: int64 of one element for dropout; None if ``p`` is 0.
        p: the probability that a weight is dropped, below 1.
        causal: whether query i sees keys 0 to i only.
        scale: of the scores.
        training: whether a backward may follow.

    Returns:
        (out, lost, statistics): out (B, H, M, Ev); for the backward, and empty unless ``training``, lost is what rounding took
        from out, statistics (2, B, H, M) fp32 each row's largest score (in units of log 2) and inverse sum (0 and 0 for a row
        without keys).
    """
    B, H, M, _ = q.shape
    EV = v.shape[3]
    strides = (H * M * EV, EV, H * EV, 1) if q.stride(1) < q.stride(2) else row_major((B, H, M, EV))  # q's order of dimensions
    out = new_empty_strided((B, H, M, EV), strides, q.dtype, q.device)
    lost, statistics = out, q  # not touched unless training
    if training:
        lost = new_empty_strided(out.shape, strides, q.dtype, q.device)
        statistics = new_empty_strided((2, B, H, M), row_major((2, B, H, M)), torch.float32, q.device)
    key = ("forward", *_geometry(q, k, v, mask), p, causal, scale, training, q.device)
    run = kept(_launches, key, _forward_launch, out, q, k, v, mask, p, causal, scale, training)
    run(out, lost, statistics, q, k, v, q if mask is None else mask, q if seed is None else seed)
    return (out, lost, statistics) if training else (out, q.new_empty(0), q.new_empty(0, dtype=torch.float32))


def _forward_launch(out, q, k, v, mask, p, causal, scale, training) -> Launch:
    numbers, constants, mask_strides = _common(q, k, mask, p, causal, scale)
    (B, H, M, E), EV = q.shape, v.shape[3]
    blocks = _blocks(q, k, v)
    return Launch(
        attention_forward_kernel, (triton.cdiv(M, blocks["BLOCK_M"]) * B * H,), out.stride(), q.stride(), k.stride(), v.stride(),
        mask_strides, *numbers, E, EV, words=_mask_words(6, mask), **constants, TRAINING=training, BLOCK_EV=_tile_size(EV, 256),
        **blocks,
    )  # fmt: skip


def _mask_words(position: int, mask: torch.Tensor | None) -> tuple[int | None, ...]:
    """A bool mask is read as bytes."""
    return (*[None] * position, 1 if mask is not None and mask.dtype is torch.bool else None)


def attention_backward(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, out: torch.Tensor,
    lost: torch.Tensor, statistics: torch.Tensor, seed: torch.Tensor | None, p: float, causal: bool, scale: float, mask_grad: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """The gradients of :func:`attention` for ``grad`` of out; other arguments as there.

    Raises:
        RuntimeError: the forward ran without ``training``.

    Returns:
        (dq, dk, dv, dmask); dmask is (B, H, M, N) of the mask's dtype, or empty unless ``mask_grad``.
    """
    B, H, M, _ = q.shape
    if not lost.numel():
        raise RuntimeError("opgraft::attention was called with training=False, so its backward has nothing to work with")
    dq, dk, dv = (new_empty_strided(t.shape, row_major(t.shape), t.dtype, t.device) for t in (q, k, v))
    shape = (B, H, M, k.shape[2]) if mask_grad else (0,)
    dmask = new_empty_strided(shape, row_major(shape), mask.dtype if mask_grad else q.dtype, q.device)
    delta = new_empty_strided((B, H, M), row_major((B, H, M)), torch.float32, q.device)
    key = ("backward", *_geometry(grad, q, k, v, mask, out), p, causal, scale, mask_grad, q.device)
    made = kept(_launches, key, _backward_launches, (dq, dk, dv), grad, q, k, v, mask, out, p, causal, scale, mask_grad)
    for_delta, for_keys, for_queries = made
    given = (q, k, v, q if mask is None else mask, q if seed is None else seed, grad, statistics, delta)
    for_delta(delta, out, lost, grad)
    for_keys(dk, dv, *given)
    for_queries(dq, dmask if mask_grad else dq, *given)
    return dq, dk, dv, dmask


def _backward_launches(grads, grad, q, k, v, mask, out, p, causal, scale, mask_grad) -> tuple[Launch, Launch, Launch]:
    numbers, constants, mask_strides = _common(q, k, mask, p, causal, scale)
    (B, H, M, E), (_, SHARED, N, EV) = q.shape, v.shape
    blocks = _blocks(q, k, v, grad)
    rows = triton.cdiv(M, blocks["BLOCK_M"]) * B * H
    wide = {"BLOCK_EV": _tile_size(EV, 256)}
    dq, dk, dv = grads
    strides = (q.stride(), k.stride(), v.stride(), mask_strides, grad.stride())
    words = _mask_words(5, mask)
    return (
        Launch(attention_delta_kernel, (rows,), out.stride(), grad.stride(), H, M, EV, BLOCK_M=blocks["BLOCK_M"], **wide),
        Launch(
            attention_keys_backward_kernel, (triton.cdiv(N, blocks["BLOCK_N"]) * B * SHARED,), dk.stride(), dv.stride(), *strides,
            *numbers, E, EV, words=words, **constants, **wide, **blocks,
        ),
        Launch(
            attention_queries_backward_kernel, (rows,), dq.stride(), *strides, *numbers, E, EV, words=words,
            **constants, MASK_GRAD=mask_grad, **wide, **blocks,
        ),
    )  # fmt: skip
