"""The strided copy engine that clone, copy_, contiguous and type_as share.

A copy is planned on the host, once per signature, and runs as one of three kernels:

* flat: both sides are one dense run. Bytes moved: each once in, once out. A copy without a cast moves the widest
  integer words that the sizes and addresses allow, so its dtype does not matter.
* tiled: two of the dimensions left after collapsing make tiles: the destination's fastest, and the source's fastest if
  that is another one (a transpose: loads and stores both coalesce, the compiler turns the tile around in shared memory),
  else one along which the source is broadcast (each source element is read once a tile), else the next one (rows).
  The others are resolved once a program. Bytes moved: each once in, once out.
* strided: where such a tile would be tiny, each element's offsets are computed from its linear index in the destination's
  order, so stores coalesce.

Index width: 32 bits where the largest offset and the block after the last element fit, else 64.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from opgraft.memo import kept
from opgraft.routing import Features

from .geometry import span
from .launch import Launch, block_size, interpreted

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
def tile_copy_kernel(
    dst, src, p_size, q_size, dst_p, dst_q, src_p, src_q, p_tiles, q_tiles, sizes, dst_strides, src_strides,
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
    dst_start, src_start = offsets_of(outer, sizes, dst_strides, src_strides, RANK)
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


def features(dtype: torch.dtype, src: torch.Tensor, dst_shape, dst_strides) -> Features:
    """What the routing table of the copy engine knows of a copy: dense; broadcasting; permuted, apart where the tile's two
    dimensions are small, so that many programs move little each. And the elements' widths in bytes; size is the bytes written."""
    to, frm = dtype.itemsize, src.dtype.itemsize
    steps = plan(dst_shape, dst_strides, src.expand(dst_shape).stride())
    p, q = _tile_dimensions(steps)
    if steps.flat:
        route = "dense"
    elif 0 in steps.src_strides:
        route = "broadcast"
    else:
        area = steps.sizes[q] * (1 if p is None else steps.sizes[p])
        route = "permuted" if area >= SMALL_AREA else "permuted in small pieces"
    cast = "" if dtype == src.dtype else ", cast"
    return Features(route + cast, None, (("from", frm), ("to", to)), math.prod(dst_shape) * to)


#: Elements of the two dimensions that tiles span, below which routing looks at a copy apart.
SMALL_AREA = 2048


