"""dropout in one pass: each element read once, written once; the mask lives in registers.

The random bits of an element depend on the seed and its row-major index alone, so they do not depend on the launch
geometry. Index width: 32 bits for offsets where they fit; the counter is always 64 bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from opgraft.kernels import Launch, Output, block_size, new_like, prepared
from opgraft.kernels.copy_engine import offsets_of
from opgraft.kernels.copy_plan import divisors, needs_64_bit, plan
from opgraft.kernels.geometry import like_strides
from opgraft.kernels.philox import draw_seed, random_bits, threshold
from opgraft.memo import kept

COMPILED_BLOCK = 1024


@triton.jit(do_not_specialize=["least"])
def masked_scale_kernel(
    out, x, seed, numel, least, scale, scale_rest, divisors, out_strides, x_strides,
    RANK: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[i] = x[i] * (scale if bits(seed, i) >= least else 0), over RANK dimensions, outermost first; RANK 0 is a dense run."""
    block = tl.program_id(0)
    if WIDE:
        block = block.to(tl.int64)
    linear = block * BLOCK + tl.arange(0, BLOCK)
    mask = linear < numel
    out_offsets, x_offsets = linear, linear
    if RANK > 0:
        out_offsets, x_offsets = offsets_of(linear, divisors, out_strides, x_strides, RANK, WIDE)
    value = tl.load(x + x_offsets, mask=mask)
    keep = random_bits(tl.load(seed), block.to(tl.int64) * (BLOCK // 8) + tl.arange(0, BLOCK // 8), [BLOCK]) >= least
    if x.dtype.element_ty == tl.float64:
        factor = tl.zeros([BLOCK], tl.float64) + scale + scale_rest  # 1/(1-p) in fp64: numbers reach a kernel as fp32
        result = value * tl.where(keep, factor, 0.0)
    else:
        result = (value.to(tl.float32) * tl.where(keep, scale, 0.0)).to(out.dtype.element_ty)
    tl.store(out + out_offsets, result, mask=mask)


def masked_scale(x: torch.Tensor, seed: torch.Tensor, p: float) -> torch.Tensor:
    """``x`` times 1/(1-p) where the random bits of an element's index reach p·2³², else times 0.

    Args:
        x: floating-point, any strides.
        seed: int64 of one element, on ``x``'s device.
        p: between 0 and 1, both excluded.

    Returns:
        A new tensor with the strides native gives.
    """
    out = new_like(x)
    _launch(x, out.stride(), p)(out, x, seed)
    return out


_launches: dict = {}


def _launch(x: torch.Tensor, strides: tuple[int, ...], p: float) -> Launch:
    """The launch for an output of these strides."""
    return kept(_launches, (x.dtype, x.shape, strides, x.stride(), p, x.device), _planned, x, strides, p)


def _planned(x: torch.Tensor, strides: tuple[int, ...], p: float) -> Launch:
    steps = plan(x.shape, strides, x.stride(), row_major=True)
    numel = x.numel()
    block = block_size(numel, x.device, COMPILED_BLOCK)
    factor = 1 / (1 - p)
    scale = torch.tensor(factor, dtype=torch.float32, device="cpu").item()  # the launcher passes numbers as fp32
    return Launch(
        masked_scale_kernel, (triton.cdiv(numel, block),), numel, threshold(p), scale, factor - scale, divisors(steps.sizes), steps.dst_strides,
        steps.src_strides,
        RANK=0 if steps.flat else len(steps.sizes), WIDE=needs_64_bit(steps, numel + block), BLOCK=block,
    )  # fmt: skip


@prepared
def dropout(input: torch.Tensor, p: float, train: bool):
    """Dropout of a new tensor, with a seed drawn from the device's default generator."""
    strides, device = like_strides(input, torch.preserve_format), input.device
    out, launch = Output(tuple(input.shape), strides, input.dtype, device), _launch(input, strides, p)

    def run(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        result = out.allocate()
        launch(result, input, draw_seed(device))
        return result

    return run


@prepared
def dropout_(self: torch.Tensor, p: float, train: bool):
    """Dropout in place."""
    device, launch = self.device, _launch(self, self.stride(), p)

    def run(self: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        launch(self, self, draw_seed(device))
        if not self.is_inference():
            torch.autograd.graph.increment_version(self)
        return self

    return run
