"""copy_ at the kernel level: every pair of dtypes, broadcasting, destinations of every layout, special values."""

import torch

from opgraft.ops.copy_.reference import copy_
from opgraft.ops.copy_.register import OPERATOR, copy__aten
from opgraft.verify import Case, Check, KernelLevel, TensorSpec, prove
from opgraft.verify.inputs import LAYOUTS, layout

REAL = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
BITS = ("complex64", "complex128", "float8_e4m3fn", "float8_e5m2")


def _pair(name, dst: TensorSpec, src: TensorSpec, **kwargs) -> Case:
    return Case(name, (dst, TensorSpec(src.shape, src.dtype, src.strides, src.offset, seed=77)), **kwargs)


def _layouts():
    for shape in ((5, 7), (2, 3, 4, 5), (33, 65)):
        for name in LAYOUTS:
            geometry = layout(shape, name)
            if geometry and name != "expanded":
                yield _pair(
                    f"into {name} {shape}", TensorSpec(shape, "float32", *geometry), TensorSpec(shape), golden=shape == (5, 7)
                )
                yield _pair(
                    f"from {name} {shape} with a cast", TensorSpec(shape, "bfloat16"), TensorSpec(shape, "float32", *geometry)
                )


def _small_dimensions():
    """Copies whose tiles take in several dimensions: transposing, keeping rows, broadcasting, with gaps in the source."""
    sources = {
        "turned": ((4, 5, 6, 7, 3), (1, 420, 4, 24, 1260), 0),
        "turned, gaps": ((5, 11, 6, 3, 13), (1, 6, 1100, 400, 68), 3),
        "short runs": ((84, 29, 6, 20, 3), (21, 1764, 51156, 1, 306936), 0),
        "rows": ((9, 7, 53, 6), (742, 6678, 14, 1), 0),
        "broadcast inside": ((7, 5, 6, 9, 3), (1, 0, 7, 42, 0), 1),
    }
    for name, geometry in sources.items():
        for src, dst in (
            ("int8", "int8"),
            ("bfloat16", "bfloat16"),
            ("float32", "float16"),
            ("float64", "float64"),
            ("int64", "bool"),
        ):
            yield Case(
                f"small dimensions, {name}, {src} to {dst}",
                (TensorSpec(geometry[0], dst), TensorSpec(geometry[0], src, *geometry[1:])),
            )
    turned = sources["turned"]
    yield Case(
        "small dimensions, complex128", (TensorSpec(turned[0], "complex128"), TensorSpec(turned[0], "complex128", *turned[1:]))
    )
    yield Case(
        "small dimensions into gaps",
        (TensorSpec(turned[0], "float32", (1300, 250, 40, 5, 1), 2), TensorSpec(turned[0], "float32", *turned[1:])),
    )


CASES = [
    *(_pair(f"{src} to {dst}", TensorSpec((3, 67), dst), TensorSpec((3, 67), src)) for src in REAL for dst in REAL),
    *(_pair(f"{dtype} bits", TensorSpec((3, 67), dtype), TensorSpec((3, 67), dtype, (1, 3))) for dtype in BITS),
    *_layouts(),
    *_small_dimensions(),
    _pair("broadcast a row", TensorSpec((5, 7)), TensorSpec((7,)), golden=True),
    _pair("broadcast a column and cast", TensorSpec((4, 5, 7), "float64"), TensorSpec((5, 1)), golden=True),
    _pair("broadcast a 0-dim", TensorSpec((1025,)), TensorSpec((), "int32")),
    _pair("empty", TensorSpec((0, 3)), TensorSpec((0, 3))),
    _pair("0-dim", TensorSpec(()), TensorSpec(())),
    _pair("expanded source", TensorSpec((6, 5)), TensorSpec((6, 5), "float32", (0, 1))),
]  # fmt: skip


def _special_values(profile):
    nan, inf = float("nan"), float("inf")
    special = torch.tensor([nan, inf, -inf, 0.0, -0.0, 0.5, -0.5, 1e-40, 3.4e38, 65504.0, 65520.0, 1.00390625, 1.01171875])

    def run():
        for dtype in (torch.bool, torch.float16, torch.bfloat16, torch.float64, torch.float32):
            for source in (special, special.double(), special.bfloat16(), special.half()):
                got = copy__aten(torch.empty(len(special), dtype=dtype, device=profile.device), source.to(profile.device)).cpu()
                want = source.to(dtype)
                assert torch.equal(got.isnan(), want.isnan()) and torch.equal(got.nan_to_num(), want.nan_to_num()), (
                    source.dtype,
                    dtype,
                    got,
                    want,
                )
                assert torch.equal(got.double().signbit()[3:5], want.double().signbit()[3:5])
        whole = torch.tensor([-1.9, -0.9, 0.9, 1.9, 126.7, 255.0, -129.0])
        for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64):
            got = copy__aten(torch.empty(7, dtype=dtype, device=profile.device), whole.to(profile.device)).cpu()
            assert torch.equal(got, whole.to(dtype)), (dtype, got)

    yield Check("NaN, infinities, rounding, truncation", run, "`convert` in opgraft/kernels/copy_engine.py")


LEVEL = KernelLevel(OPERATOR, copy_, CASES, extra=_special_values)
test_kernel_level = prove
