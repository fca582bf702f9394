"""sdpa at the op level: ``F.scaled_dot_product_attention`` in every mode; gradients, dropout, ranks, routes."""

import torch
import torch.nn.functional as F

from opgraft import routing
from opgraft.ops.sdpa import reference
from opgraft.ops.sdpa.register import OPERATOR
from opgraft.verify import Case, Check, OpLevel, TensorSpec, prove

TOLERANCES = {torch.float64: 1e-6, torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}


def _compare(got, want, what):
    assert (got.dtype, got.shape) == (want.dtype, want.shape), f"{what}: {got.dtype} {tuple(got.shape)}, native {want.dtype}"
    tolerance = TOLERANCES[want.dtype]
    torch.testing.assert_close(
        got.detach().cpu(), want.detach(), rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda m: f"{what}: {m}"
    )


def _three(*shape, n=None, ev=None, dtype="float32", **geometry):
    n, ev = n or shape[-2], ev or shape[-1]
    shapes = (shape, (*shape[:-2], n, shape[-1]), (*shape[:-2], n, ev))
    return tuple(TensorSpec(s, dtype, seed=i, scale=0.5, **geometry) for i, s in enumerate(shapes))


MASK = TensorSpec((5, 7), "bool", seed=4)
CASES = [
    *(Case(f"rank {len(shape)}", _three(*shape)) for shape in ((5, 8), (3, 5, 8), (2, 3, 5, 8), (2, 2, 3, 5, 8))),
    *(Case(dtype, _three(2, 2, 9, 16, dtype=dtype)) for dtype in ("float16", "bfloat16")),
    Case("float64", _three(2, 2, 9, 16, dtype="float64"), native="dtypes torch.float64"),
    Case("head dim over 256", _three(1, 1, 3, 300), native="head dim over 256"),
    Case("another value head dim", _three(1, 2, 5, 8, n=7, ev=12)),
    Case("causal", _three(1, 2, 5, 8, n=7), {"is_causal": True}),
    Case("causal, more queries", _three(1, 2, 7, 8, n=5), {"is_causal": True}),
    Case("bool mask", (*_three(1, 2, 5, 8, n=7), MASK)),
    Case("float mask", (*_three(1, 2, 5, 8, n=7), TensorSpec((2, 1, 7), seed=4))),
    Case("float32 mask of half-precision scores", (*_three(1, 2, 5, 8, n=7, dtype="float16"), TensorSpec((5, 7), seed=4))),
    Case("mask that does not broadcast", (*_three(1, 2, 5, 8, n=7), TensorSpec((4, 7), "bool"))),
    Case("scale", _three(1, 2, 5, 8), {"scale": 0.7}),
    Case("grouped heads", (TensorSpec((2, 6, 5, 8)), TensorSpec((2, 2, 7, 8), seed=1), TensorSpec((2, 2, 7, 8), seed=2)), {"enable_gqa": True}),
    Case("grouped heads, one query", (TensorSpec((2, 6, 1, 8)), TensorSpec((2, 2, 7, 8), seed=1), TensorSpec((2, 2, 7, 5), seed=2), TensorSpec((2, 6, 1, 7), seed=3)), {"enable_gqa": True}),
    Case("grouped heads, one query, causal", (TensorSpec((6, 1, 8)), TensorSpec((2, 7, 8), seed=1), TensorSpec((2, 7, 8), seed=2)), {"enable_gqa": True, "is_causal": True}),
    Case("grouped heads that do not divide", (TensorSpec((2, 5, 5, 8)), TensorSpec((2, 2, 7, 8)), TensorSpec((2, 2, 7, 8))), {"enable_gqa": True}),
    Case("heads that broadcast", (TensorSpec((2, 6, 5, 8)), TensorSpec((2, 1, 7, 8), seed=1), TensorSpec((1, 6, 7, 8), seed=2))),
    Case("heads that do not match", (TensorSpec((2, 6, 5, 8)), TensorSpec((2, 4, 7, 8)), TensorSpec((2, 4, 7, 8)))),
    Case("transposed in memory", _three(2, 3, 5, 8, strides=(120, 8, 24, 1))),
    Case("last stride", _three(2, 3, 5, 8, strides=(120, 40, 1, 5))),
    Case("everything dropped", (*_three(1, 2, 5, 8), None, 1.0), native="nothing is kept"),
    Case("no queries", (TensorSpec((1, 2, 0, 8)), *_three(1, 2, 5, 8)[1:]), native="empty"),
    Case("head dims differ", (TensorSpec((1, 2, 5, 8)), TensorSpec((1, 2, 5, 9)), TensorSpec((1, 2, 5, 8)))),
    Case("dtypes differ", (TensorSpec((1, 2, 5, 8)), TensorSpec((1, 2, 5, 8), "float16"), TensorSpec((1, 2, 5, 8)))),
]  # fmt: skip


