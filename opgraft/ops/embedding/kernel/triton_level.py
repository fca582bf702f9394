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

from opgraft.kernels import Launch, Output, Steps, interpreted, new_empty_strided, prepared
from opgraft.kernels.geometry import row_major
from opgraft.memo import kept

CHUNK = 32
GATHER_BYTES, BACKWARD_BLOCK, WARPS = 2048, 2048, 2  # measured on an H200 (docs/h200-notes.md)


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


@triton.jit(debug=True)
def narrow_kernel(out, indices, rows, count, BLOCK: tl.constexpr):
    """out = indices in a narrower dtype; -1 for one out of range, which would wrap into it."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    index = tl.load(indices + places, mask=places < count, other=0).to(tl.int64)
    valid = (index >= 0) & (index < rows)
    tl.device_assert(valid, "embedding: an index is out of the table's range")
    tl.store(out + places, tl.where(valid, index, -1).to(out.dtype.element_ty), mask=places < count)


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
    sums, grad, order, indices, columns, row_stride, column_stride, blocks, CHUNK: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
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


@prepared
def embedding(
    weight: torch.Tensor, indices: torch.Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
):
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
    rows, shape = weight.shape[0], (*indices.shape, weight.shape[1])
    key = ("forward", weight.dtype, weight.shape, weight.stride(), indices.dtype, indices.numel(), weight.device)
    launch = kept(_launches, key, _gather_launch, weight, indices.numel())
    out = Output(shape, row_major(shape), weight.dtype, weight.device)
    if indices.is_contiguous() and not interpreted(weight.device):
        return Steps(weight.device, (out,), ((launch, (-1, 0, 1)),))

    def run(weight: torch.Tensor, indices: torch.Tensor, *_) -> torch.Tensor:
        _check(indices, rows)
        result = out.allocate()
        launch(result, weight, indices.reshape(-1).contiguous())
        return result

    return run


_launches: dict = {}


def _gather_launch(weight: torch.Tensor, count: int) -> Launch:
    rows, columns = weight.shape
    width, here = weight.dtype.itemsize, interpreted(weight.device)
    most = 1 << 17 if here else GATHER_BYTES // width  # elements a program
    block = min(triton.next_power_of_2(columns), 1 << 15 if here else most)
    per = min(max(1, most // block), triton.next_power_of_2(count))
    blocks = triton.cdiv(columns, block)
    return Launch(
        gather_kernel, (triton.cdiv(count, per) * blocks,), rows, columns, *weight.stride(), count, blocks, words=(width, width),
        BLOCK=block, PER=per, num_warps=WARPS,
    )  # fmt: skip


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
    columns, count = grad_output.shape[-1], indices.numel()
    grad = grad_output.reshape(-1, columns)
    out = new_empty_strided((num_weights, columns), (columns, 1), grad.dtype, grad.device)
    wide = torch.float64 if grad.dtype is torch.float64 else torch.float32
    sorted_indices, order = torch.sort(_narrowed(indices.reshape(-1).contiguous(), num_weights), stable=True)
    starts, ends = torch.zeros((2, num_weights), dtype=torch.int64, device=grad.device).unbind()
    sums = new_empty_strided((max(count // CHUNK, 1), columns), (columns, 1), wide, grad.device)
    key = (
        "backward",
        grad.dtype,
        grad.shape,
        grad.stride(),
        sorted_indices.dtype,
        num_weights,
        padding_idx,
        scale_grad_by_freq,
        grad.device,
    )
    bounds, chunks, rows = kept(_launches, key, _backward_launches, grad, num_weights, padding_idx, scale_grad_by_freq)
    bounds(starts, ends, sorted_indices)
    chunks(sums, grad, order, sorted_indices)
    rows(out, grad, sums, order, starts, ends)
    return out


def _narrowed(indices: torch.Tensor, rows: int) -> torch.Tensor:
    """The indices in the narrowest dtype that holds them: a radix sort makes a pass for each byte."""
    dtype = next((t for t in (torch.int16, torch.int32) if rows <= torch.iinfo(t).max), torch.int64)
    if dtype.itemsize >= indices.dtype.itemsize:
        return indices
    out = new_empty_strided(indices.shape, (1,), dtype, indices.device)
    block = 1 << 14 if interpreted(indices.device) else 1024
    key = ("narrow", dtype, indices.dtype, indices.numel(), rows, indices.device)
    kept(_launches, key, _narrow_launch, indices.numel(), rows, block)(out, indices)
    return out


def _narrow_launch(count: int, rows: int, block: int) -> Launch:
    return Launch(narrow_kernel, (triton.cdiv(count, block),), rows, count, BLOCK=block)


def _backward_launches(grad: torch.Tensor, num_weights: int, padding_idx: int, by_count: bool) -> tuple[Launch, Launch, Launch]:
    count, columns = grad.shape
    here = interpreted(grad.device)
    places = 1 << 14 if here else 1024
    block = min(triton.next_power_of_2(max(columns, 1)), 1 << 15 if here else BACKWARD_BLOCK)
    blocks = triton.cdiv(columns, block)
    return (
        Launch(row_bounds_kernel, (triton.cdiv(count, places),), num_weights, count, BLOCK=places),
        Launch(chunk_sums_kernel, (count // CHUNK * blocks,), columns, *grad.stride(), blocks, CHUNK=CHUNK, BLOCK=block),
        Launch(
            row_sums_kernel, (num_weights * blocks,), columns, *grad.stride(), blocks, padding_idx, BY_COUNT=by_count, CHUNK=CHUNK,
            BLOCK=block, num_warps=WARPS,
        ),
    )  # fmt: skip
