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


@pytest.mark.parametrize("ours", [False, True], ids=["native", "registered"])
@pytest.mark.parametrize("op, dtype", CASES, ids=[f"{op.name}-{op.variant_test_name}-{str(d)[6:]}" for op, d in CASES])
def test_sample_inputs(op, dtype, ours):
    count = 0
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
            compare(op, got, want)
            if gradient and isinstance(want, torch.Tensor) and want.requires_grad and "dropout" not in op.name:
                leaves = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.requires_grad]
                leaves_there = [
                    t for t in pytree.tree_leaves((there, there_kwargs)) if isinstance(t, torch.Tensor) and t.requires_grad
                ]
                weight = torch.ones_like(want) * 2
                expected = torch.autograd.grad(want, leaves, weight, allow_unused=True)
                found = torch.autograd.grad(got, leaves_there, weight.to("sim"), allow_unused=True)
                for g, w in zip(found, expected, strict=True):
                    assert (g is None) == (w is None)
                    if w is not None:
                        close(op, g, w)
    assert count
