"""embedding: a gather of rows, and a backward that sorts the indices instead of adding atomically.

Forward: each index read once, each row read and written once; only bits move. Row offsets are 64 bits wide.

Backward, for n indices into R rows of D columns: the indices are sorted (stable, with their places), and every row of the
gradient is written exactly once, in order of its places, so the result is deterministic and needs no zeroing beforehand.
Bytes moved: the upstream gradient once, the gradient once, and the sort. A row with many indices would be one long
serial sum, so stretches of ``CHUNK`` sorted places that lie within one row are summed first, in parallel, into a
workspace of n/CHUNK rows in the accumulation dtype; the row then adds those. Sums are in fp32 (fp64 for fp64).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from opgraft.kernels import interpreted, launch, new_empty_strided, words
from opgraft.kernels.geometry import row_major

CHUNK = 32


@triton.jit(debug=True)  # device_assert does nothing without
def gather_kernel(
    out, weight, indices, rows, columns, row_stride, column_stride, count, blocks, BLOCK: tl.constexpr, PER: tl.constexpr
):
    """out[i] = weight[indices[i]] for PER indices and one block of columns a program; no access outside the table."""
    program = tl.program_id(0).to(tl.int64)
    places = program // blocks * PER + tl.arange(0, PER)
    column = program % blocks * BLOCK + tl.arange(0, BLOCK)
    index = tl.load(indices + places, mask=places < count, other=0).to(tl.int64)
    valid = (index >= 0) & (index < rows)
    tl.device_assert(valid, "embedding: an index is out of the table's range")
    inside = ((places < count) & valid)[:, None] & (column < columns)[None, :]
    value = tl.load(weight + index[:, None] * row_stride + column[None, :] * column_stride, mask=inside)
    tl.store(out + places[:, None] * columns + column[None, :], value, mask=inside)


@triton.jit
def row_bounds_kernel(starts, ends, indices, rows, count, BLOCK: tl.constexpr):
    """Where each row's places start and end in the sorted indices; rows without any keep start = end = 0."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    index = tl.load(indices + places, mask=inside, other=-1).to(tl.int64)
    inside = inside & (index >= 0) & (index < rows)
    before = tl.load(indices + places - 1, mask=inside & (places > 0), other=-1).to(tl.int64)
    after = tl.load(indices + places + 1, mask=inside & (places + 1 < count), other=-1).to(tl.int64)
    tl.store(starts + index, places, mask=inside & (index != before))
    tl.store(ends + index, places + 1, mask=inside & (index != after))