def _particular(profile):
    device = profile.device

    def registered():
        return OPERATOR.register_a1(profile.dispatch_key, platform=profile.name)

    def tensors(*shapes, dtype=torch.float32):
        return [torch.randn(s, generator=torch.Generator().manual_seed(i)).to(dtype) for i, s in enumerate(shapes)]

    def gradients():
        """Against the derivative of the float64 reference, for every rank, broadcasts, masks and their gradient."""
        for shapes, keywords in (
            (((5, 8), (7, 8), (7, 6)), {}),
            (((3, 5, 8), (3, 7, 8), (3, 7, 8)), {"is_causal": True}),
            (((2, 2, 3, 5, 8), (2, 1, 3, 7, 8), (1, 2, 3, 7, 8)), {"scale": 0.5}),
            (((2, 6, 5, 8), (2, 2, 7, 8), (2, 2, 7, 4)), {"enable_gqa": True}),
            (((2, 6, 1, 8), (2, 2, 7, 8), (2, 2, 7, 4), (2, 6, 1, 7)), {"enable_gqa": True}),
            (((2, 6, 5, 8), (2, 1, 7, 8), (2, 6, 7, 8), (6, 5, 7)), {}),
            (((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8), (2, 1, 1, 7)), {}),
        ):
            given = tensors(*shapes)
            with registered() as registration:
                leaves = [t.to(device).requires_grad_() for t in given]
                out = F.scaled_dot_product_attention(*leaves, **keywords)
                up = torch.linspace(-1, 1, out.numel()).reshape(out.shape)
                got = torch.autograd.grad(out, leaves, up.to(device))
                assert registration.hits == 1 and not registration.handed_to_native, registration
            wide = [t.double().requires_grad_() for t in given]
            want = reference.sdpa(*wide, **keywords)
            _compare(out, want.float(), f"{shapes} {keywords}")
            for number, (g, w) in enumerate(zip(got, torch.autograd.grad(want, wide, up.double()))):
                _compare(g, w.float(), f"gradient {number} of {shapes} {keywords}")

    def second_order():
        given = tensors((1, 2, 4, 8), (1, 2, 5, 8), (1, 2, 5, 8))

        def twice(leaves, call):
            first = torch.autograd.grad(call(*leaves, is_causal=True).pow(2).sum(), leaves, create_graph=True)
            return torch.autograd.grad(sum(g.pow(2).sum() for g in first), leaves)

        with registered():
            got = twice([t.to(device).requires_grad_() for t in given], F.scaled_dot_product_attention)
        want = twice([t.double().requires_grad_() for t in given], reference.sdpa)
        for g, w in zip(got, want):
            torch.testing.assert_close(g.cpu().double(), w, rtol=1e-3, atol=1e-3)

    def dropout():
        """Seen through values that are the unit matrix: seeded, scaled, the same in the backward, in every mode."""
        n = 64
        q, k = (t.to(device) for t in tensors((1, 2, n, 8), (1, 2, n, 8)))
        eye = torch.eye(n, device=device).expand(1, 2, n, n)

        def draw(seed, leaf=None):
            torch.manual_seed(seed)
            return F.scaled_dot_product_attention(q, k, eye if leaf is None else leaf, dropout_p=0.5)

        with registered() as registration:
            plain = F.scaled_dot_product_attention(q, k, eye).cpu()
            one, again, other = draw(1).cpu(), draw(1).cpu(), draw(2).cpu()
            assert torch.equal(one, again) and not torch.equal(one, other), "torch.manual_seed must make it reproducible"
            kept = one != 0
            torch.testing.assert_close(one[kept], 2 * plain[kept], rtol=1e-4, atol=1e-6)
            assert 0.45 < kept.float().mean().item() < 0.55
            leaf = eye.clone().requires_grad_()
            out = draw(1, leaf)
            assert torch.equal(out.detach().cpu(), one), "the gradient's mode must not change the mask"
            out.sum().backward()
            torch.testing.assert_close(leaf.grad.cpu(), one.sum(-2)[..., None].expand(1, 2, n, n), rtol=1e-3, atol=1e-3)
            with torch.inference_mode():
                assert torch.equal(draw(1).cpu(), one)
            assert registration.handed_to_native == {} and registration.hits == 6

    def saved():
        leaves = [t.to(device).requires_grad_() for t in tensors((1, 2, 64, 8), (1, 2, 96, 8), (1, 2, 96, 8))]
        kept = []
        with registered(), torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
            F.scaled_dot_product_attention(*leaves)
        assert kept and max(kept) < 2 * 64 * 96, f"the scores were stored for the backward: {kept}"

    def decode():
        """One query over many keys, grouped heads: as in an engine's forward."""
        q, k, v = (t.to(device) for t in tensors((2, 8, 1, 64), (2, 2, 300, 64), (2, 2, 300, 64)))
        with registered() as registration, torch.inference_mode():
            got = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
            assert registration.inference_hits == 1 and not registration.handed_to_native
        _compare(got, reference.sdpa(q.cpu(), k.cpu(), v.cpu(), enable_gqa=True), "decode")

    def routes():
        given = [t.to(device) for t in tensors((1, 2, 5, 8), (1, 2, 5, 8), (1, 2, 5, 8))]
        with registered() as registration:
            with routing.force("own"):
                own = F.scaled_dot_product_attention(*given)
                assert registration.handed_to_native == {}
            with routing.force("native"):
                native = F.scaled_dot_product_attention(*given)
                leaf = given[0].clone().requires_grad_()
                F.scaled_dot_product_attention(leaf, *given[1:]).sum().backward()
            reasons = list(registration.handed_to_native)
            assert registration.hits == 3 and len(reasons) == 2, registration
            assert reasons[0].startswith("routed to native: prefill, float32") and "training" in reasons[1], reasons
            assert leaf.grad is not None and leaf.grad.cpu().abs().sum() > 0
        _compare(own, native.cpu(), "own and native")

    look_at = "ops/sdpa/register.py and ops/sdpa/attention.py"
    yield Check("gradients beside the float64 reference's", gradients, look_at)
    yield Check("second order", second_order, look_at)
    yield Check("dropout", dropout, look_at)
    yield Check("no scores are stored", saved, look_at)
    yield Check("decode", decode, look_at)
    yield Check("routes: forced, counted", routes, "opgraft/routing.py")


class _Attention(OpLevel):
    def _gradient(self, profile, order=1):
        figures = super()._gradient(profile, order)
        assert figures == {"hits": 1}, "the backward is not another call of attention"
        return figures

    def _compare_gradients(self, got, want, what):
        for g, w in zip(got, want, strict=True):
            _compare(g, w, what)

    def _second_gradient(self, profile):
        """Native's flash attention has none; see the check ``second order``."""


LEVEL = _Attention(
    OPERATOR,
    F.scaled_dot_product_attention,
    CASES,
    storage="new",
    sample=Case("sample", _three(1, 2, 3, 8)),
    compare=_compare,
    rewritten=frozenset({"compile", "vmap", "func.grad"}),
    extra=_particular,
)
test_op_level = prove
