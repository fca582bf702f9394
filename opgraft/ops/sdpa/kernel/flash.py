"""Flash attention: scores never leave the chip; softmax is accumulated block by block (Dao et al., FlashAttention-2, 2023).

Shapes: q (B, H, M, E), k (B, H/G, N, E), v (B, H/G, N, Ev), any strides; G query heads share a key/value head. Bytes moved
forward: q, k, v, out once each (k and v once per block of queries, from L2). The backward computes the weights again from
q, k and two numbers of each row, its largest score (in units of log 2) and the inverse of its sum of exponentials relative
to that (their log-sum-exp would round at the size of the scores): one kernel over blocks of keys for dk and dv, which sums over
its group's query heads itself, and one over blocks of queries for dq, so nothing is added atomically and results are
deterministic. What rounding took from out is kept for the backward, in out's dtype: the softmax's derivative subtracts
the row sums of out times its gradient from numbers that may be nearly equal, and with a rounded bf16 out little is left of
the difference. Index width: 64 bits for everything that is multiplied by a stride.
"""

from __future__ import annotations

import triton
import triton.language as tl

from opgraft.kernels.philox import random_bits

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _place(blocks, heads):
    """(block, batch, head) of this program; the grid has one dimension, since the others end at 65535."""
    program = tl.program_id(0)
    batch_head = (program // blocks).to(tl.int64)
    return program % blocks, batch_head // heads, batch_head % heads


@triton.jit
def _tile(base, rows, row_stride, columns, column_stride, ROWS, COLUMNS):
    """A (rows, columns) tile of a matrix; zero outside."""
    pointers = base + rows.to(tl.int64)[:, None] * row_stride + columns.to(tl.int64)[None, :] * column_stride
    return tl.load(pointers, mask=(rows < ROWS)[:, None] & (columns < COLUMNS)[None, :], other=0.0)


@triton.jit
def _scores(
    q, k, mask, rows, columns, mask_strides, M, N, scale, CAUSAL: tl.constexpr, MASK: tl.constexpr, CHECKED: tl.constexpr = True
):
    """Scores of a tile in units of log 2, -inf where a key is not seen; not CHECKED: all columns lie inside and are seen
    unless a mask says otherwise."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * LOG2E)
    if MASK != 0:
        inside = (rows < M)[:, None] & (columns < N)[None, :]
        pointers = mask + rows.to(tl.int64)[:, None] * mask_strides[2] + columns.to(tl.int64)[None, :] * mask_strides[3]
        values = tl.load(pointers, mask=inside, other=0)
        if MASK == 1:
            scores = tl.where(values != 0, scores, float("-inf"))
        else:
            scores += values.to(tl.float32) * LOG2E
    if CHECKED:
        seen = (columns < N)[None, :] & (rows < M)[:, None]
        if CAUSAL:
            seen = seen & (rows[:, None] >= columns[None, :])
        scores = tl.where(seen, scores, float("-inf"))
    return scores


@triton.jit
def _weights(scores, statistics, places, inside, all_rows):
    """The softmax weights of a tile again."""
    largest = tl.load(statistics + places, mask=inside, other=0.0)
    inverse = tl.load(statistics + all_rows + places, mask=inside, other=0.0)
    return tl.exp2(scores - largest[:, None]) * inverse[:, None]


@triton.jit
def _kept(seed, batch_head, rows, start, M, N, least, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Which weights of a tile dropout keeps: a function of the seed and a weight's place, in rows of N rounded up to eights."""
    row = (batch_head * M + rows.to(tl.int64)) * ((N + 7) // 8)
    groups = row[:, None] + (start // 8 + tl.arange(0, COLUMNS // 8))[None, :]
    return random_bits(tl.load(seed), groups, [ROWS, COLUMNS]) >= least


@triton.jit
def _forward_step(
    query, k, v, mask, seed, k_strides, v_strides, mask_strides, batch_head, rows, start, columns_e, columns_ev, largest, total, result,
    M, N, scale, least, keep_scale, E, EV,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, DROPOUT: tl.constexpr, CHECKED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One block of keys: (largest, total, result) of each row so far."""
    columns = start + tl.arange(0, BLOCK_N)
    key = _tile(k, columns, k_strides[2], columns_e, k_strides[3], N, E)
    scores = _scores(query, key, mask, rows, columns, mask_strides, M, N, scale, CAUSAL, MASK, CHECKED)
    larger = tl.maximum(largest, tl.max(scores, 1))
    finite = larger
    if CHECKED or MASK != 0:
        finite = tl.where(larger == float("-inf"), 0.0, larger)  # a row that has seen no key yet
    weights = tl.exp2(scores - finite[:, None])
    shrink = tl.exp2(largest - finite)
    total = total * shrink + tl.sum(weights, 1)
    if DROPOUT:
        keep = _kept(seed, batch_head, rows, start, M, N, least, BLOCK_M, BLOCK_N)
        weights = tl.where(keep, weights * keep_scale, 0.0)
    value = _tile(v, columns, v_strides[2], columns_ev, v_strides[3], N, EV)
    result = tl.dot(weights.to(value.dtype), value, result * shrink[:, None], input_precision="ieee")
    return larger, total, result


@triton.jit(do_not_specialize=["least"])
def attention_forward_kernel(
    out, lost, statistics, q, k, v, mask, seed, out_strides, q_strides, k_strides, v_strides, mask_strides,
    B, H, GROUP, M, N, scale, least, keep_scale, E, EV,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, DROPOUT: tl.constexpr, TRAINING: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_EV: tl.constexpr,
):  # fmt: skip
    """A block of queries of one head against all its keys. ``statistics`` is (2, B, H, M); lost lies as out."""
    block, batch, head = _place(tl.cdiv(M, BLOCK_M), H)
    if CAUSAL:
        block = tl.cdiv(M, BLOCK_M) - 1 - block  # the longest first
    batch_head, shared = batch * H + head, head // GROUP
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    columns_e, columns_ev = tl.arange(0, BLOCK_E), tl.arange(0, BLOCK_EV)
    q += batch * q_strides[0] + head * q_strides[1]
    k += batch * k_strides[0] + shared * k_strides[1]
    v += batch * v_strides[0] + shared * v_strides[1]
    if MASK != 0:
        mask += batch * mask_strides[0] + head * mask_strides[1]
    query = _tile(q, rows, q_strides[2], columns_e, q_strides[3], M, E)
    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    result = tl.zeros([BLOCK_M, BLOCK_EV], tl.float32)
    end, full = N, N // BLOCK_N * BLOCK_N
    if CAUSAL:
        end = tl.minimum(N, (block + 1) * BLOCK_M)
        full = tl.minimum(full, block * BLOCK_M // BLOCK_N * BLOCK_N)
    for start in range(0, full, BLOCK_N):
        largest, total, result = _forward_step(
            query, k, v, mask, seed, k_strides, v_strides, mask_strides, batch_head, rows, start, columns_e, columns_ev, largest, total,
            result, M, N, scale, least, keep_scale, E, EV, CAUSAL, MASK, DROPOUT, False, BLOCK_M, BLOCK_N,
        )  # fmt: skip
    for start in range(full, end, BLOCK_N):
        largest, total, result = _forward_step(
            query, k, v, mask, seed, k_strides, v_strides, mask_strides, batch_head, rows, start, columns_e, columns_ev, largest, total,
            result, M, N, scale, least, keep_scale, E, EV, CAUSAL, MASK, DROPOUT, True, BLOCK_M, BLOCK_N,
        )  # fmt: skip
    none = total == 0.0
    result = result / tl.where(none, 1.0, total)[:, None]  # a row without keys is zero, as in native
    rows64 = rows.to(tl.int64)
    places = (
        batch * out_strides[0] + head * out_strides[1] + rows64[:, None] * out_strides[2] + columns_ev[None, :] * out_strides[3]
    )
    inside = (rows < M)[:, None] & (columns_ev < EV)[None, :]
    rounded = result.to(out.dtype.element_ty)
    tl.store(out + places, rounded, mask=inside)
    if TRAINING:
        tl.store(lost + places, (result - rounded.to(tl.float32)).to(out.dtype.element_ty), mask=inside)
        row = batch_head * M + rows64
        tl.store(statistics + row, tl.where(none, 0.0, largest), mask=rows < M)
        tl.store(statistics + B * H * M + row, tl.where(none, 0.0, 1.0 / total), mask=rows < M)


@triton.jit
def attention_delta_kernel(
    delta, out, lost, grad, out_strides, grad_strides, H, M, EV, BLOCK_M: tl.constexpr, BLOCK_EV: tl.constexpr
):
    """delta[b, h, m] = sum over Ev of (out + lost) * grad: what the softmax's derivative subtracts."""
    block, batch, head = _place(tl.cdiv(M, BLOCK_M), H)
    rows, columns = block * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_EV)
    start = batch * out_strides[0] + head * out_strides[1]
    o = _tile(out + start, rows, out_strides[2], columns, out_strides[3], M, EV).to(tl.float32)
    o += _tile(lost + start, rows, out_strides[2], columns, out_strides[3], M, EV).to(tl.float32)
    g = _tile(grad + batch * grad_strides[0] + head * grad_strides[1], rows, grad_strides[2], columns, grad_strides[3], M, EV)
    total = tl.sum(o * g.to(tl.float32), 1)
    tl.store(delta + (batch * H + head) * M + rows, total, mask=rows < M)


@triton.jit(do_not_specialize=["least"])
def attention_keys_backward_kernel(
    dk, dv, q, k, v, mask, seed, grad, statistics, delta, dk_strides, dv_strides, q_strides, k_strides, v_strides, mask_strides,
    grad_strides, B, H, GROUP, M, N, scale, least, keep_scale, E, EV,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, DROPOUT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_EV: tl.constexpr,
):  # fmt: skip
    """dk and dv of a block of keys of one key/value head, over all queries of its group."""
    block, batch, shared = _place(tl.cdiv(N, BLOCK_N), H // GROUP)
    columns = block * BLOCK_N + tl.arange(0, BLOCK_N)
    columns_e, columns_ev = tl.arange(0, BLOCK_E), tl.arange(0, BLOCK_EV)
    key = _tile(k + batch * k_strides[0] + shared * k_strides[1], columns, k_strides[2], columns_e, k_strides[3], N, E)
    value = _tile(v + batch * v_strides[0] + shared * v_strides[1], columns, v_strides[2], columns_ev, v_strides[3], N, EV)
    key_grad, value_grad = tl.zeros([BLOCK_N, BLOCK_E], tl.float32), tl.zeros([BLOCK_N, BLOCK_EV], tl.float32)
    first = 0
    if CAUSAL:
        first = (block * BLOCK_N) // BLOCK_M * BLOCK_M
    blocks = tl.maximum(0, tl.cdiv(M - first, BLOCK_M))
    for step in range(0, GROUP * blocks):
        head = shared * GROUP + step // blocks
        batch_head = batch * H + head
        rows = first + step % blocks * BLOCK_M + tl.arange(0, BLOCK_M)
        query = _tile(q + batch * q_strides[0] + head * q_strides[1], rows, q_strides[2], columns_e, q_strides[3], M, E)
        mask_here = mask
        if MASK != 0:
            mask_here = mask + batch * mask_strides[0] + head * mask_strides[1]
        scores = _scores(query, key, mask_here, rows, columns, mask_strides, M, N, scale, CAUSAL, MASK)
        weights = _weights(scores, statistics, batch_head * M + rows, rows < M, B * H * M)
        upstream = _tile(
            grad + batch * grad_strides[0] + head * grad_strides[1], rows, grad_strides[2], columns_ev, grad_strides[3], M, EV
        )
        weight_grad = tl.dot(upstream, tl.trans(value), input_precision="ieee")
        kept = weights
        if DROPOUT:
            keep = _kept(seed, batch_head, rows, block * BLOCK_N, M, N, least, BLOCK_M, BLOCK_N)
            kept = tl.where(keep, weights * keep_scale, 0.0)
            weight_grad = tl.where(keep, weight_grad * keep_scale, 0.0)
        value_grad += tl.dot(tl.trans(kept.to(upstream.dtype)), upstream, input_precision="ieee")
        row_delta = tl.load(delta + batch_head * M + rows, mask=rows < M, other=0.0)
        score_grad = weights * (weight_grad - row_delta[:, None])
        key_grad += tl.dot(tl.trans(score_grad.to(query.dtype)), query, input_precision="ieee")
    columns64 = columns.to(tl.int64)
    dk += batch * dk_strides[0] + shared * dk_strides[1]
    dv += batch * dv_strides[0] + shared * dv_strides[1]
    inside = (columns < N)[:, None]
    tl.store(
        dk + columns64[:, None] * dk_strides[2] + columns_e[None, :] * dk_strides[3],
        (key_grad * scale).to(dk.dtype.element_ty), mask=inside & (columns_e < E)[None, :],
    )  # fmt: skip
    tl.store(
        dv + columns64[:, None] * dv_strides[2] + columns_ev[None, :] * dv_strides[3],
        value_grad.to(dv.dtype.element_ty), mask=inside & (columns_ev < EV)[None, :],
    )  # fmt: skip


@triton.jit(do_not_specialize=["least"])
def attention_queries_backward_kernel(
    dq, dmask, q, k, v, mask, seed, grad, statistics, delta, dq_strides, q_strides, k_strides, v_strides, mask_strides, grad_strides,
    B, H, GROUP, M, N, scale, least, keep_scale, E, EV,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, DROPOUT: tl.constexpr, MASK_GRAD: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_EV: tl.constexpr,
):  # fmt: skip
    """dq of a block of queries of one head; with MASK_GRAD the gradient of every score too, into dmask (B, H, M, N)."""
    block, batch, head = _place(tl.cdiv(M, BLOCK_M), H)
    batch_head, shared = batch * H + head, head // GROUP
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    columns_e, columns_ev = tl.arange(0, BLOCK_E), tl.arange(0, BLOCK_EV)
    query = _tile(q + batch * q_strides[0] + head * q_strides[1], rows, q_strides[2], columns_e, q_strides[3], M, E)
    upstream = _tile(
        grad + batch * grad_strides[0] + head * grad_strides[1], rows, grad_strides[2], columns_ev, grad_strides[3], M, EV
    )
    row_delta = tl.load(delta + batch_head * M + rows, mask=rows < M, other=0.0)
    if MASK != 0:
        mask += batch * mask_strides[0] + head * mask_strides[1]
    result = tl.zeros([BLOCK_M, BLOCK_E], tl.float32)
    end = N
    if CAUSAL and not MASK_GRAD:
        end = tl.minimum(N, (block + 1) * BLOCK_M)
    for start in range(0, end, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        key = _tile(k + batch * k_strides[0] + shared * k_strides[1], columns, k_strides[2], columns_e, k_strides[3], N, E)
        value = _tile(v + batch * v_strides[0] + shared * v_strides[1], columns, v_strides[2], columns_ev, v_strides[3], N, EV)
        scores = _scores(query, key, mask, rows, columns, mask_strides, M, N, scale, CAUSAL, MASK)
        weights = _weights(scores, statistics, batch_head * M + rows, rows < M, B * H * M)
        weight_grad = tl.dot(upstream, tl.trans(value), input_precision="ieee")
        if DROPOUT:
            keep = _kept(seed, batch_head, rows, start, M, N, least, BLOCK_M, BLOCK_N)
            weight_grad = tl.where(keep, weight_grad * keep_scale, 0.0)
        score_grad = weights * (weight_grad - row_delta[:, None])
        result += tl.dot(score_grad.to(key.dtype), key, input_precision="ieee")
        if MASK_GRAD:
            pointers = dmask + (batch_head * M + rows.to(tl.int64)[:, None]) * N + columns[None, :]
            inside = (rows < M)[:, None] & (columns < N)[None, :]
            tl.store(pointers, score_grad.to(dmask.dtype.element_ty), mask=inside)
    pointers = dq + batch * dq_strides[0] + head * dq_strides[1] + rows.to(tl.int64)[:, None] * dq_strides[2]
    pointers += columns_e[None, :] * dq_strides[3]
    inside = (rows < M)[:, None] & (columns_e < E)[None, :]
    tl.store(pointers, (result * scale).to(dq.dtype.element_ty), mask=inside)
