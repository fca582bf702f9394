"""embedding at the kernel level: the gather bit for bit, the backward in every shape of segment."""

import torch

from opgraft.kernels import GuardedOutputs
from opgraft.ops.embedding import reference
from opgraft.ops.embedding.register import OPERATOR
from opgraft.verify import Case, Check, KernelLevel, TensorSpec, prove
from opgraft.verify.compare import assert_same

DTYPES = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "uint8", "bool")


def _case(rows, columns, shape, dtype="float32", index="int64", golden=False, **table):
    indices = TensorSpec(shape, index, seed=7, below=rows)
    name = f"{rows}x{columns} {dtype} at {'x'.join(map(str, shape)) or '0-dim'} {index}{' ' if table else ''}{', '.join(table)}"
    return Case(name, (TensorSpec((rows, columns), dtype, **table), indices), golden=golden)


CASES = [
    *(_case(13, 7, (5, 3), dtype, golden=dtype in ("float32", "bfloat16")) for dtype in DTYPES),
    *(_case(13, columns, (65,)) for columns in (1, 64, 1023, 4097)),
    *(_case(3, 33, shape, index="int32") for shape in ((), (1,), (2, 3, 4), (1025,))),
    _case(13, 7, (5,), strides=(1, 13)),
    _case(13, 7, (5,), strides=(16, 2), offset=3),
    _case(13, 7, (5,), strides=(0, 1)),
]


def _particular(profile):
    backward = OPERATOR.overrides[1].kernel_for(profile)

    def compare(indices, columns, rows, dtype=torch.float32, padding_idx=-1, by_count=False, grad=None):
        if grad is None:
            grad = torch.randn(*indices.shape, columns, generator=torch.Generator().manual_seed(3)).to(dtype)
        results = []
        for fill in (0x5A, 0xA5):
            with GuardedOutputs(fill) as outputs:
                results.append(backward(grad.to(profile.device), indices.to(profile.device), rows, padding_idx, by_count).cpu())
            outputs.check()
        want = reference.embedding_dense_backward(grad, indices, rows, padding_idx, by_count)
        assert torch.equal(*results), "the same input gave two results"
        tolerance = {torch.float32: 1e-5, torch.float64: 1e-12}.get(dtype, 1e-2)
        torch.testing.assert_close(results[0], want, rtol=tolerance, atol=tolerance * max(1, indices.numel() ** 0.5 / 4))

    def segments():
        """Runs of equal indices that start and end before, at and after the edges of chunks."""
        for lengths in ((1, 1), (31, 1), (32,), (33,), (5, 64, 7), (31, 33, 1), (1, 31, 32, 96, 3), (200,)):
            indices = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
            indices = indices[torch.randperm(len(indices), generator=torch.Generator().manual_seed(1))]
            compare(indices, 5, len(lengths) + 2)

    def forms():
        indices = torch.randint(9, (41, 3), generator=torch.Generator().manual_seed(2))
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            compare(indices, 33, 9, dtype)
        compare(indices, 33, 9, padding_idx=4)
        compare(indices.t(), 17, 9, by_count=True)
        compare(indices.to(torch.int32), 2050, 20, padding_idx=0, by_count=True)
        compare(torch.tensor(5), 3, 9)
        compare(indices, 4, 9, grad=torch.ones(()).expand(41, 3, 4))
        compare(indices, 4, 9, grad=torch.randn(4, 3, 41).permute(2, 1, 0))

    def accumulation():
        """4,096 ones in bf16: a sum in bf16 would stop at 256."""
        indices = torch.zeros(4096, dtype=torch.int64)
        grad = torch.ones(4096, 2, dtype=torch.bfloat16)
        got = backward(grad.to(profile.device), indices.to(profile.device), 2, -1, False)
        assert_same(got, torch.tensor([[4096.0, 4096.0], [0.0, 0.0]], dtype=torch.bfloat16), "sum of ones")

    def out_of_range():
        if profile.device_type == "cuda":
            return {"not run": "a device-side assertion ends the process's CUDA context; see op level, in a process of its own"}
        table = torch.randn(3, 5).to(profile.device)
        for bad in (-1, 3, 2**40):
            try:
                OPERATOR.overrides[0].kernel_for(profile)(table, torch.tensor([0, bad], device=profile.device))
            except IndexError as error:
                assert "out of range" in str(error), error
            else:
                raise AssertionError(f"index {bad} of a table of 3 rows must be an IndexError")
        return {}

    look_at = "ops/embedding/kernel/triton_level.py"
    yield Check("backward: segments and chunks", segments, look_at)
    yield Check("backward: dtypes, strides, padding, frequencies", forms, look_at)
    yield Check("backward: accumulates in fp32", accumulation, look_at)
    yield Check("an index out of range", out_of_range, look_at)


LEVEL = KernelLevel(OPERATOR, reference.embedding, CASES, extra=_particular)
test_kernel_level = prove
