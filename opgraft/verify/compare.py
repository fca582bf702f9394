"""Comparing results: bit for bit, or within the contract's tolerances."""

from __future__ import annotations

import torch
from torch.utils import _pytree as pytree

#: Absolute tolerances for pointwise results, by dtype (the contract).
POINTWISE = {torch.float64: 1e-5, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's values as bytes, on the CPU, one row an element."""
    host = tensor.detach().cpu().resolve_conj().resolve_neg()
    if not host.numel():
        return torch.empty(0, 1, dtype=torch.uint8, device="cpu")
    dense = torch.empty(host.numel(), dtype=host.dtype, device="cpu").copy_(host.reshape(-1))
    return dense.view(torch.uint8).reshape(host.numel(), -1)


def same_bits(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Whether two tensors hold the same bits; unlike ==, NaN equals NaN and 0.0 is not -0.0."""
    return got.shape == want.shape and got.dtype == want.dtype and torch.equal(bits(got), bits(want))


def assert_same(got, want, what: str, exact: bool = True, strides: bool = True, nan_bits: bool = True) -> None:
    """Assert that a result equals the expected one.

    Args:
        got: tensors (any device), numbers, or nests of them.
        want: the expected, on the CPU.
        what: named in the error.
        exact: bit for bit; else within :data:`POINTWISE`.
        strides: whether the strides must agree too.
        nan_bits: whether a NaN must be the same NaN; a conversion may choose its bits, moving data may not.

    Raises:
        AssertionError: says what differs, where and by how much.
    """
    flat_got, flat_want = pytree.tree_leaves(got), pytree.tree_leaves(want)
    assert len(flat_got) == len(flat_want), f"{what}: {len(flat_got)} results, expected {len(flat_want)}"
    for g, w in zip(flat_got, flat_want):
        if isinstance(w, torch.Tensor) and isinstance(g, torch.Tensor):
            _assert_tensor(g, w, what, exact, strides, nan_bits)
        else:
            equal = g == w or (g != g and w != w)
            assert type(g) is type(w) and equal, f"{what}: got {g!r}, expected {w!r}"


def _assert_tensor(got, want, what, exact, strides, nan_bits) -> None:
    assert got.dtype == want.dtype, f"{what}: dtype {got.dtype}, expected {want.dtype}"
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    if strides:
        assert got.stride() == want.stride(), f"{what}: strides {got.stride()}, expected {want.stride()}"
    if not want.numel():
        return
    if exact:
        differ = (bits(got) != bits(want)).any(1)
        if not nan_bits:
            differ &= ~(got.detach().cpu().isnan() & want.isnan()).reshape(-1)
        if differ.any():
            first = int(differ.nonzero()[0])
            g, w = got.detach().cpu().reshape(-1)[first], want.detach().reshape(-1)[first]
            raise AssertionError(
                f"{what}: {int(differ.sum())} of {want.numel()} elements differ; the first is element {first} "
                f"(row-major): got {g.item()!r}, expected {w.item()!r}"
            )
    else:
        tolerance = POINTWISE.get(want.dtype, 0)
        torch.testing.assert_close(
            got.detach().cpu(), want, rtol=tolerance, atol=tolerance, equal_nan=True, check_stride=False,
            msg=lambda m: f"{what}: {m}",
        )  # fmt: skip


def same_geometry(got: torch.Tensor, want: torch.Tensor, what: str) -> None:
    """Assert that two tensors agree in all but their values and device: for results that are not initialised."""
    for name in ("shape", "dtype", "layout", "requires_grad"):
        assert getattr(got, name) == getattr(want, name), f"{what}: {name} {getattr(got, name)}, expected {getattr(want, name)}"
    assert got.stride() == want.stride(), f"{what}: strides {got.stride()}, expected {want.stride()}"
    assert got.storage_offset() == want.storage_offset(), f"{what}: storage offset {got.storage_offset()}"
    sizes = got.untyped_storage().nbytes(), want.untyped_storage().nbytes()
    assert sizes[0] == sizes[1], f"{what}: a storage of {sizes[0]} bytes, expected {sizes[1]}"
    assert got._is_view() == want._is_view(), f"{what}: is a view: {got._is_view()}, expected {want._is_view()}"
