"""The strided copy engine that clone, copy_, contiguous and type_as share.

A copy is planned on the host, once per signature, and runs as one of two kernels:

* flat: both sides are one dense run. Bytes moved: each once in, once out. A copy without a cast moves the widest
  integer words that the sizes and addresses allow, so its dtype does not matter.
* tiled: of the dimensions left after collapsing some make tiles: one side starts with the destination's fastest, the other
  with the source's fastest if that is another one (a transpose: loads and stores both coalesce, the compiler turns the tile
  around in shared memory), else with one along which the source is broadcast (each source element is read once a tile), else
  with the next one (rows). A side that is short takes in the next dimension of its memory, so many small dimensions make
  whole tiles too. The others are resolved once a program. Bytes moved: each once in, once out.

Index width: 32 bits where the largest offset and the block after the last element fit, else 64.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from opgraft.memo import kept
from opgraft.routing import Features

from .copy_plan import Plan, divisors, interpreted_tiles, needs_64_bit, plan, tiles
from .geometry import like_strides, span
from .launch import Launch, block_size, interpreted
from .steps import Output, Steps

MAX_RANK = 8

#: dtypes that Triton loads, converts and stores itself.
CONVERTIBLE = {
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
}  # fmt: skip


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
def tile_copy_kernel(
    dst, src, p_size, q_size, dst_p, dst_q, src_p, src_q, p_tiles, q_tiles, dst_strides, src_strides, divisors,
    RANK: tl.constexpr, ONE_P: tl.constexpr, ONE_Q: tl.constexpr, BOOL: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_Q: tl.constexpr,
):  # fmt: skip
    """A (BLOCK_P, BLOCK_Q) tile over two dimensions, at one place of the RANK others; ONE_P, ONE_Q: the source's stride there
    is 0, so one element serves the whole tile."""
    program = tl.program_id(0)
    if WIDE:
        program = program.to(tl.int64)
    outer = program // (p_tiles * q_tiles)
    tile = program % (p_tiles * q_tiles)
    dst_start, src_start = offsets_of(outer, divisors, dst_strides, src_strides, RANK, WIDE)
    p = tile // q_tiles * BLOCK_P + tl.arange(0, BLOCK_P)
    q = tile % q_tiles * BLOCK_Q + tl.arange(0, BLOCK_Q)
    if ONE_P:
        from_p = tl.zeros([1], p.dtype)
    else:
        from_p = p
    if ONE_Q:
        from_q = tl.zeros([1], q.dtype)
    else:
        from_q = q
    inside = (from_p < p_size)[:, None] & (from_q < q_size)[None, :]
    value = tl.load(src + src_start + from_p[:, None] * src_p + from_q[None, :] * src_q, mask=inside)
    value = tl.broadcast_to(convert(value, dst.dtype.element_ty, BOOL), [BLOCK_P, BLOCK_Q])
    inside = (p < p_size)[:, None] & (q < q_size)[None, :]
    tl.store(dst + dst_start + p[:, None] * dst_p + q[None, :] * dst_q, value, mask=inside)


@triton.jit
def grouped_copy_kernel(
    dst, src, p_size, q_size, p_tiles, q_tiles, p_dst, p_src, p_divisors, q_dst, q_src, q_divisors, dst_strides, src_strides, divisors,
    RANK_P: tl.constexpr, RANK_Q: tl.constexpr, RANK: tl.constexpr, TURNED: tl.constexpr, BOOL: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_Q: tl.constexpr,
):  # fmt: skip
    """The same where a side of the tile is a group of dimensions. TURNED: loads run along p, stores along q, else both along q.

    The tile is one row of elements, not a matrix: offsets of a group are no run that the compiler could see, and without one
    Triton 3.6 runs along a matrix's first dimension, 3.9 along its last.
    """
    program = tl.program_id(0)
    if WIDE:
        program = program.to(tl.int64)
    outer = program // (p_tiles * q_tiles)
    tile = program % (p_tiles * q_tiles)
    dst_start, src_start = offsets_of(outer, divisors, dst_strides, src_strides, RANK, WIDE)
    place = tl.arange(0, BLOCK_P * BLOCK_Q)
    along_q = place // BLOCK_Q, place % BLOCK_Q
    if TURNED:
        to_load = place % BLOCK_P, place // BLOCK_P
    else:
        to_load = along_q
    first_p, first_q = tile // q_tiles * BLOCK_P, tile % q_tiles * BLOCK_Q
    p, q = first_p + to_load[0], first_q + to_load[1]
    _, src_p = offsets_of(p, p_divisors, p_dst, p_src, RANK_P, WIDE)
    _, src_q = offsets_of(q, q_divisors, q_dst, q_src, RANK_Q, WIDE)
    value = tl.load(src + src_start + src_p + src_q, mask=(p < p_size) & (q < q_size))
    value = convert(value, dst.dtype.element_ty, BOOL)
    if TURNED:
        value = tl.reshape(tl.trans(tl.reshape(value, [BLOCK_Q, BLOCK_P])), [BLOCK_P * BLOCK_Q])
    p, q = first_p + along_q[0], first_q + along_q[1]
    dst_p, _ = offsets_of(p, p_divisors, p_dst, p_src, RANK_P, WIDE)
    dst_q, _ = offsets_of(q, q_divisors, q_dst, q_src, RANK_Q, WIDE)
    tl.store(dst + dst_start + dst_p + dst_q, value, mask=(p < p_size) & (q < q_size))


@triton.jit
def offsets_of(linear, divisors, first_strides, second_strides, RANK: tl.constexpr, WIDE: tl.constexpr):
    """Offsets of the elements with these row-major indexes in two tensors of RANK dimensions, outermost first.

    ``divisors`` are those of :func:`opgraft.kernels.copy_plan.divisors`: a division by a size is a multiplication and a shift, since
    the chip's own takes 20 instructions; 64-bit indexes (WIDE) are divided as they are.
    """
    rest = linear
    first = linear * 0
    second = linear * 0
    for back in tl.static_range(RANK):
        index = rest
        if back < RANK - 1:  # a lone dimension stays one run for the compiler
            size = divisors[3 * (RANK - 1 - back)]
            if WIDE:
                rest = index // size
            else:
                multiplier = divisors[3 * (RANK - 1 - back) + 1].to(tl.uint32, bitcast=True)
                rest = (tl.umulhi(index.to(tl.uint32), multiplier) >> divisors[3 * (RANK - 1 - back) + 2]).to(tl.int32)
            index -= rest * size
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


def features(dtype: torch.dtype, src: torch.Tensor, dst_shape, dst_strides) -> Features:
    """What the routing table of the copy engine knows of a copy: which of its kernels runs (dense, broadcast and
    permuted tiles, grouped tiles), and the elements' widths in bytes; size is the bytes written."""
    to, frm = dtype.itemsize, src.dtype.itemsize
    steps = plan(dst_shape, dst_strides, src.expand(dst_shape).stride())
    if steps.flat or 0 in steps.sizes:
        route = "dense"
    elif tiles(steps, min(max(to, frm), 8)).grouped:
        route = "grouped"
    else:
        route = "broadcast" if 0 in steps.src_strides else "permuted"
    cast = "" if dtype == src.dtype else ", cast"
    return Features(route + cast, None, (("from", frm), ("to", to)), math.prod(dst_shape) * to)


