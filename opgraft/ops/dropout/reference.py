"""The meaning of dropout: each element kept with probability 1-p and scaled by 1/(1-p), or zeroed.

Which elements are kept is defined by Philox4x32-10 (see ``opgraft/kernels/philox.py``), here in Python integers, so that
no vectorised implementation vouches for another.
"""

from __future__ import annotations

import torch


def philox(seed: int, index: int) -> int:
    """The first of the four words of Philox4x32-10 with counter ``index`` and key ``seed``."""
    low = 0xFFFFFFFF
    c = [index & low, index >> 32 & low, 0, 0]
    k = [seed & low, seed >> 32 & low]
    for _ in range(10):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(second >> 32) ^ c[1] ^ k[0], second & low, (first >> 32) ^ c[3] ^ k[1], first & low]
        k = [k[0] + 0x9E3779B9 & low, k[1] + 0xBB67AE85 & low]
    return c[0]


def masked_scale(x: torch.Tensor, seed: torch.Tensor, p: float) -> torch.Tensor:
    """Computed in fp32 (fp64 for fp64) and cast back; differentiable.

    Args:
        x: floating-point.
        seed: int64 of one element.
        p: between 0 and 1, both excluded.
    """
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    key, threshold = int(seed.cpu()), round(p * 2**32)
    factors = [1 / (1 - p) if philox(key, i) >= threshold else 0.0 for i in range(x.numel())]
    factor = torch.tensor(factors, dtype=torch.float64).to(wide).reshape(x.shape).to(x.device)
    return (x.to(wide) * factor).to(x.dtype)
