"""Counter-based random numbers: Philox4x32-10, the same for a seed and an index on every device and launch geometry.

The algorithm is that of Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011); Triton has it as
``tl.philox``. Element i of a tensor (row-major) uses counter i and the first of the four words.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_MULTIPLIERS, _WEYL = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF


@triton.jit
def random_bits(seed, index):
    """32 random bits for each index (int64), as int64 from 0 to 2**32 - 1. ``seed`` is an int64 scalar."""
    counter = index.to(tl.int64)
    zero = (counter * 0).to(tl.uint32)
    low = (counter & 0xFFFFFFFF).to(tl.uint32)
    high = (counter >> 32).to(tl.uint32)
    bits, _, _, _ = tl.philox(seed, low, high, zero, zero)
    return bits.to(tl.uint32, bitcast=True).to(tl.int64)


def random_bits_torch(seed: torch.Tensor, numel: int) -> torch.Tensor:
    """The same bits for the indexes 0 to ``numel`` - 1, in plain PyTorch.

    Args:
        seed: an int64 tensor of one element; its device is the result's.
        numel: how many.

    Returns:
        int64 of shape (numel,), from 0 to 2**32 - 1.
    """
    index = torch.arange(numel, dtype=torch.int64, device=seed.device)
    zero = torch.zeros_like(index)
    c0, c1, c2, c3 = index & _LOW, (index >> 32) & _LOW, zero, zero
    k0, k1 = (seed & _LOW).reshape(()), (seed >> 32 & _LOW).reshape(())
    for _ in range(10):
        high0, low0 = _multiply(c0, _MULTIPLIERS[0])
        high1, low1 = _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return c0


def _multiply(value: torch.Tensor, by: int) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low 32 bits of a product of two 32-bit numbers, without leaving int64."""
    low = value * (by & 0xFFFF)  # below 2**48
    high = value * (by >> 16)  # below 2**48
    middle = high + (low >> 16)  # below 2**49
    return middle >> 16 & _LOW, (middle & 0xFFFF) << 16 | low & 0xFFFF


def draw_seed(device: torch.device) -> torch.Tensor:
    """A seed from the device's default generator: an int64 tensor of one element on the device, not read by the host.

    ``torch.manual_seed`` makes it reproducible, each call moves the generator's state on, and a restored state
    replays it.
    """
    return torch.randint(-(2**63), 2**63 - 1, (1,), dtype=torch.int64, device=device)
