"""How strided copies are planned: divisions by multiplication, and tiles that cover every element once."""

import math
import sys

import torch
from hypothesis import given
from hypothesis import strategies as st

from opgraft.kernels import copy_engine, copy_plan
from opgraft.kernels.copy_plan import divisors, plan, tiles


@given(st.integers(2, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_an_index_is_divided_by_a_multiplication_and_a_shift(size, index):
    given_size, multiplier, shift = divisors((size,))
    assert given_size == size and -(2**31) <= multiplier < 0, "it reaches a kernel as 32 bits"
    for n in (index, index - index % size, max(index - index % size - 1, 0), 2**31 - 1):
        assert n * (multiplier + 2**32) >> 32 >> shift == n // size


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.randoms(use_true_random=False), st.sampled_from([1, 2, 4, 8]))
def test_tiles_take_in_each_dimension_once_and_stay_within_bounds(shape, random, width):
    order = random.sample(range(len(shape)), len(shape))
    strides, step = [0] * len(shape), 1
    for axis in order:
        strides[axis] = step if random.random() < 0.9 else 0
        step *= shape[axis] + random.choice((0, 0, 1))
    steps = plan(shape, torch.empty(shape, device="meta").stride(), strides)
    chosen = tiles(steps, width)
    both = chosen.p + chosen.q
    assert len(set(both)) == len(both) and set(both) <= set(range(len(steps.sizes)))
    assert len(steps.sizes) - 1 in chosen.q, "stores run along the destination's fastest dimension"
    for side, block in ((chosen.p, chosen.block_p), (chosen.q, chosen.block_q)):
        assert block & (block - 1) == 0 and block < 2 * math.prod(steps.sizes[i] for i in side)


def test_no_index_that_a_kernel_forms_passes_32_bits_unless_it_is_wide():
    """Tails too: a wrapped index is negative, and would pass a mask."""
    device = torch.device("cuda", 0)  # planning needs no such device
    for less in (1, 1000, 5000, 20000):
        numel = 2**31 - less
        shapes = {
            (numel,): ((1,), (0,)),
            (numel // 3, 3): ((3, 1), (1, numel // 3)),
            (3, numel // 3): ((numel // 3, 1), (0, 1)),
        }
        for shape, (to, frm) in shapes.items():
            for dtype in (torch.int8, torch.bool):
                dst, src = (copy_engine.Geometry(t, shape, strides, device) for t, strides in ((dtype, to), (torch.int8, frm)))
                meta = copy_engine._launch(dst, src, 0).meta
                last = max(shape) + max(meta["BLOCK_P"], meta["BLOCK_Q"])
                assert meta["WIDE"] or last < 2**31, (shape, meta)


def test_64_bit_indexes_copy_the_same(monkeypatch):
    """Every kernel of the copy engine with the index width that a tensor past 2^31 elements needs."""
    ran = []
    launch = sys.modules["opgraft.kernels.launch"]
    monkeypatch.setattr(copy_engine, "needs_64_bit", lambda *_: True)
    monkeypatch.setattr(
        launch, "interpret", lambda kernel, *rest, run=launch.interpret: (ran.append(kernel.fn.__name__), run(kernel, *rest))
    )
    for shape, order in (((3000,), (0,)), ((33, 65), (1, 0)), ((4, 5, 6, 7, 3), (4, 1, 3, 2, 0))):
        src = torch.randn([shape[order.index(i)] for i in range(len(shape))]).permute(order)
        dst = torch.empty(shape, dtype=torch.float64)
        copy_engine._copies.clear()
        assert torch.equal(copy_engine.copy(dst, src), src.double())
    copy_engine._copies.clear()
    assert ran == ["flat_copy_kernel", "tile_copy_kernel", "grouped_copy_kernel"]


def test_what_is_copied_often_is_planned_once(monkeypatch):
    planned = []
    monkeypatch.setattr(copy_engine, "plan", lambda *args: planned.append(args) or copy_plan.plan(*args))
    copy_engine._copies.clear()
    for _ in range(3):
        copy_engine.copy(torch.empty(8, 9), torch.randn(9, 8).t())
    assert len(planned) == 1