class Geometry(NamedTuple):
    """What a copy depends on of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: torch.device


def between(dst: torch.Tensor, src: torch.Tensor) -> Steps:
    """The copy of tensors like ``src`` (argument 1 of the call), expanded to ``dst``'s shape, into tensors like ``dst`` (argument 0).

    Args:
        dst: no two elements of it may share memory.
        src: on the same device, of a shape that broadcasts to ``dst``'s.

    Both as :func:`unsupported` allows, without overlap between them. Bits are moved unchanged where the dtypes are equal.
    """
    to = Geometry(dst.dtype, dst.shape, dst.stride(), dst.device)
    return Steps(dst.device, (), _launches(to, src, dst.data_ptr() | src.data_ptr(), (0, 1)), result=0)


def into_new(src: torch.Tensor, dtype: torch.dtype, memory_format: torch.memory_format) -> Steps:
    """The copy of tensors like ``src`` (the call's first argument) into new memory, as ``dtype``, with the strides that native gives for
    the memory format."""
    dst = Geometry(dtype, tuple(src.shape), like_strides(src, memory_format), src.device)
    out = Output(dst.shape, dst.strides, dtype, src.device)
    return Steps(src.device, (out,), _launches(dst, src, src.data_ptr(), (-1, 0)))


def _launches(dst: Geometry, src: torch.Tensor, addresses: int, operands: tuple[int, int]) -> tuple:
    """The launch of a copy with its operands, none for an empty one; ``addresses`` has the low bits of both."""
    if 0 in dst.shape:
        return ()
    strides = src.stride() if src.shape == dst.shape else src.expand(dst.shape).stride()
    key = dst, Geometry(src.dtype, tuple(dst.shape), strides, src.device), addresses & 7
    return ((kept(_copies, key, _launch, *key), operands),)


_copies: dict[Hashable, Launch] = {}


def copy(dst: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    """Copy ``src`` into ``dst``, broadcasting and converting the dtype, as :func:`between` says; returns ``dst``."""
    return between(dst, src)(dst, src)


def _launch(dst: Geometry, src: Geometry, aligned: int) -> Launch:
    """The launch for a copy; ``aligned`` has the low bits of both addresses."""
    steps = plan(dst.shape, dst.strides, src.strides)
    if len(steps.sizes) > MAX_RANK:
        raise ValueError(f"copy of rank {len(steps.sizes)} after collapsing; the engine takes {MAX_RANK}")
    boolean = dst.dtype is torch.bool and dst.dtype != src.dtype
    words: tuple[int | None, ...] = (1 if boolean else None, 1 if src.dtype is torch.bool else None)
    if dst.dtype == src.dtype:
        steps, width = _as_words(dst.dtype.itemsize, steps, aligned)
        words = (width, width)
    numel = math.prod(steps.sizes)
    block, warps = block_size(numel, dst.device), 4
    if steps.flat and dst.dtype == src.dtype and not interpreted(dst.device):
        block, warps = 4096 // width, 8 if numel > 1 << 22 else 4  # 16 bytes a thread; 32 where few programs run
    if steps.flat:
        grid, wide = (triton.cdiv(numel, block),), needs_64_bit(steps, numel + block)
        return Launch(flat_copy_kernel, grid, numel, words=words, BOOL=boolean, WIDE=wide, BLOCK=block, num_warps=warps)
    width = max(words[0] or dst.dtype.itemsize, words[1] or src.dtype.itemsize)
    chosen = interpreted_tiles(steps) if interpreted(dst.device) else tiles(steps, width)
    p, q = steps.only(chosen.p), steps.only(chosen.q)
    outer = steps.only(tuple(i for i in range(len(steps.sizes)) if i not in chosen.p + chosen.q))
    size_p, size_q = math.prod(p.sizes), math.prod(q.sizes)
    tiles_p, tiles_q = triton.cdiv(size_p, chosen.block_p), triton.cdiv(size_q, chosen.block_q)
    grid = (tiles_p * tiles_q * math.prod(outer.sizes),)
    wide = needs_64_bit(steps, numel + chosen.block_p * chosen.block_q)
    around = tuple(values or (1,) for values in (outer.dst_strides, outer.src_strides, divisors(outer.sizes)))
    meta = dict(
        RANK=len(outer.sizes), BOOL=boolean, WIDE=wide, BLOCK_P=chosen.block_p, BLOCK_Q=chosen.block_q, num_warps=chosen.warps
    )
    if not chosen.grouped:
        to_p, from_p = (p.dst_strides[0], p.src_strides[0]) if p.sizes else (0, 0)
        (to_q,), (from_q,) = q.dst_strides, q.src_strides
        return Launch(
            tile_copy_kernel, grid, size_p, size_q, to_p, to_q, from_p, from_q, tiles_p, tiles_q, *around, words=words,
            ONE_P=from_p == 0, ONE_Q=from_q == 0, **meta,
        )  # fmt: skip
    sides = (p.dst_strides, p.src_strides, divisors(p.sizes), q.dst_strides, q.src_strides, divisors(q.sizes))
    return Launch(
        grouped_copy_kernel, grid, size_p, size_q, tiles_p, tiles_q, *(values or (1,) for values in sides), *around, words=words,
        RANK_P=len(p.sizes), RANK_Q=len(q.sizes), TURNED=chosen.turned, **meta,
    )  # fmt: skip


def between_devices(one: torch.Tensor, other: torch.Tensor) -> str:
    """Why the engine does not take a copy between these two, which lie on different devices."""
    if one.device.type == other.device.type:
        return "between device indexes"
    return f"between {one.device.type} and {other.device.type}"


def broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Whether a tensor of ``shape`` can be expanded to the shape ``to``."""
    return len(shape) <= len(to) and all(n in (1, m) for n, m in zip(reversed(shape), reversed(to)))


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements of a tensor certainly share memory, by PyTorch's own quick test."""
    return torch._debug_has_internal_overlap(tensor) == 1


def may_overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the byte ranges of two tensors meet, in one storage or in two over the same memory."""
    (low1, high1), (low2, high2) = _byte_range(one), _byte_range(other)
    return low1 < high2 and low2 < high1


def _byte_range(tensor: torch.Tensor) -> tuple[int, int]:
    if not tensor.numel():
        return 0, 0
    low = tensor.data_ptr()
    return low, low + span(tensor.shape, tensor.stride()) * tensor.dtype.itemsize


def _as_words(size: int, steps: Plan, aligned: int) -> tuple[Plan, int]:
    """The same copy in integer words, and their width: as wide as possible for a dense run, else of the element's own size."""
    sizes, d, s = steps
    if steps.flat:
        nbytes = sizes[0] * size
        width = next(w for w in (8, 4, 2, 1) if not (nbytes | aligned) % w)
        return Plan((nbytes // width,), (1,), (1,)), width
    if size == 16:  # complex128: two words an element
        return Plan((*sizes, 2), (*(2 * n for n in d), 1), (*(2 * n for n in s), 1)), 8
    return steps, size
