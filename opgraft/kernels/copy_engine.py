"""The strided copy engine that clone, copy_, contiguous and type_as share.

A copy is planned on the host and runs as one of two kernels:

* flat: both sides are one dense run. Bytes moved: each once in, once out. A copy without a cast moves the widest
  integer words that the sizes and addresses allow, so its dtype does not matter.
* strided: up to :data:`MAX_RANK` dimensions after collapsing, each element's offsets computed from its linear
  index in the destination's order, so stores coalesce; stride 0 in the source broadcasts.

Index width: 32 bits where the largest offset and the block after the last element fit, else 64.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from .geometry import span
from .launch import block_size, launch, words

MAX_RANK = 8

#: dtypes that Triton loads, converts and stores itself.
CONVERTIBLE = {
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
}  # fmt: skip


class Plan(NamedTuple):
    """A copy after collapsing: sizes with their strides in elements, outermost first."""

    sizes: tuple[int, ...]
    dst_strides: tuple[int, ...]
    src_strides: tuple[int, ...]

    @property
    def flat(self) -> bool:
        """Whether both sides are one dense run."""
        return len(self.sizes) == 1 and self.dst_strides == (1,) and self.src_strides == (1,)


def plan(sizes, dst_strides, src_strides, row_major: bool = False) -> Plan:
    """Drop size-1 dimensions, order the rest by the destination's stride, and merge what is one run on both sides.

    Args:
        sizes: the common shape of both sides.
        dst_strides: the destination's strides, in elements.
        src_strides: the source's strides, in elements; 0 broadcasts.
        row_major: keep the order of the dimensions, for kernels whose result depends on an element's index.
    """
    dims = [(d, s, n) for n, d, s in zip(sizes, dst_strides, src_strides) if n != 1]
    if not row_major:
        dims.sort(key=lambda dim: (dim[0], dim[1]), reverse=True)
    merged: list[tuple[int, int, int]] = []
    for d, s, n in dims:
        if merged and merged[-1][0] == d * n and merged[-1][1] == s * n:
            merged[-1] = (d, s, n * merged[-1][2])
        else:
            merged.append((d, s, n))
    if not merged:
        merged = [(1, 1, 1)]
    return Plan(tuple(m[2] for m in merged), tuple(m[0] for m in merged), tuple(m[1] for m in merged))


@triton.jit
def flat_copy_kernel(dst, src, numel, BOOL: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """dst[i] = src[i] over dense runs; one program moves BLOCK elements."""
    block = tl.program_id(0)
    if WIDE:
        block = block.to(tl.int64)
    offsets = block * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < numel
    value = tl.load(src + offsets, mask=mask)
    tl.store(dst + offsets, convert(value, dst.dtype.element_ty, BOOL), mask=mask)


@triton.jit
def strided_copy_kernel(
    dst, src, numel, sizes, dst_strides, src_strides,
    RANK: tl.constexpr, BOOL: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dst[index] = src[index] over RANK dimensions, outermost first."""
    block = tl.program_id(0)
    if WIDE:
        block = block.to(tl.int64)
    linear = block * BLOCK + tl.arange(0, BLOCK)
    mask = linear < numel
    dst_offsets, src_offsets = offsets_of(linear, sizes, dst_strides, src_strides, RANK)
    value = tl.load(src + src_offsets, mask=mask)
    tl.store(dst + dst_offsets, convert(value, dst.dtype.element_ty, BOOL), mask=mask)


@triton.jit
def offsets_of(linear, sizes, first_strides, second_strides, RANK: tl.constexpr):
    """Offsets of the elements with these row-major indexes in two tensors of RANK dimensions, outermost first."""
    rest = linear
    first = linear * 0
    second = linear * 0
    for back in tl.static_range(RANK):
        index = rest % sizes[RANK - 1 - back]
        rest = rest // sizes[RANK - 1 - back]
        first += index * first_strides[RANK - 1 - back]
        second += index * second_strides[RANK - 1 - back]
    return first, second


@triton.jit
def convert(value, to: tl.constexpr, BOOL: tl.constexpr):
    """PyTorch's conversion between real dtypes.

    To bool: whether the value is not zero (so NaN and 0.5 are true). Floating point to integer truncates; it goes
    through int64, so that narrow and unsigned results wrap as they do in native PyTorch. To fp16 and bf16 it goes
    through fp32, as c10::convert does, and rounds to nearest even.
    """
    if BOOL:
        if value.dtype.is_bf16():
            value = value.to(tl.float32)  # the interpreter compares bf16 by its bits, where -0.0 is not 0
        result = value != 0
    elif value.dtype.is_floating() and to.is_int():
        result = value.to(tl.int64).to(to)
    elif to == tl.float16 or to == tl.bfloat16:
        result = value.to(tl.float32).to(to)
    else:
        result = value.to(to)
    return result


