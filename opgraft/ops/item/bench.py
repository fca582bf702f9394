"""item: waits for the device by design, so what counts is the host's time."""

from __future__ import annotations

import torch

from opgraft.bench import Case
from opgraft.bench.inputs import randn

CASES = [Case("fp32", lambda device: (randn((), torch.float32, device),), torch.Tensor.item, graph=False, route=False)]
