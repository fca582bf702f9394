"""copy_ at the op level: ``y.copy_(x)`` in every mode; what native refuses or moves between devices."""

import warnings

import torch

from opgraft.ops.copy_.register import OPERATOR
from opgraft.ops.copy_.test import kernel_level
from opgraft.verify import Case, Check, OpLevel, TensorSpec, prove
from opgraft.verify.compare import assert_same


def _into_a_fresh_tensor(dst, src):
    """copy_ changes its first argument; a leaf that asks for a gradient is not changed in place."""
    return (dst * 1).copy_(src) if dst.requires_grad else dst.copy_(src)


A, B = TensorSpec((3, 5)), TensorSpec((3, 5), seed=5)
CASES = [
    *kernel_level.CASES,
    Case("shapes that do not broadcast", (A, TensorSpec((4, 5)))),
    Case("source of higher rank", (A, TensorSpec((2, 3, 5)))),
    Case("into an expanded view", (TensorSpec((5, 5), "float32", (0, 1)), TensorSpec((5, 5)))),
    Case("complex to real", (A, TensorSpec((3, 5), "complex64")), native="cast torch.complex64 to torch.float32"),
    Case("real to complex", (TensorSpec((3, 5), "complex128"), B), native="cast torch.float32 to torch.complex128"),
    Case("fp8 cast", (TensorSpec((3, 5), "float8_e4m3fn"), B), native="cast torch.float32 to torch.float8_e4m3fn"),
]


def _particular(profile):
    device = profile.device

    def registered():
        return OPERATOR.register_a1(profile.dispatch_key, platform=profile.name)

    def between_devices():
        x = torch.arange(6.0).view(2, 3)
        with registered() as registration:
            there = torch.zeros(2, 3, device=device)
            there.copy_(x, non_blocking=True)
            back = torch.zeros(2, 3).copy_(there)
            assert torch.equal(back, x)
            handed = registration.handed_to_native
        if profile.device_type != "cpu":
            assert handed == {f"between {profile.device_type} and cpu": 1, f"between cpu and {profile.device_type}": 1}, handed

    def numbers():
        with registered() as registration:
            x = torch.zeros(4, device=device)
            x[1] = 32
            x[2:] = True
            assert registration.hits >= 1, "x[1] = 32 must reach copy_"  # x[2:] = True may be a fill
            assert x.tolist() == [0, 32, 1, 1]

    def lazy_bits():
        z = torch.tensor([[1 + 2j, 3 - 4j], [5 + 6j, -7 + 8j]])
        with registered():
            d = z.to(device)
            out = torch.zeros(2, 2, dtype=z.dtype, device=device).copy_(d.conj())
            into = torch.zeros(2, 2, dtype=z.dtype, device=device)
            into.conj().copy_(d)
            negated = torch.zeros(2, 2, device=device).copy_(d.conj().imag)
            real = torch.zeros(2, 2, device=device)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                torch._C._set_warnAlways(True)
                real.copy_(d)
                torch._C._set_warnAlways(False)
        assert torch.equal(out.cpu(), torch.conj_physical(z)) and torch.equal(into.cpu(), torch.conj_physical(z))
        assert torch.equal(negated.cpu(), -z.imag) and torch.equal(real.cpu(), z.real)
        assert any("discards the imaginary part" in str(w.message) for w in caught), "complex to real must warn as native does"

    def overlap():
        with registered():
            x = torch.arange(64.0, device=device)
            x.copy_(x)
            assert torch.equal(x.cpu(), torch.arange(64.0))
            try:
                x[1:].copy_(x[:-1])
            except RuntimeError:
                assert torch.equal(x.cpu(), torch.arange(64.0)), "refused, so nothing may be written"
            else:
                assert torch.equal(x.cpu(), torch.cat([torch.zeros(1), torch.arange(63.0)]))
            x[:32].copy_(x[32:])  # one storage, no overlap
            assert torch.equal(x.cpu(), torch.arange(32.0, 64.0).repeat(2))

    def autograd():
        with registered():
            src = torch.randn(3, 1, device=device, requires_grad=True)
            base = torch.randn(2, 3, 4, dtype=torch.float64, device=device, requires_grad=True)
            dst = base * 1
            before = dst._version
            dst[:, 1:].copy_(src[1:])
            assert dst._version == before + 1, "the version counter must move once"
            dst.sum().backward()
            assert src.grad.dtype is torch.float32 and src.grad.flatten().tolist() == [0, 8, 8]
            assert_same(
                base.grad[:, 1:], torch.zeros(2, 2, 4, dtype=torch.float64), "gradient of what was overwritten", strides=False
            )
            leaf = torch.zeros(2, device=device, requires_grad=True)
            try:
                leaf.copy_(torch.ones(2, device=device))
            except RuntimeError as error:
                assert "leaf" in str(error)
            else:
                raise AssertionError("copy_ into a leaf that needs a gradient must be refused")
            with torch.no_grad():
                leaf.copy_(torch.ones(2, device=device))
            assert leaf._version == 1

    look_at = "ops/copy_/register.py, `unsupported`"
    yield Check("host and device", between_devices, look_at)
    yield Check("a number as source", numbers, "opgraft/a1/python_path.py and opgraft/csrc/call.h: numbers stay tensors")
    yield Check("conj and neg bits, complex to real", lazy_bits, look_at)
    yield Check("overlap and self-copy", overlap, look_at)
    yield Check("broadcast gradient, leaf guard, version", autograd, "PyTorch's CopyBackwards must stay in charge")


LEVEL = OpLevel(
    OPERATOR,
    _into_a_fresh_tensor,
    CASES,
    storage="same",
    sample=Case("sample", (A, B)),
    without={"vmap": "the sample's batched destination would be an expanded view", "func.grad": "in place on its argument"},
    rewritten=frozenset({"compile"}),
    extra=_particular,
)
test_op_level = prove
