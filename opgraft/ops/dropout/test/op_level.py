"""dropout at the op level: ``F.dropout`` in every mode; seeds, state, in-place, and where native answers.

Native draws other random numbers, so results are compared by what must be alike: geometry, support and scale.
"""

import contextlib

import torch
import torch.nn.functional as F

from opgraft.ops.dropout.register import OPERATOR
from opgraft.verify import Case, Check, OpLevel, TensorSpec, prove, tensor_cases
from opgraft.verify.compare import assert_same


def _alike(got, want, what):
    assert (got.shape, got.stride(), got.dtype) == (want.shape, want.stride(), want.dtype), (
        f"{what}: {got.stride()}, native {want.stride()}"
    )


X = TensorSpec((64, 3))
CASES = [
    *(Case(f"{c.name}", (*c.args, 0.5, True), native="nothing is dropped" if 0 in c.args[0].shape else None)
      for c in tensor_cases([(), (0,), (5, 7), (2, 3, 4, 5)], ("float32", "bfloat16"))),
    Case("float64", (TensorSpec((33,), "float64"), 0.25, True)),
    Case("float16", (TensorSpec((33,), "float16"), 0.25, True)),
    Case("p = 0", (X, 0.0, True), native="nothing is dropped"),
    Case("p = 1", (X, 1.0, True), native="everything is dropped"),
    Case("not training", (X, 0.5, False), native="nothing is dropped"),
    Case("p below 0", (X, -0.1, True)),
    Case("p above 1", (X, 1.1, True)),
    Case("integers", (TensorSpec((5,), "int64"), 0.5, True)),
]  # fmt: skip


