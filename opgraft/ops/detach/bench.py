"""detach: no data moves, so what counts is the host's time."""

from __future__ import annotations

import torch

from opgraft.bench import Case
from opgraft.bench.inputs import randn

CASES = [Case("bf16 256", lambda device: (randn(256, torch.bfloat16, device),), torch.detach, graph=False, route=False)]
