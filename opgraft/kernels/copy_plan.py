"""How a strided copy is planned on the host: which dimensions merge, which make tiles, how large tiles are."""

from __future__ import annotations

import math
from typing import NamedTuple

import triton


class Plan(NamedTuple):
    """A copy after collapsing: sizes with their strides in elements, outermost first in the destination's order."""

    sizes: tuple[int, ...]
    dst_strides: tuple[int, ...]
    src_strides: tuple[int, ...]

    @property
    def flat(self) -> bool:
        """Whether both sides are one dense run."""
        return len(self.sizes) == 1 and self.dst_strides == (1,) and self.src_strides == (1,)

    def only(self, dims: tuple[int, ...]) -> Plan:
        """The same of these dimensions."""
        return Plan(*(tuple(values[i] for i in dims) for values in self))


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


def needs_64_bit(steps: Plan, last: int) -> bool:
    """Whether an offset of the plan, or ``last`` (the highest linear index a program forms), does not fit 32 bits."""
    reach = [
        1 + sum((n - 1) * abs(s) for n, s in zip(steps.sizes, strides)) for strides in (steps.dst_strides, steps.src_strides)
    ]
    return max(last, *reach) >= 2**31


def divisors(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """For each size itself, and a multiplier (32 bits, as a signed number) and a shift by which an index n below 2³¹ is divided by it:
    the high 32 bits of n · multiplier, shifted.

    With 2^(l-1) < size ≤ 2^l the multiplier is 2^(31+l) / size, rounded up: too large by less than 2^l / size, so the quotient is
    too large by less than n · 2^l / size / 2^(31+l) < 1 / size, which never reaches the next integer.
    """
    found = []
    for size in sizes if 0 not in sizes else (1,) * len(sizes):  # nothing is divided where there are no elements
        power = (size - 1).bit_length()
        found += [size, -(-(1 << 31 + power) // size) - (1 << 32), power - 1]
    return tuple(found)


class Tiles(NamedTuple):
    """The tiles of a copy.

    Attributes:
        p, q: the dimensions that make the tile's two sides, each outermost first; the others are resolved once a program.
            ``q`` ends in the destination's fastest dimension, ``p`` in the source's fastest if that is another one.
        turned: whether it is, so that loads run along p and stores along q.
        block_p, block_q: elements of a tile along each.
        warps: of a program.
    """

    p: tuple[int, ...]
    q: tuple[int, ...]
    turned: bool
    block_p: int
    block_q: int
    warps: int

    @property
    def grouped(self) -> bool:
        """Whether a side is more than one dimension."""
        return max(len(self.p), len(self.q)) > 1


#: Tiles of a transpose by the width of an element in bytes: (along the source's fastest, along the destination's, warps),
#: measured on an H200 like what follows (docs/h200-notes.md).
TRANSPOSING = {1: (128, 64, 4), 2: (128, 128, 8), 4: (64, 64, 8), 8: (32, 32, 8)}
#: The same where 128 does not divide the sizes, and where rows do not start at multiples of 16 bytes.
RAGGED, UNALIGNED = (64, 64, 8), (32, 128, 4)
ROW_TILE_BYTES, ROW_BYTES, BROADCAST_ROWS = 2048, 128, 8
#: Elements below which a fastest dimension is no run worth coalescing by itself.
SHORT = 8
#: A side takes in one more dimension while it is shorter than its block, or while its tail wastes more than this.
WASTE = 1.2
#: Programs that a small copy is cut into, while its tiles have more than this many elements.
PROGRAMS, LEAST_TILE = 256, 512


def tiles(steps: Plan, width: int) -> Tiles:
    """The tiles for a compiled kernel; ``width`` in bytes of an element of the wider side."""
    sizes, to, frm = steps
    last, numel = len(sizes) - 1, math.prod(sizes)
    order = sorted((i for i, s in enumerate(frm) if s), key=lambda i: (frm[i], -i))
    broadcast = [i for i in range(last) if frm[i] == 0]
    fastest = order[0] if order else last
    p, q = [fastest], [last]
    turned, grows = fastest != last, True
    if turned and sizes[last] < SHORT and fastest == last - 1:  # they are one run of the destination: rows
        q, turned = [fastest, last], False
    elif turned and sizes[fastest] < SHORT and order[1:2] == [last]:  # and here of the source
        turned = False
    if frm[last] == 0 and sizes[last] * width >= 1024:
        p, turned, grows = [], False, False
        block_p, block_q, warps = 1, 16384 // width, 8
    elif turned:
        block_p, block_q, warps = TRANSPOSING[width]
        if width == 2 and (sizes[fastest] % 128 or sizes[last] % 128):
            block_p, block_q, warps = RAGGED
        if width <= 2 and (frm[last] * width % 16 or to[fastest] * width % 16):
            block_p, block_q, warps = UNALIGNED
    elif broadcast and sizes[last] * width >= ROW_BYTES:
        p, grows = broadcast[-1:], False
        block_p, block_q, warps = BROADCAST_ROWS, 1024 // width, 8
    else:
        while _size(sizes, q) * width < ROW_BYTES and q[0] > 0 and q[0] - 1 != fastest:
            q.insert(0, q[0] - 1)
        p = [i for i in order if i not in q][:1]
        block_q, warps = ROW_TILE_BYTES // width, 4
        if p:
            block_q = min(block_q, max(ROW_BYTES // width, triton.next_power_of_2(_size(sizes, q))))
        block_p = ROW_TILE_BYTES // width // block_q
    while block_p * block_q > LEAST_TILE and numel < PROGRAMS * block_p * block_q:
        block_p, block_q = (block_p // 2, block_q) if block_p > block_q else (block_p, block_q // 2)
    if grows:
        _grow(sizes, p, q, order, block_p, block_q)
    most_p, most_q = (triton.next_power_of_2(_size(sizes, side)) for side in (p, q))
    area = block_p * block_q
    block_p, block_q = min(block_p, most_p), min(block_q, most_q)
    block_p = min(most_p, max(block_p, area // block_q))
    block_q = min(most_q, max(block_q, area // block_p))
    return Tiles(tuple(p), tuple(q), turned, block_p, block_q, min(warps, max(1, block_p * block_q // 256)))


def _size(sizes, dims) -> int:
    return math.prod(sizes[i] for i in dims)


def _grow(sizes, p: list[int], q: list[int], order: list[int], block_p: int, block_q: int) -> None:
    """Take dimensions into the tile's sides, each side the next in its own memory's order, until both fill their blocks."""
    while True:
        short = []
        for side, block, candidates in ((q, block_q, range(len(sizes) - 1, -1, -1)), (p, block_p, order)):
            size = _size(sizes, side)
            left = [i for i in candidates if i not in p and i not in q]
            if side and left and (size < block or triton.cdiv(size, block) * block > WASTE * size):
                short.append((size / block, side, left[0]))
        if not short:
            return
        _, side, dim = min(short, key=lambda s: s[0])
        side.insert(0, dim)


def interpreted_tiles(steps: Plan) -> Tiles:
    """The same for the interpreter, which pays about a millisecond a program: few tiles, but with tails."""
    chosen = tiles(steps, 8)
    size_p, size_q = (_size(steps.sizes, side) for side in (chosen.p, chosen.q))
    outer = math.prod(steps.sizes) // max(size_p * size_q, 1)
    most_p, most_q = triton.next_power_of_2(size_p), triton.next_power_of_2(size_q)
    block_p, block_q = min(32, most_p), min(32, most_q)
    while outer * triton.cdiv(size_p, block_p) * triton.cdiv(size_q, block_q) > 64 and (block_p, block_q) != (most_p, most_q):
        block_p, block_q = min(2 * block_p, most_p), min(2 * block_q, most_q)
    return chosen._replace(block_p=block_p, block_q=block_q)
