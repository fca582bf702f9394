"""sdpa at the kernel level: forward against a float64 reference, both gradients against its derivative, dropout's mask."""

import math

import torch

from opgraft.ops.sdpa import reference
from opgraft.ops.sdpa.attention import BACKWARD_KERNELS, KERNELS
from opgraft.ops.sdpa.kernel import torch_level
from opgraft.ops.sdpa.register import OPERATOR
from opgraft.verify import Case, Check, KernelLevel, TensorSpec, prove

#: Absolute and relative, by dtype. Matrix products: the contract allows 5e-2 relative.
TOLERANCES = {torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}


def _case(q, k, ev=None, dtype="float32", layout=None, golden=False, mask=None, **keywords):
    """Shapes (B, H, M, E) and (B, Hk, N, E); ``layout`` is how all three lie in memory."""
    v = (*k[:3], ev or k[3])
    specs = [TensorSpec(s, dtype, *_geometry(s, layout), seed=i, scale=0.5) for i, s in enumerate((q, k, v))]
    name = f"{'x'.join(map(str, q))} on {'x'.join(map(str, v))} {dtype}{' ' + layout if layout else ''}"
    said = [f"{key}={value}" for key, value in keywords.items()] + ([f"mask {mask.dtype}{mask.shape}"] if mask else [])
    return Case(" ".join([name, *said]), (*specs, mask), keywords, golden=golden)


def _geometry(shape, layout):
    b, h, m, e = shape
    if layout == "transposed heads":
        return (h * m * e, e, h * e, 1), 0
    if layout == "last stride":
        return (h * m * e, m * e, 1, m), 0
    if layout == "expanded heads":
        return (m * e, 0, e, 1), 0
    if layout == "gaps":
        return (h * m * 2 * e, m * 2 * e, 2 * e, 2), 3
    return None, 0


CASES = [
    _case((1, 2, 16, 16), (1, 2, 16, 16), golden=True),
    *(_case((2, 2, 65, 33), (2, 2, 70, 33), 20, dtype, is_causal=causal)
      for dtype in ("float32", "float16", "bfloat16") for causal in (False, True)),
    *(_case((1, 1, 65, e), (1, 1, 70, e), ev, "float16") for e, ev in ((40, 24), (34, 34), (96, 32), (128, 128))),
    *(_case((1, 2, 65, 64), (1, 2, 70, 64), dtype="float16", layout=name)
      for name in ("transposed heads", "last stride", "expanded heads", "gaps")),
    *(_case((1, 1, m, 8), (1, 1, n, 8)) for m, n in ((1, 1), (1, 129), (127, 1), (64, 64), (130, 3))),
    *(_case((1, 1, m, 8), (1, 1, n, 8), is_causal=True) for m, n in ((5, 130), (130, 5), (64, 65))),
    *(_case((1, 1, 3, e), (1, 1, 5, e), ev) for e, ev in ((1, 1), (96, 96), (80, 48), (24, 130), (256, 256), (200, 7))),
    *(_case((2, 3, 9, 16), (2, 3, 11, 16), layout=name) for name in ("transposed heads", "last stride", "expanded heads", "gaps")),
    _case((2, 8, 6, 16), (2, 2, 9, 16), enable_gqa=True, golden=True),
    _case((1, 32, 1, 64), (1, 4, 200, 64), dtype="bfloat16", enable_gqa=True),
    *(_case((2, 3, 17, 8), (2, 3, 19, 8), mask=TensorSpec(shape, dtype, seed=9))
      for shape in ((17, 19), (2, 1, 17, 19), (1, 3, 1, 19), (19,), (2, 3, 17, 1), (1,)) for dtype in ("bool", "float32")),
    _case((2, 3, 17, 8), (2, 3, 19, 8), dtype="float16", mask=TensorSpec((17, 19), "float16", seed=9)),
    _case((2, 3, 17, 8), (2, 3, 19, 8), mask=TensorSpec((17, 19), "bool", strides=(1, 17), seed=9)),
    _case((1, 1, 7, 8), (1, 1, 9, 8), scale=0.0),
    _case((1, 1, 7, 8), (1, 1, 9, 8), scale=-1.5),
]  # fmt: skip


