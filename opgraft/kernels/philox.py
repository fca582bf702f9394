"""Counter-based random numbers: Philox4x32-10, the same for a seed and an index on every device and launch geometry.

The algorithm is that of Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011); Triton has it as
``tl.philox``. One evaluation gives four words of 32 bits; they serve eight indexes: index i has word (i mod 8) // 2 of counter
i // 8, turned by 16 bits if i is odd. So each number has 32 random bits, and a threshold on it the exact probability; two
neighbours share their bits in opposite halves, which leaves them independent but for 2^-16. At four indexes an
evaluation dropout was bound by arithmetic on an H200 (facts/h200.md), at eight by memory (docs/h200-notes.md).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_MULTIPLIERS, _WEYL = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF
PER = 8


@triton.jit
def random_bits(seed, groups, SHAPE: tl.constexpr):
    """32 random bits for the eight indexes of each group (int64, index // 8), as int32.

    ``seed`` is an int64 scalar; SHAPE is the shape of ``groups`` with its last size times eight.
    """
    groups = groups.to(tl.int64)
    low = (groups & 0xFFFFFFFF).to(tl.uint32)
    high = (groups >> 32).to(tl.uint32)
    zero = low ^ low
    first, second, third, fourth = tl.philox(seed, low, high, zero, zero)
    words = tl.join(tl.join(first, third), tl.join(second, fourth)).to(tl.uint32, bitcast=True)
    turned = (words << 16) | (words >> 16)
    return tl.reshape(tl.join(words, turned), SHAPE).to(tl.int32, bitcast=True)


def threshold(p: float) -> int:
    """What an element's :func:`random_bits` must reach for it to be kept with probability 1 - p."""
    return min(round(p * 2**32), 2**32 - 1) - 2**31


def keeps(seed: torch.Tensor, numel: int, p: float) -> torch.Tensor:
    """Which of the indexes 0 to ``numel`` - 1 a seed keeps with probability 1 - p, in plain PyTorch.

    Args:
        seed: an int64 tensor of one element; its device is the result's.
        numel: how many.
        p: below 1.

    Returns:
        bool of shape (numel,).
    """
    index = torch.arange(-(-numel // PER), dtype=torch.int64, device=seed.device)
    zero = torch.zeros_like(index)
    c0, c1, c2, c3 = index & _LOW, (index >> 32) & _LOW, zero, zero
    k0, k1 = (seed & _LOW).reshape(()), (seed >> 32 & _LOW).reshape(())
    for _ in range(10):
        high0, low0 = _multiply(c0, _MULTIPLIERS[0])
        high1, low1 = _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    words = torch.stack((c0, c1, c2, c3), -1)
    turned = words << 16 & _LOW | words >> 16
    bits = torch.stack((words, turned), -1).reshape(-1)[:numel]
    return torch.where(bits < 2**31, bits, bits - 2**32) >= threshold(p)


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
