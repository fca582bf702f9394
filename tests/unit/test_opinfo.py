"""PyTorch's own OpInfo samples, on the simulated device: natively, and with every operator of ours registered.

A sample is made on the CPU, moved with its strides, called on both, and compared: values, strides of fresh results,
and gradients. Factories and dropout have no values to compare, so their geometry (and dropout's support) is.
"""

import warnings
from contextlib import nullcontext

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

import opgraft

NAMES = (
    "clone contiguous to empty empty_like empty_strided item nn.functional.dropout nn.functional.embedding "
    "nn.functional.scaled_dot_product_attention"
).split()
OPS = [op for op in op_db if op.name in NAMES]
UNSPECIFIED = {"empty", "empty_like", "empty_strided"}
CASES = [(op, dtype) for op in OPS for dtype in sorted(op.dtypes, key=str)]
EXACT = {"clone", "contiguous", "to", "item"}


def moved(tree):
    """The same arguments on the simulated device, with their strides; leaves stay leaves."""

    def one(leaf):
        if isinstance(leaf, torch.Tensor):
            bare = leaf.detach()
            span = bare.untyped_storage().nbytes() // bare.element_size()
            flat = torch.empty(0, dtype=bare.dtype).set_(bare.untyped_storage(), 0, (span,), (1,))
            there = flat.to("sim").as_strided(bare.shape, bare.stride(), bare.storage_offset())
            there = there.conj() if bare.is_conj() else there
            return there.requires_grad_(leaf.requires_grad)
        if isinstance(leaf, torch.device) or (isinstance(leaf, str) and leaf.startswith("cpu")):
            return "sim:0"
        return leaf

    return pytree.tree_map(one, tree)


def compare(op, got, want):
    for g, w in zip(pytree.tree_leaves(got), pytree.tree_leaves(want), strict=True):
        if not isinstance(w, torch.Tensor):
            assert type(g) is type(w) and (g == w or g != g)
        elif op.name in UNSPECIFIED or "dropout" in op.name:
            assert (g.shape, g.stride(), g.dtype, g.requires_grad) == (w.shape, w.stride(), w.dtype, w.requires_grad)
        else:
            assert g.stride() == w.stride() or "attention" in op.name
            close(op, g, w)


def close(op, got, want):
    tolerance = 0 if op.name in EXACT else None
    torch.testing.assert_close(got.cpu(), want, equal_nan=True, check_stride=False, rtol=tolerance, atol=tolerance)


def run(op, sample_args, kwargs):
    # Native attention takes a fused algorithm on the CPU, the device runs the composite: compare like with like.
    with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH):
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        return op.op(*sample_args, **kwargs)


def error_of(got, true):
    return (got.detach().cpu().double() - true.detach()).abs().max().item() if true.numel() else 0.0


def leaves_of(tree):
    return [t for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor) and t.requires_grad]


def widened(tree):
    """The same arguments in float64."""
    return pytree.tree_map(
        lambda t: (
            t.detach().double().requires_grad_(t.requires_grad) if isinstance(t, torch.Tensor) and t.is_floating_point() else t
        ),
        tree,
    )


@pytest.mark.parametrize("ours", [False, True], ids=["native", "registered"])
@pytest.mark.parametrize("op, dtype", CASES, ids=[f"{op.name}-{op.variant_test_name}-{str(d)[6:]}" for op, d in CASES])
def test_sample_inputs(op, dtype, ours):
    count, errors = 0, [(0.0, 0.0)]  # errors of attention against float64: (ours, native's)
    gradient = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    with opgraft.use() if ours else nullcontext():
        for sample in op.sample_inputs("cpu", dtype, requires_grad=gradient):
            args, kwargs = (sample.input, *sample.args), sample.kwargs
            there, there_kwargs = moved((args, kwargs))
            want = run(op, args, kwargs)
            got = run(op, there, there_kwargs)
            count += 1
            if kwargs.get("dropout_p") and ours:
                continue  # our dropout draws other random numbers than native's
            attention = ours and "attention" in op.name and want.numel()
            wide, wide_kwargs = widened((args, kwargs)) if attention else (args, kwargs)
            true = run(op, wide, wide_kwargs) if attention else want
            if attention:
                assert (got.shape, got.dtype) == (want.shape, want.dtype)
                errors.append((error_of(got, true), error_of(want, true)))
            else:
                compare(op, got, want)
            if gradient and isinstance(want, torch.Tensor) and want.requires_grad and "dropout" not in op.name:
                weight = torch.ones_like(want) * 2
                expected = torch.autograd.grad(want, leaves_of((args, kwargs)), weight, allow_unused=True)
                found = torch.autograd.grad(got, leaves_of((there, there_kwargs)), weight.to("sim"), allow_unused=True)
                exact = (
                    torch.autograd.grad(true, leaves_of((wide, wide_kwargs)), weight.to(true.dtype), allow_unused=True)
                    if attention
                    else expected
                )
                for g, w, t in zip(found, expected, exact, strict=True):
                    assert (g is None) == (w is None)
                    if w is not None:
                        errors.append((error_of(g, t), error_of(w, t))) if attention else close(op, g, w)
    assert count
    ours_most, native_most = map(max, zip(*errors))
    # In 16 bits every flash attention rounds the weights before they meet v; native's MATH keeps them in fp32.
    most = 2 if dtype in (torch.float16, torch.bfloat16) else 1.5
    assert ours_most <= most * native_most, f"error against float64 up to {ours_most:.3g}, native's up to {native_most:.3g}"
