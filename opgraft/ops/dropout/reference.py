"""The meaning of dropout: each element kept with probability 1-p and scaled by 1/(1-p), or zeroed.

Which elements are kept is defined by Philox4x32-10 (see ``opgraft/kernels/philox.py``), here in Python integers, so that
no vectorised implementation vouches for another.
"""

from __future__ import annotations

import torch


def random_bits(seed: int, index: int) -> int:
    """An index's 32 bits: of Philox4x32-10 with counter ``index // 8`` and key ``seed`` the word (index mod 8) // 2, turned by 16
    bits for an odd index, as a signed number."""
    low = 0xFFFFFFFF
    c = [index // 8 & low, index // 8 >> 32 & low, 0, 0]
    k = [seed & low, seed >> 32 & low]
    for _ in range(10):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(second >> 32) ^ c[1] ^ k[0], second & low, (first >> 32) ^ c[3] ^ k[1], first & low]
        k = [k[0] + 0x9E3779B9 & low, k[1] + 0xBB67AE85 & low]
    word = c[index % 8 // 2]
    turned = (word << 16 & low | word >> 16) if index % 2 else word
    return turned - 2**32 if turned >= 2**31 else turned


def masked_scale(x: torch.Tensor, seed: torch.Tensor, p: float) -> torch.Tensor:
    """Computed in fp32 (fp64 for fp64) and cast back; differentiable.

    Args:
        x: floating-point.
        seed: int64 of one element.
        p: between 0 and 1, both excluded.
    """
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    key, least = int(seed.cpu()), round(p * 2**32) - 2**31
    factors = [1 / (1 - p) if random_bits(key, i) >= least else 0.0 for i in range(x.numel())]
    factor = torch.tensor(factors, dtype=torch.float64).to(wide).reshape(x.shape).to(x.device)
    return (x.to(wide) * factor).to(x.dtype)
