"""Every Triton kernel compiles for chips that are not here: NVIDIA sm_80, sm_90, sm_100 and AMD gfx942. Compiled only."""

import re
import sys

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import MockTensor, create_function_from_signature

from opgraft.kernels import copy_engine
from opgraft.kernels.copy_engine import flat_copy_kernel, grouped_copy_kernel, tile_copy_kernel
from opgraft.ops.dropout.kernel.triton_level import masked_scale_kernel
from opgraft.ops.embedding.kernel.triton_level import (
    _gather_launch,
    chunk_sums_kernel,
    gather_kernel,
    narrow_kernel,
    row_bounds_kernel,
    row_sums_kernel,
)
from opgraft.ops.sdpa.kernel.flash import (
    attention_delta_kernel,
    attention_forward_kernel,
    attention_keys_backward_kernel,
    attention_queries_backward_kernel,
)

launch_module = sys.modules["opgraft.kernels.launch"]
TARGETS = {
    "sm_80": (GPUTarget("cuda", 80, 32), "cubin"),
    "sm_90": (GPUTarget("cuda", 90, 32), "cubin"),
    "sm_100": (GPUTarget("cuda", 100, 32), "cubin"),
    "gfx942": (GPUTarget("hip", "gfx942", 64), "hsaco"),
}


def flat(dst, src, boolean=False):
    return flat_copy_kernel, (dst, src, "i64"), dict(BOOL=boolean, WIDE=True, BLOCK=1024)


def tile(dst, src, rank, wide, p, q, one_p=False, one_q=False):
    index = "i64" if wide else "i32"
    dims = (index,) * max(rank, 1)
    given = (dst, src, *(index,) * 6, "i32", "i32", dims, dims, dims * 3)
    return tile_copy_kernel, given, dict(RANK=rank, ONE_P=one_p, ONE_Q=one_q, BOOL=False, WIDE=wide, BLOCK_P=p, BLOCK_Q=q)


def grouped(dst, src, ranks, wide, p, q, turned=True):
    """``ranks``: dimensions along p, along q, and outside the tile."""
    index = "i64" if wide else "i32"
    dims = [(index,) * max(rank * per, 1) for rank in ranks for per in (1, 1, 3)]
    constants = dict(zip(("RANK_P", "RANK_Q", "RANK"), ranks), TURNED=turned, BOOL=False, WIDE=wide, BLOCK_P=p, BLOCK_Q=q)
    return grouped_copy_kernel, (dst, src, *(index,) * 4, *dims), constants


def dropout(dtype, rank, wide=True):
    index = ("i64" if wide else "i32",) * max(rank, 1)
    arguments = (dtype, dtype, "*i64", index[0], "i32", "fp32", "fp32", index * 3, index, index)
    return masked_scale_kernel, arguments, dict(RANK=rank, WIDE=wide, BLOCK=1024)


FOUR = ("i64",) * 4
NUMBERS = ("i32", "i32", "i32", "i32", "i32", "fp32", "i32", "fp32")


def attention(kernel, dtype, mask, block, **constants):
    """A launch of the forward or of one of the backward kernels, as wide heads and long tables need it."""
    mask_pointer = {0: dtype, 1: "*i8", 2: "*fp32"}[mask]
    constants = (
        dict(CAUSAL=True, MASK=mask, DROPOUT=mask == 2, BLOCK_M=32, BLOCK_N=32, BLOCK_E=block, BLOCK_EV=block) | constants
    )
    if kernel is attention_forward_kernel:
        constants["TRAINING"] = mask != 1
        given = (dtype, dtype, "*fp32", dtype, dtype, dtype, mask_pointer, "*i64", *(FOUR,) * 5, *NUMBERS, "i32", "i32")
    elif kernel is attention_keys_backward_kernel:
        given = (*(dtype,) * 5, mask_pointer, "*i64", dtype, "*fp32", "*fp32", *(FOUR,) * 7, *NUMBERS, "i32", "i32")
    else:
        given = (*(dtype,) * 5, mask_pointer, "*i64", dtype, "*fp32", "*fp32", *(FOUR,) * 6, *NUMBERS, "i32", "i32")
        constants["MASK_GRAD"] = mask == 2
    return kernel, given, constants