@triton.jit
def chunk_sums_kernel(
    sums,
    grad,
    order,
    indices,
    starts,
    columns,
    row_stride,
    column_stride,
    count,
    blocks,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sums of the chunks of sorted places that belong to one row as a whole; the others are left alone."""
    program = tl.program_id(0).to(tl.int64)
    chunk = program // blocks
    column = program % blocks * BLOCK + tl.arange(0, BLOCK)
    first, last = tl.load(indices + chunk * CHUNK), tl.load(indices + chunk * CHUNK + CHUNK - 1)
    if first == last:
        total = tl.zeros([BLOCK], sums.dtype.element_ty)
        for step in range(CHUNK):
            place = tl.load(order + chunk * CHUNK + step).to(tl.int64)
            value = tl.load(grad + place * row_stride + column * column_stride, mask=column < columns, other=0.0)
            total += value.to(sums.dtype.element_ty)
        tl.store(sums + chunk * columns + column, total, mask=column < columns)


@triton.jit
def row_sums_kernel(
    out, grad, sums, order, starts, ends, columns, row_stride, column_stride, blocks, padding_idx,
    BY_COUNT: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[row] = the sum of the row's places: single ones up to a chunk's edge, whole chunks, single ones again."""
    program = tl.program_id(0).to(tl.int64)
    row = program // blocks
    column = program % blocks * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    start, end = tl.load(starts + row), tl.load(ends + row)
    number = end - start
    if row == padding_idx:
        end = start
    first_chunk = (start + CHUNK - 1) // CHUNK
    last_chunk = end // CHUNK
    head = tl.minimum(end, first_chunk * CHUNK)
    tail = tl.maximum(head, last_chunk * CHUNK)
    total = tl.zeros([BLOCK], sums.dtype.element_ty)
    for at in range(start, head):
        place = tl.load(order + at).to(tl.int64)
        value = tl.load(grad + place * row_stride + column * column_stride, mask=inside, other=0.0)
        total += value.to(sums.dtype.element_ty)
    for chunk in range(first_chunk, last_chunk):
        total += tl.load(sums + chunk * columns + column, mask=inside, other=0.0)
    for at in range(tail, end):
        place = tl.load(order + at).to(tl.int64)
        value = tl.load(grad + place * row_stride + column * column_stride, mask=inside, other=0.0)
        total += value.to(sums.dtype.element_ty)
    if BY_COUNT:
        total = total / tl.maximum(number, 1).to(sums.dtype.element_ty)
    tl.store(out + row * columns + column, total.to(out.dtype.element_ty), mask=inside)


def _check(indices: torch.Tensor, rows: int) -> None:
    """On memory that the host can read, an index outside the table is an IndexError, as native's.

    Raises:
        IndexError: names the index and the range.
    """
    if interpreted(indices.device) and indices.numel():
        low, high = (int(v) for v in torch.aminmax(indices))
        if low < 0 or high >= rows:
            raise IndexError(f"embedding: index {low if low < 0 else high} is out of range for a table of {rows} rows")


def embedding(
    weight: torch.Tensor, indices: torch.Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> torch.Tensor:
    """The rows of a table.

    Args:
        weight: (R, D), any strides, any dtype of 1, 2, 4 or 8 bytes.
        indices: int32 or int64, any shape and strides.
        padding_idx: of the backward. scale_grad_by_freq, sparse: likewise.
        scale_grad_by_freq: see padding_idx.
        sparse: see padding_idx.

    Returns:
        (*indices.shape, D), contiguous.

    Raises:
        IndexError: an index outside 0 to R - 1, where the host can read it; elsewhere a device-side assertion says so.
    """
    rows, columns = weight.shape
    _check(indices, rows)
    shape = (*indices.shape, columns)
    out = new_empty_strided(shape, row_major(shape), weight.dtype, weight.device)
    flat = indices.reshape(-1).contiguous()
    block = min(triton.next_power_of_2(max(columns, 1)), 2048 if not interpreted(weight.device) else 1 << 15)
    per = max(1, (4096 if not interpreted(weight.device) else 1 << 18) // block // 2)
    per = min(triton.next_power_of_2(per), triton.next_power_of_2(max(flat.numel(), 1)))
    blocks = triton.cdiv(columns, block)
    width = weight.dtype.itemsize
    launch(
        gather_kernel, (triton.cdiv(flat.numel(), per) * blocks,), words(out, width), words(weight, width), flat, rows, columns,
        *weight.stride(), flat.numel(), blocks, BLOCK=block, PER=per,
    )  # fmt: skip
    return out


def embedding_dense_backward(
    grad_output: torch.Tensor, indices: torch.Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> torch.Tensor:
    """The gradient of the table, deterministic.

    Args:
        grad_output: (*indices.shape, D), floating-point, any strides.
        indices: int32 or int64, any shape and strides.
        num_weights: R.
        padding_idx: the row whose gradient is zero; outside 0 to R - 1 there is none.
        scale_grad_by_freq: divide each row by how often its index occurs.

    Returns:
        (R, D), contiguous.

    Raises:
        IndexError: as :func:`embedding`.
    """
    _check(indices, num_weights)
    columns = grad_output.shape[-1]
    grad = grad_output.reshape(-1, columns)
    out = new_empty_strided((num_weights, columns), (columns, 1), grad.dtype, grad.device)
    count = indices.numel()
    wide = torch.float64 if grad.dtype is torch.float64 else torch.float32
    sorted_indices, order = torch.sort(indices.reshape(-1), stable=True)
    bounds = torch.zeros((2, num_weights), dtype=torch.int64, device=grad.device)
    block = 1024 if not interpreted(grad.device) else 1 << 14
    launch(
        row_bounds_kernel, (triton.cdiv(count, block),), bounds[0], bounds[1], sorted_indices, num_weights, count, BLOCK=block
    )
    block = min(triton.next_power_of_2(max(columns, 1)), 1024 if not interpreted(grad.device) else 1 << 15)
    blocks = triton.cdiv(columns, block)
    chunks = count // CHUNK
    sums = new_empty_strided((max(chunks, 1), columns), (columns, 1), wide, grad.device)
    launch(
        chunk_sums_kernel, (chunks * blocks,), sums, grad, order, sorted_indices, bounds[0], columns, *grad.stride(), count,
        blocks, CHUNK=CHUNK, BLOCK=block,
    )  # fmt: skip
    launch(
        row_sums_kernel, (num_weights * blocks,), out, grad, sums, order, bounds[0], bounds[1], columns, *grad.stride(), blocks,
        padding_idx, BY_COUNT=scale_grad_by_freq, CHUNK=CHUNK, BLOCK=block,
    )  # fmt: skip
    return out
