"""Every Triton kernel compiles for chips that are not here: NVIDIA sm_80, sm_90, sm_100 and AMD gfx942. Compiled only."""

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from opgraft.kernels.copy_engine import flat_copy_kernel, strided_copy_kernel
from opgraft.ops.dropout.kernel.triton_level import masked_scale_kernel

TARGETS = {
    "sm_80": (GPUTarget("cuda", 80, 32), "cubin"),
    "sm_90": (GPUTarget("cuda", 90, 32), "cubin"),
    "sm_100": (GPUTarget("cuda", 100, 32), "cubin"),
    "gfx942": (GPUTarget("hip", "gfx942", 64), "hsaco"),
}


def flat(dst, src, boolean=False):
    return flat_copy_kernel, (dst, src, "i64"), dict(BOOL=boolean, WIDE=True, BLOCK=1024)


def strided(dst, src, rank, wide):
    index = "i64" if wide else "i32"
    dims = (index,) * rank
    return strided_copy_kernel, (dst, src, index, dims, dims, dims), dict(RANK=rank, BOOL=False, WIDE=wide, BLOCK=1024)


def dropout(dtype, rank, wide=True):
    index = ("i64" if wide else "i32",) * rank
    arguments = (dtype, dtype, "*i64", index[0], "i64", "fp32", "fp32", index, index, index)
    return masked_scale_kernel, arguments, dict(RANK=rank, WIDE=wide, BLOCK=1024)


LAUNCHES = {
    "flat words": flat("*i64", "*i64"),
    "flat bf16 to fp32": flat("*fp32", "*bf16"),
    "flat fp64 to fp16": flat("*fp16", "*fp64"),
    "flat fp32 to int8": flat("*i8", "*fp32"),
    "flat bf16 to bool": flat("*i8", "*bf16", True),
    "strided rank 3, 32-bit": strided("*i16", "*i16", 3, False),
    "strided rank 8, 64-bit": strided("*i8", "*i8", 8, True),
    "strided fp32 to bf16": strided("*bf16", "*fp32", 2, True),
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