def unsupported(dst_dtype: torch.dtype, src: torch.Tensor) -> str | None:
    """Why the engine does not take a copy of ``src`` to ``dst_dtype``; None if it does. Reads metadata only."""
    if src.is_conj() or src.is_neg():
        return "conj or neg bit set"
    if src._is_zerotensor():
        return "zero tensor, which has no memory"
    if src.layout is not torch.strided or src.is_quantized:
        return f"layout {src.layout}, quantized {src.is_quantized}"
    if dst_dtype != src.dtype and not {dst_dtype, src.dtype} <= CONVERTIBLE:
        return f"cast {src.dtype} to {dst_dtype}"
    if src.dim() > MAX_RANK:
        collapsed = len(plan(src.shape, src.stride(), src.stride()).sizes)
        if collapsed > MAX_RANK:
            return f"rank over {MAX_RANK} after collapsing"
    return None


def copy(dst: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    """Copy ``src`` into ``dst``, converting the dtype; returns ``dst``.

    Args:
        dst: no two elements of it may share memory.
        src: on the same device, of the same shape (expand it first to broadcast).

    Both as :func:`unsupported` allows, without overlap between them. Bits are moved unchanged where the dtypes are equal.
    """
    numel = dst.numel()
    if numel == 0:
        return dst
    steps = plan(dst.shape, dst.stride(), src.stride())
    if len(steps.sizes) > MAX_RANK:
        raise ValueError(f"copy of rank {len(steps.sizes)} after collapsing; the engine takes {MAX_RANK}")
    if dst.dtype == src.dtype:
        to, frm, steps, numel = _as_words(dst, src, steps, numel)
        boolean = False
    else:
        to, frm = dst, src
        boolean = dst.dtype is torch.bool
        if src.dtype is torch.bool:
            frm = words(src, 1)
        if boolean:
            to = words(dst, 1)
    block = block_size(numel, dst.device)
    grid = (triton.cdiv(numel, block),)
    wide = needs_64_bit(steps, numel + block)
    if steps.flat:
        launch(flat_copy_kernel, grid, to, frm, numel, BOOL=boolean, WIDE=wide, BLOCK=block)
    else:
        launch(strided_copy_kernel, grid, to, frm, numel, *steps, RANK=len(steps.sizes), BOOL=boolean, WIDE=wide, BLOCK=block)
    return dst


def needs_64_bit(steps: Plan, last: int) -> bool:
    """Whether an offset of the plan, or ``last`` (the highest linear index a program forms), does not fit 32 bits."""
    reach = [
        1 + sum((n - 1) * abs(s) for n, s in zip(steps.sizes, strides)) for strides in (steps.dst_strides, steps.src_strides)
    ]
    return max(last, *reach) >= 2**31


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements of a tensor certainly share memory, by PyTorch's own quick test."""
    return torch._debug_has_internal_overlap(tensor) == 1


def may_overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors lie in the same storage with byte ranges that meet."""
    if one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr():
        return False
    (low1, high1), (low2, high2) = _byte_range(one), _byte_range(other)
    return low1 < high2 and low2 < high1


def _byte_range(tensor: torch.Tensor) -> tuple[int, int]:
    if not tensor.numel():
        return 0, 0
    low = tensor.data_ptr()
    return low, low + span(tensor.shape, tensor.stride()) * tensor.dtype.itemsize


def _as_words(dst: torch.Tensor, src: torch.Tensor, steps: Plan, numel: int):
    """The same copy in integer words: as wide as possible for a dense run, else of the element's own width."""
    size = dst.dtype.itemsize
    if steps.flat:
        nbytes = numel * size
        width = next(w for w in (8, 4, 2, 1) if not (nbytes % w or dst.data_ptr() % w or src.data_ptr() % w))
        return words(dst, width), words(src, width), Plan((nbytes // width,), (1,), (1,)), nbytes // width
    if size == 16:  # complex128: two words an element
        sizes, d, s = steps
        steps = Plan((*sizes, 2), (*(2 * n for n in d), 1), (*(2 * n for n in s), 1))
        return words(dst, 8), words(src, 8), steps, 2 * numel
    return words(dst, size), words(src, size), steps, numel