def sums(kernel, dtype, wide, **constants):
    strides = ("i64", "i64")
    if kernel is chunk_sums_kernel:
        given = (wide, dtype, "*i64", "*i32", "i32", *strides, "i32")
    else:
        given = (dtype, dtype, wide, "*i64", "*i64", "*i64", "i32", *strides, "i32", "i64")
    return kernel, given, dict(CHUNK=32, BLOCK=1024, **constants)


LAUNCHES = {
    "attention bf16, head dim 128": attention(attention_forward_kernel, "*bf16", 0, 128),
    "attention fp16, bool mask": attention(attention_forward_kernel, "*fp16", 1, 64),
    "attention fp32, float mask, dropout": attention(attention_forward_kernel, "*fp32", 2, 64),
    "attention's keys bf16, head dim 256": attention(attention_keys_backward_kernel, "*bf16", 0, 256),
    "attention's keys fp32, float mask, dropout": attention(attention_keys_backward_kernel, "*fp32", 2, 32),
    "attention's queries bf16": attention(attention_queries_backward_kernel, "*bf16", 0, 128),
    "attention's queries fp32, gradient of the mask": attention(attention_queries_backward_kernel, "*fp32", 2, 32),
    "attention's delta": (
        attention_delta_kernel,
        ("*fp32", "*bf16", "*bf16", "*bf16", FOUR, FOUR, "i32", "i32", "i32"),
        dict(BLOCK_M=64, BLOCK_EV=128),
    ),
    "gather of 16-bit words": (gather_kernel, ("*i16", "*i16", "*i64", *("i64",) * 4, "i32", "i32"), dict(BLOCK=1024, PER=2)),
    "narrowed indices": (narrow_kernel, ("*i16", "*i64", "i32", "i32"), dict(BLOCK=1024)),
    "bounds of rows": (row_bounds_kernel, ("*i64", "*i64", "*i32", "i32", "i32"), dict(BLOCK=1024)),
    "sums of chunks bf16": sums(chunk_sums_kernel, "*bf16", "*fp32"),
    "sums of chunks fp64": sums(chunk_sums_kernel, "*fp64", "*fp64"),
    "sums of rows bf16": sums(row_sums_kernel, "*bf16", "*fp32", BY_COUNT=False),
    "sums of rows fp64, by count": sums(row_sums_kernel, "*fp64", "*fp64", BY_COUNT=True),
    "flat words": flat("*i64", "*i64"),
    "flat bf16 to fp32": flat("*fp32", "*bf16"),
    "flat fp64 to fp16": flat("*fp16", "*fp64"),
    "flat fp32 to int8": flat("*i8", "*fp32"),
    "flat bf16 to bool": flat("*i8", "*bf16", True),
    "tiles of 16-bit words": tile("*i16", "*i16", 0, False, 128, 128),
    "tiles of bytes, 64-bit": tile("*i8", "*i8", 2, True, 128, 128),
    "tiles fp64 to bf16": tile("*bf16", "*fp64", 1, True, 32, 64),
    "tiles of a broadcast row": tile("*i16", "*i16", 1, False, 16, 2048, one_p=True),
    "tiles of a broadcast column": tile("*fp32", "*bf16", 6, True, 4, 1024, one_q=True),
    "groups of small dimensions": grouped("*i16", "*i16", (3, 2, 1), False, 64, 64),
    "groups of bytes, 64-bit": grouped("*i8", "*i8", (4, 4, 0), True, 128, 64),
    "groups of rows, fp32 to bf16": grouped("*bf16", "*fp32", (2, 2, 4), False, 8, 128, turned=False),
    "groups along one side": grouped("*i64", "*i64", (0, 3, 1), False, 1, 256, turned=False),
    "dropout bf16, dense": dropout("*bf16", 0, False),
    "dropout bf16": dropout("*bf16", 1),
    "dropout fp64": dropout("*fp64", 2),
    "dropout fp16, 32-bit": dropout("*fp16", 4, False),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("launch", LAUNCHES)
def test_compiles(launch, target):
    kernel, types, constants = LAUNCHES[launch]
    signature = dict(zip(kernel.arg_names, types)) | dict.fromkeys(constants, "constexpr")
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    machine, binary = TARGETS[target]
    compiled = triton.compile(ASTSource(kernel, signature, places), target=machine)
    assert len(compiled.asm[binary]) > 0


def _with_launch(launch, dtypes):
    """The kernel compiled for sm_90 as its :class:`Launch` runs it, with tensors of these dtypes."""
    kernel, backend = launch.kernel, make_backend(TARGETS["sm_90"][0])
    words = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    tensors = [MockTensor(words[w] if w else d) for d, w in zip(dtypes, (*launch.words, *[None] * len(dtypes)))]
    binder = create_function_from_signature(kernel.signature, kernel.params, backend)
    given, specialization, options = binder(*tensors, *launch.numbers, **launch.meta)
    options, signature, constants, attributes = kernel._pack_args(backend, launch.meta, given, specialization, options)
    source = ASTSource(kernel, signature, constants, attributes)
    return triton.compile(source, target=TARGETS["sm_90"][0], options=options.__dict__)


def _launches():
    cuda = torch.device("cuda", 0)  # planning needs no such device
    copies = {
        "flat": ((256,), (1,), (1,), torch.bfloat16, torch.bfloat16),
        "cast": ((1000,), (1,), (1,), torch.float32, torch.bfloat16),
        "transposed": ((33, 65), (65, 1), (1, 33), torch.bfloat16, torch.bfloat16),
        "of five dimensions": ((4, 5, 6, 7, 3), (630, 126, 21, 3, 1), (1, 4, 20, 120, 840), torch.bfloat16, torch.bfloat16),
        "of one element": ((1,), (1,), (1,), torch.int8, torch.float64),
        "past 32 bits": ((3, 2**30), (2**31, 1), (2**31, 1), torch.float16, torch.float32),
    }
    for name, (shape, to, frm, dtype, source) in copies.items():
        dst, src = (copy_engine.Geometry(t, shape, s, cuda) for t, s in ((dtype, to), (source, frm)))
        yield f"copy {name}", copy_engine._launch(dst, src, 0), (dtype, source)
    for rows, count in ((100, 7), (2**33, 1)):
        weight = torch.empty(rows, 48, dtype=torch.bfloat16, device="meta")
        yield f"gather of {count} from {rows}", _gather_launch(weight, count), (torch.bfloat16, torch.bfloat16, torch.int64)


@pytest.mark.parametrize("name, launch, dtypes", [pytest.param(*given, id=given[0]) for given in _launches()])
def test_what_is_launched_directly_has_the_kernels_parameters(name, launch, dtypes):
    """Their number and sizes as the compiled kernel declares them; after them Triton's two pointers to scratch memory."""
    compiled = _with_launch(launch, dtypes)
    entry = compiled.asm["ptx"].partition(".entry")[2].partition(")")[0]
    declared = [int(bits) // 8 for bits in re.findall(r"\.param\s+\.[a-z]+?(\d+)", entry)]
    operands = list(range(len(dtypes)))
    given = launch_module._parameters(compiled, launch.kernel, operands, launch.numbers)
    assert [8 if isinstance(p, int) else len(p) for p in given] + [8, 8] == declared
    assert given[: len(operands)] == operands


def test_every_kernel_is_here():
    """A kernel that is added must be added to LAUNCHES."""
    import importlib
    import pkgutil

    import opgraft

    found = set()
    for module in pkgutil.walk_packages(opgraft.__path__, "opgraft."):
        if ".kernel" in module.name:
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, triton.runtime.jit.JITFunction) and value.fn.__name__.endswith("_kernel"):
                    found.add(value.fn.__name__)
    assert found == {kernel.fn.__name__ for kernel, _, _ in LAUNCHES.values()}
