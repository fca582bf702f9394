"""empty_strided: no data moves, so what counts is the host's time."""

from __future__ import annotations

import torch

from opgraft.bench import Case


def _empty(device: str) -> torch.Tensor:
    return torch.empty_strided((16, 16), (1, 16), device=device)


CASES = [Case("fp32 16×16", lambda device: (device,), _empty, graph=False, route=False)]