def _compare(got, want, what):
    assert (got.dtype, got.shape) == (want.dtype, want.shape), f"{what}: {got.dtype} {tuple(got.shape)}"
    tolerance = TOLERANCES[want.dtype]
    torch.testing.assert_close(got.cpu(), want, rtol=tolerance, atol=tolerance, msg=lambda m: f"{what}: {m}")


def _particular(profile):
    level = profile.kernel_level
    forward, backward = KERNELS[level], BACKWARD_KERNELS[level]

    def inputs(q, k, ev, dtype=torch.float32, mask=None):
        make = torch.Generator().manual_seed(1)
        given = [torch.randn(s, generator=make).to(dtype) for s in (q, k, (*k[:3], ev), (*q[:3], ev))]
        if mask is not None:
            given.append(torch.randn(q[0], q[1], q[2], k[2], generator=make).gt(0) if mask == "bool" else
                         torch.randn(q[0], q[1], q[2], k[2], generator=make).to(dtype))  # fmt: skip
        return given

    def derivative(q, k, ev, dtype=torch.float32, causal=False, mask=None):
        qt, kt, vt, up, *rest = inputs(q, k, ev, dtype, mask)
        given = [t.to(profile.device) for t in (qt, kt, vt, up, *rest)]
        m = given[4] if rest else None
        mask_grad = mask == "float"
        out, lost, statistics = forward(*given[:3], m, None, 0.0, causal, 0.3, True)
        got = backward(given[3], *given[:3], m, out, lost, statistics, None, 0.0, causal, 0.3, mask_grad)
        wide = [t.double().requires_grad_() for t in (qt, kt, vt)]
        extra = [rest[0].double().requires_grad_()] if mask_grad else []
        at = extra[0] if extra else rest[0] if rest else None
        result = reference.sdpa(*wide, at, 0.0, causal, scale=0.3, enable_gqa=q[1] != k[1])
        wants = torch.autograd.grad(result, [*wide, *extra], up.double())
        for name, g, w in zip(("dq", "dk", "dv", "dmask"), got, wants):
            tolerance = TOLERANCES[dtype] * 4
            torch.testing.assert_close(g.cpu().double(), w, rtol=tolerance, atol=tolerance, msg=lambda m: f"{name}: {m}")  # noqa: B023

    def backward_shapes():
        derivative((2, 2, 65, 33), (2, 2, 70, 33), 20)
        derivative((1, 2, 70, 16), (1, 2, 65, 16), 16, causal=True)
        derivative((1, 1, 5, 80), (1, 1, 130, 80), 48, causal=True)
        derivative((1, 8, 6, 16), (1, 2, 9, 16), 16)
        derivative((1, 1, 1, 256), (1, 1, 3, 256), 200)
        for dtype in (torch.float16, torch.bfloat16):
            derivative((1, 2, 33, 24), (1, 2, 40, 24), 24, dtype)
            derivative((1, 1, 65, 40), (1, 1, 70, 40), 24, dtype)
            derivative((1, 8, 1, 128), (1, 1, 200, 128), 128, dtype)

    def broadcast_gradient():
        """The gradient of a sum is expanded: every stride is 0."""
        qt, kt, vt, _ = inputs((1, 2, 70, 64), (1, 2, 65, 64), 64, torch.float16)
        q, k, v = (t.to(profile.device) for t in (qt, kt, vt))
        up = torch.ones((), dtype=q.dtype, device=q.device).expand(q.shape)
        out, lost, statistics = forward(q, k, v, None, None, 0.0, False, 0.3, True)
        got = backward(up, q, k, v, None, out, lost, statistics, None, 0.0, False, 0.3, False)
        wide = [t.double().requires_grad_() for t in (qt, kt, vt)]
        wants = torch.autograd.grad(reference.sdpa(*wide, scale=0.3).sum(), wide)
        for name, g, w in zip(("dq", "dk", "dv"), got, wants):
            torch.testing.assert_close(g.cpu().double(), w, rtol=2e-2, atol=2e-2, msg=lambda m: f"{name}: {m}")  # noqa: B023

    def backward_masks():
        for mask in ("bool", "float"):
            derivative((2, 2, 17, 8), (2, 2, 70, 8), 8, mask=mask)

    def dropped():
        """The weights that are kept, seen through values that are the unit matrix, are those of the random bits."""
        n, p = 70, 0.4
        q, k = (torch.randn(1, 2, n, 8, generator=torch.Generator().manual_seed(i)) for i in (1, 2))
        eye = torch.eye(n).expand(1, 2, n, n)
        seed = torch.tensor([-77], device=profile.device)
        given = [t.to(profile.device) for t in (q, k, eye)]
        out, lost, statistics = forward(*given, None, seed, p, False, 0.3, True)
        plain = torch.softmax(q.double() @ k.double().transpose(-1, -2) * 0.3, -1)
        keep = torch_level.kept(seed.cpu(), p, (1, 2, n, n))
        _compare(out, (plain * keep / (1 - p)).float(), "kept weights")
        up = torch.randn(1, 2, n, n, generator=torch.Generator().manual_seed(3))
        got = backward(up.to(profile.device), *given, None, out, lost, statistics, seed, p, False, 0.3, False)
        wide = [t.double().requires_grad_() for t in (q, k, eye.clone())]
        weights = torch.softmax(wide[0] @ wide[1].transpose(-1, -2) * 0.3, -1) * keep / (1 - p)
        for name, g, w in zip(("dq", "dk", "dv"), got, torch.autograd.grad(weights @ wide[2], wide, up.double())):
            _compare(g, w.float(), f"{name} under dropout")
        assert abs(keep.double().mean().item() - (1 - p)) < 5 * math.sqrt(p * (1 - p) / keep.numel())

    def dead_rows():
        mask = torch.ones(1, 1, 9, 70, dtype=torch.bool)
        mask[..., 3:, :] = False
        additive = torch.zeros(1, 1, 9, 70).masked_fill(~mask, -math.inf)
        q, k, v, up = inputs((1, 1, 9, 8), (1, 1, 70, 8), 8)
        for m in (mask, additive):
            given = [t.to(profile.device) for t in (q, k, v, m, up)]
            out, lost, statistics = forward(*given[:4], None, 0.0, False, 0.3, True)
            assert not out[:, :, 3:].cpu().any() and out.cpu().isfinite().all() and statistics.cpu().isfinite().all()
            dq, dk, dv, _ = backward(given[4], *given[:4], out, lost, statistics, None, 0.0, False, 0.3, False)
            assert not dq[:, :, 3:].cpu().any() and all(t.cpu().isfinite().all() for t in (dq, dk, dv))

    look_at = f"ops/sdpa/kernel/{level}_level.py"
    yield Check("backward: shapes, groups, causal, dtypes", backward_shapes, look_at)
    yield Check("backward: an expanded gradient", broadcast_gradient, look_at)
    yield Check("backward: masks and their gradient", backward_masks, look_at)
    yield Check("dropout: which weights, and the same in the backward", dropped, look_at)
    yield Check("rows without keys", dead_rows, look_at)


def _kernel(level):
    """The kernel of a level behind the operator's own arguments."""

    def sdpa(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
        if attn_mask is not None:
            attn_mask = attn_mask.expand(*query.shape[:-1], key.shape[-2])
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        return KERNELS[level](query, key, value, attn_mask, None, 0.0, is_causal, scale, False)[0]

    return sdpa


class _Level(KernelLevel):
    def _case(self, kernel, case, profile):
        """Values within the tolerances of attention; unwritten elements by two poisons."""
        first = self._call(kernel, case, profile, 0x5A)
        second = self._call(kernel, case, profile, 0xA5)
        _compare(first, self.reference(*case.arguments("cpu"), **case.kwargs), case.name)
        assert torch.equal(first.cpu(), second.cpu()), "the same input gave two results"


LEVEL = _Level(
    OPERATOR, reference.sdpa, CASES, exact=False, kernels={level: _kernel(level) for level in KERNELS}, extra=_particular
)
test_kernel_level = prove
