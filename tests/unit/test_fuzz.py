"""Hypothesis over shapes, strides, offsets, dtypes and memory formats: with the operators registered, equal to native.

A longer search: ``HYPOTHESIS_PROFILE=long python -m pytest tests/unit/test_fuzz.py``.
"""

import os

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import opgraft
from opgraft.verify.compare import assert_same

settings.register_profile("quick", max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
settings.register_profile("long", max_examples=20_000, deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

REAL = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]
ANY = [*REAL, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
DEVICES = {"sim": "sim:0", "cpu": "cpu"}


@pytest.fixture(params=DEVICES)
def device(request):
    with opgraft.use(platform=request.param):
        yield DEVICES[request.param]


@st.composite
def geometry(draw, overlap=True, rank=5):
    """(shape, strides, offset): dense in any order of dimensions, with gaps, or with repeated strides."""
    shape = tuple(draw(st.lists(st.sampled_from([0, 1, 1, 2, 3, 5, 7, 17]), max_size=rank)))
    order = draw(st.permutations(range(len(shape))))
    strides, step = [0] * len(shape), 1
    for axis in order:
        strides[axis] = step
        step *= max(shape[axis], 1)
        step += draw(st.sampled_from([0, 0, 0, 1, 3]))
    if overlap:
        for axis in range(len(shape)):
            if draw(st.integers(0, 7)) == 0:
                strides[axis] = draw(st.sampled_from([0, 1]))
    return shape, tuple(strides), draw(st.integers(0, 5))


def values(numel, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    wide = torch.randn(numel, generator=generator, dtype=torch.float64) * 50
    special = torch.randint(0, 12, (numel,), generator=generator)
    if dtype.is_floating_point and dtype.itemsize > 1:
        for code, value in enumerate((float("nan"), float("inf"), -float("inf"), -0.0)):
            wide[special == code] = value
    return (wide != 0).clone() if dtype is torch.bool else wide.to(dtype)


def made(drawn, dtype, seed, device):
    shape, strides, offset = drawn
    span = offset + (0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides)))
    flat = values(span, dtype, seed)
    return flat.as_strided(shape, strides, offset), flat.to(device).as_strided(shape, strides, offset)


def formats(rank):
    found = [torch.preserve_format, torch.contiguous_format]
    return found + ([torch.channels_last] if rank == 4 else []) + ([torch.channels_last_3d] if rank == 5 else [])


@given(drawn=geometry(), dtype=st.sampled_from(ANY), seed=st.integers(0, 99), data=st.data())
def test_clone_and_contiguous(device, drawn, dtype, seed, data):
    host, there = made(drawn, dtype, seed, device)
    form = data.draw(st.sampled_from(formats(host.dim())))
    assert_same(there.clone(memory_format=form), host.clone(memory_format=form), "clone")
    if form is not torch.preserve_format:
        assert_same(there.contiguous(memory_format=form), host.contiguous(memory_format=form), "contiguous")
    like, native = torch.empty_like(there, memory_format=form), torch.empty_like(host, memory_format=form)
    assert (like.stride(), like.dtype) == (native.stride(), native.dtype)
    detached = there.detach()
    assert detached.data_ptr() == there.data_ptr() and detached.stride() == there.stride()


def in_range(values, dtype):
    """Floats out of an integer's range convert as each device likes; NaN too."""
    if dtype.is_floating_point or dtype is torch.bool or not values.is_floating_point():
        return values
    limits = torch.iinfo(dtype)
    return values.nan_to_num(0, 0, 0).clamp(max(limits.min, -100), min(limits.max, 100))


@given(
    dst=geometry(overlap=False),
    source=st.sampled_from(REAL),
    target=st.sampled_from(REAL),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_copy_and_type_as(device, dst, source, target, seed, data):
    shape = dst[0]
    drop = data.draw(st.integers(0, len(shape)))
    narrow = tuple(1 if data.draw(st.booleans()) else n for n in shape[drop:])
    order = data.draw(st.permutations(range(len(narrow))))
    strides, step = [0] * len(narrow), 1
    for axis in order:
        strides[axis] = step
        step *= max(narrow[axis], 1)
    span = 1 if 0 not in narrow else 0
    for n in narrow:
        span *= n
    flat = in_range(values(span, source, seed), target)
    host_src, there_src = flat.as_strided(narrow, strides), flat.to(device).as_strided(narrow, strides)
    host, there = made(dst, target, seed + 1, device)
    assert_same(there.copy_(there_src), host.copy_(host_src), f"copy_ {source} to {target}", nan_bits=source == target)
    other, other_there = torch.empty(1, dtype=target), torch.empty(1, dtype=target, device=device)
    assert_same(
        there_src.type_as(other_there), host_src.type_as(other), f"type_as {source} to {target}", nan_bits=source == target
    )


@given(drawn=geometry(), dtype=st.sampled_from(ANY), seed=st.integers(0, 99))
def test_item(device, drawn, dtype, seed):
    host, there = made(drawn, dtype, seed, device)
    if host.numel():
        index = tuple(seed % n for n in host.shape)
        assert_same(there[index].item(), host[index].item(), "item")
    else:
        with pytest.raises(RuntimeError, match="cannot be converted to Scalar"):
            there.item()


@given(drawn=geometry(), dtype=st.sampled_from(FLOATS), p=st.sampled_from([0.1, 0.5, 0.9]), seed=st.integers(0, 99))
def test_dropout_means_the_same_for_every_layout(device, drawn, dtype, p, seed):
    """The mask depends on the row-major index alone: a layout must not change the result."""
    host, there = made(drawn, dtype, seed, device)
    torch.manual_seed(seed)
    strided = torch.dropout(there, p, True)
    torch.manual_seed(seed)
    dense = torch.dropout(there.clone(memory_format=torch.contiguous_format), p, True)
    torch.testing.assert_close(strided.cpu(), dense.cpu(), rtol=0, atol=0, equal_nan=True, check_stride=False)
    assert strided.dtype == host.dtype and strided.shape == host.shape