def copy(dst: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    """Copy ``src`` into ``dst``, converting the dtype; returns ``dst``.

    Args:
        dst: no two elements of it may share memory.
        src: on the same device, of the same shape (expand it first to broadcast).

    Both as :func:`unsupported` allows, without overlap between them. Bits are moved unchanged where the dtypes are equal.
    """
    if dst.numel():
        aligned = (dst.data_ptr() | src.data_ptr()) & 7
        key = (dst.dtype, src.dtype, dst.shape, dst.stride(), src.stride(), aligned, dst.device)
        kept(_launches, key, _launch, dst, src, aligned)(dst, src)
    return dst


_launches: dict = {}


def _launch(dst: torch.Tensor, src: torch.Tensor, aligned: int) -> Launch:
    """The launch for a copy of this signature; ``aligned`` has the low bits of both addresses."""
    steps = plan(dst.shape, dst.stride(), src.stride())
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
        block, warps = 4096 // width, 8  # 16 bytes a thread
    wide = needs_64_bit(steps, numel + block)
    if steps.flat:
        grid = (triton.cdiv(numel, block),)
        return Launch(flat_copy_kernel, grid, numel, words=words, BOOL=boolean, WIDE=wide, BLOCK=block, num_warps=warps)
    width = max(words[0] or dst.dtype.itemsize, words[1] or src.dtype.itemsize)
    tiles = _interpreted_tiles(steps) if interpreted(dst.device) else _tiles(steps, width)
    if tiles is None:
        grid = (triton.cdiv(numel, block),)
        rank = len(steps.sizes)
        return Launch(strided_copy_kernel, grid, numel, *steps, words=words, RANK=rank, BOOL=boolean, WIDE=wide, BLOCK=block)
    p, q, block_p, block_q, warps = tiles
    sizes, to, frm = steps
    outer = [i for i in range(len(sizes)) if i not in (p, q)]
    size_p, to_p, from_p = (1, 0, 0) if p is None else (sizes[p], to[p], frm[p])
    tiles_p, tiles_q = triton.cdiv(size_p, block_p), triton.cdiv(sizes[q], block_q)
    return Launch(
        tile_copy_kernel, (tiles_p * tiles_q * math.prod(sizes[i] for i in outer),), size_p, sizes[q], to_p, to[q], from_p, frm[q],
        tiles_p, tiles_q, *(tuple(values[i] for i in outer) or (1,) for values in steps), words=words, RANK=len(outer),
        ONE_P=from_p == 0, ONE_Q=frm[q] == 0, BOOL=boolean, WIDE=wide, BLOCK_P=block_p, BLOCK_Q=block_q, num_warps=warps,
    )  # fmt: skip


def _tile_dimensions(steps: Plan) -> tuple[int | None, int]:
    """The dimensions that tiles span: (the source's fastest or a broadcast or the next one, the destination's fastest)."""
    q = len(steps.sizes) - 1
    strides = steps.src_strides
    fastest = min((i for i, s in enumerate(strides) if s), key=lambda i: (strides[i], i != q), default=q)
    if fastest != q:
        return fastest, q
    broadcast = [i for i in range(q) if strides[i] == 0]
    return (broadcast[-1] if broadcast else q - 1 if q else None), q


#: Tiles of a transpose by the width of an element in bytes: (along the source's fastest, along the destination's, warps).
TRANSPOSING = {1: (128, 64, 4), 2: (128, 128, 8), 4: (64, 64, 8), 8: (32, 32, 8)}
#: The same where 128 does not divide the sizes, and where rows do not start at multiples of 16 bytes.
RAGGED, UNALIGNED = (64, 64, 8), (32, 128, 4)
ROW_TILE_BYTES, BROADCAST_ROWS, LEAST_TILE = 2048, 8, 256


def _tiles(steps: Plan, width: int) -> tuple[int | None, int, int, int, int] | None:
    """(p, q, block p, block q, warps) for a compiled kernel, measured on an H200 (bench/NOTES.md); None if tiles would be tiny."""
    p, q = _tile_dimensions(steps)
    size_p, size_q = 1 if p is None else steps.sizes[p], steps.sizes[q]
    from_p, from_q = 0 if p is None else steps.src_strides[p], steps.src_strides[q]
    most_p, most_q = triton.next_power_of_2(size_p), triton.next_power_of_2(size_q)
    if p is not None and 0 < from_p < from_q:
        block_p, block_q, warps = TRANSPOSING[width]
        if width == 2 and (size_p % 128 or size_q % 128):
            block_p, block_q, warps = RAGGED
        if width <= 2 and (from_q * width % 16 or steps.dst_strides[p] * width % 16):
            block_p, block_q, warps = UNALIGNED
    elif p is not None and from_p == 0:
        block_p, block_q, warps = BROADCAST_ROWS, 1024 // width, 8
    elif from_q == 0:
        block_p, block_q, warps = 1, 16384 // width, 8
    else:
        block_q, warps = min(ROW_TILE_BYTES // width, most_q), 4
        block_p = ROW_TILE_BYTES // width // block_q
    area = block_p * block_q
    block_p, block_q = min(block_p, most_p), min(block_q, most_q)
    block_p = min(most_p, max(block_p, area // block_q))
    block_q = min(most_q, max(block_q, area // block_p))
    if block_p * block_q < LEAST_TILE and len(steps.sizes) > 2:
        return None
    return p, q, block_p, block_q, warps


def _interpreted_tiles(steps: Plan) -> tuple[int | None, int, int, int, int] | None:
    """The same for the interpreter, which pays about a millisecond a program: few tiles, but with tails."""
    p, q = _tile_dimensions(steps)
    size_p, size_q = 1 if p is None else steps.sizes[p], steps.sizes[q]
    outer = math.prod(steps.sizes) // (size_p * size_q)
    most_p, most_q = triton.next_power_of_2(size_p), triton.next_power_of_2(size_q)
    block_p, block_q = min(32, most_p), min(32, most_q)
    while outer * triton.cdiv(size_p, block_p) * triton.cdiv(size_q, block_q) > 64:
        if (block_p, block_q) == (most_p, most_q):
            return None
        block_p, block_q = min(2 * block_p, most_p), min(2 * block_q, most_q)
    return p, q, block_p, block_q, 4


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
