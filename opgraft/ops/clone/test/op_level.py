"""clone at the op level: ``x.clone()`` in every mode, memory formats, lazy bits, huge tensors."""

import torch

from opgraft.ops.clone.register import OPERATOR
from opgraft.ops.clone.test import kernel_level
from opgraft.verify import Case, Check, OpLevel, TensorSpec, prove

CASES = [
    *kernel_level.CASES,
    Case("channels_last of rank 3, refused", (TensorSpec((2, 3, 4)),), {"memory_format": torch.channels_last}),
    Case("rank 9 after collapsing", (TensorSpec((2,) * 9, strides=tuple(3**i for i in range(9))),), native="rank over 8"),
]


def _lazy_bits(profile):
    def run():
        z = torch.tensor([[1 + 2j, 3 - 4j], [5 + 6j, -7 + 8j]])
        with OPERATOR.register_a1(profile.dispatch_key, platform=profile.name) as registration:
            conj, neg = (t.clone() for t in (z.to(profile.device).conj(), z.to(profile.device).conj().imag))
            assert registration.handed_to_native == {"conj or neg bit set": 2}, registration.handed_to_native
        assert torch.equal(conj.cpu().resolve_conj(), z.conj().resolve_conj()), "clone of a conj view lost the bit"
        assert torch.equal(neg.cpu().resolve_neg(), -z.imag), "clone of a neg view lost the bit"

    yield Check("conj and neg bits", run, "opgraft/kernels/copy_engine.py, `unsupported`")


def _beyond_2g(profile):
    def run():
        with OPERATOR.register_a1(profile.dispatch_key, platform=profile.name):
            n = 2**31 + 40
            x = torch.zeros(n, dtype=torch.uint8, device=profile.device)
            x[-20:] = torch.arange(1, 21, dtype=torch.uint8, device=profile.device)
            y = x.clone()
            assert y[-20:].tolist() == list(range(1, 21)) and y[2**31 - 1].item() == 0, "the last elements are wrong"
            del x, y
            rows = torch.empty_strided((3, 4), (2**31 + 8, 1), dtype=torch.uint8, device=profile.device)
            rows.copy_(torch.arange(12, dtype=torch.uint8, device=profile.device).view(3, 4))
            assert rows.clone().flatten().tolist() == list(range(12)), "an offset past 2^31 was read wrongly"

    yield Check("past 2^31 elements and offsets", run, "the index width in opgraft/kernels/copy_engine.py")


def _particular(profile):
    yield from _lazy_bits(profile)
    yield from _beyond_2g(profile)


LEVEL = OpLevel(OPERATOR, torch.clone, CASES, sample=Case("sample", (TensorSpec((3, 5)),)), storage="new", extra=_particular)
test_op_level = prove