def _particular(profile):
    device = profile.device

    @contextlib.contextmanager
    def registered():
        with OPERATOR.register_a1(profile.dispatch_key, platform=profile.name) as registration:
            yield registration

    def values():
        x = torch.randn(2000, device=device)
        with registered():
            y = F.dropout(x, 0.25)
        kept = y != 0
        assert_same(y[kept], (x.cpu() / 0.75)[kept.cpu()], "kept elements", exact=False)
        assert 0.15 < 1 - kept.float().mean().item() < 0.35

    def reproducible():
        x = torch.ones(1000, device=device)

        def draw(seed):
            torch.manual_seed(seed)
            return F.dropout(x, 0.5).cpu(), F.dropout(x, 0.5).cpu()

        with registered():
            (a1, a2), (b1, b2) = draw(1234), draw(1234)
            assert torch.equal(a1, b1) and torch.equal(a2, b2), "torch.manual_seed must make it reproducible"
            assert not torch.equal(a1, a2), "consecutive calls must differ"
            assert not torch.equal(a1, draw(4321)[0]), "another seed must differ"
            backend = torch if profile.device_type == "cpu" else torch.get_device_module(profile.device_type)
            generator = torch.default_generator if backend is torch else backend.default_generators[0]
            seeded = [(generator.manual_seed(99), F.dropout(x, 0.5).cpu())[1] for _ in range(2)]
            assert torch.equal(*seeded), "seeding the device's default Generator must make it reproducible"
            state = backend.get_rng_state()
            one = F.dropout(x, 0.5).cpu()
            backend.set_rng_state(state)
            assert torch.equal(one, F.dropout(x, 0.5).cpu()), "a restored RNG state must replay it"

    def backward():
        with registered() as registration:
            x = torch.randn(40, 5, device=device).t().requires_grad_()
            y = F.dropout(x, 0.4)
            (grad,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
            factor = (y / x).detach()
            assert_same(grad.detach(), factor.cpu(), "the backward's mask", exact=False, strides=False)
            saved = y.grad_fn.saved_tensors if hasattr(y.grad_fn, "saved_tensors") else ()
            assert sum(t.numel() for t in saved) <= 1, "a mask was stored"
            z = F.dropout(x * 1.0, 0.4) ** 2
            (first,) = torch.autograd.grad(z.sum(), x, create_graph=True)
            (second,) = torch.autograd.grad(first.sum(), x)
            assert torch.equal((second != 0).cpu(), (z != 0).cpu()), "the second gradient's mask"
            assert registration.hits == 2

    def in_place():
        with registered() as registration:
            for shape in ((512,), (64, 8)):
                x = torch.ones(shape, device=device)
                x = x.t() if x.dim() == 2 else x
                version = x._version
                y = F.dropout(x, 0.5, training=True, inplace=True)
                assert y is x and x._version == version + 1 and set(x.flatten().tolist()) == {0.0, 2.0}
            leaf = torch.ones(512, device=device, requires_grad=True)
            out = F.dropout(leaf * 1, 0.5, inplace=True)
            out.sum().backward()
            assert torch.equal(leaf.grad.cpu(), out.detach().cpu())
            try:
                F.dropout(leaf, 0.5, inplace=True)
            except RuntimeError as error:
                assert "leaf" in str(error)
            else:
                raise AssertionError("in place on a leaf that needs a gradient must be refused")
            with torch.inference_mode():
                assert set(F.dropout(torch.ones(512, device=device), 0.5, inplace=True).tolist()) == {0.0, 2.0}
            assert registration.hits == 5, registration.hits

    def identity():
        with registered():
            x = torch.randn(8, device=device)
            for y in (F.dropout(x, 0.5, training=False), torch.dropout(x, 0.0, True), torch.nn.Dropout(0.3).eval()(x)):
                assert torch.equal(y, x)
            leaf = torch.tensor([1.0, -2.0, 0.0], device=device, requires_grad=True)
            out = F.dropout(leaf, 1.0)
            out.sum().backward()
            assert out.tolist() == [0, 0, 0] == leaf.grad.tolist()

    def vmap_randomness():
        x = torch.ones(3, 200, device=device)
        with registered():
            different = torch.func.vmap(lambda t: F.dropout(t, 0.5), randomness="different")(x)
            same = torch.func.vmap(lambda t: F.dropout(t, 0.5), randomness="same")(x)
            assert torch.equal(same[0], same[1]) and not torch.equal(different[0], different[1])
            try:
                torch.func.vmap(lambda t: F.dropout(t, 0.5))(x)
            except RuntimeError as error:
                assert "randomness" in str(error)
            else:
                raise AssertionError("vmap's default randomness mode must refuse dropout")

    def modes_agree():
        """One seed gives one mask, with and without a gradient and in inference mode."""
        x = torch.randn(300, device=device)
        results = []
        with registered():
            for context, argument in (
                (torch.no_grad, x),
                (torch.inference_mode, x),
                (torch.enable_grad, x.clone().requires_grad_()),
            ):
                torch.manual_seed(5)
                with context():
                    results.append(F.dropout(argument, 0.5).detach().cpu())
        assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])

    look_at = "ops/dropout/register.py and ops/dropout/masked_scale.py"
    yield Check("scale and kept elements", values, look_at)
    yield Check("seeds and RNG state", reproducible, "opgraft/kernels/philox.py, `draw_seed`")
    yield Check("backward: same mask, none stored; second order", backward, look_at)
    yield Check("in place", in_place, look_at)
    yield Check("identity and p = 1", identity, look_at)
    yield Check("vmap's randomness modes", vmap_randomness, look_at)
    yield Check("one mask in every grad mode", modes_agree, look_at)


class _Dropout(OpLevel):
    def _gradient(self, profile, order=1):
        figures = super()._gradient(profile, order)
        assert figures == {"hits": 1}, "the backward is not another call of dropout"
        return figures

    def _compare_gradients(self, got, want, what):
        """Native's gradient has another mask; ours must be kept (``backward`` in the extra checks compares it)."""


LEVEL = _Dropout(
    OPERATOR,
    torch.dropout,
    CASES,
    storage="new",
    sample=Case("sample", (TensorSpec((3, 5)), 0.5, True)),
    compare=_alike,
    rewritten=frozenset({"compile", "vmap", "func.grad"}),
    extra=_particular,
)
test_op_level = prove
