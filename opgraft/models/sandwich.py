"""An operator between two linear layers, trained: a framework level for operators that the decoder does not call."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .decoder import Outcome, counted_calls, gradients_of, weights_of


def run(
    device: str | torch.device, between: Callable[[torch.Tensor], torch.Tensor], steps: int = 3, width: int = 16
) -> Outcome:
    """Train ``second(between(first(x)))`` to halve its input; the argmax of its outputs stands for tokens.

    Args:
        device: where it runs.
        between: the operator, keeping the shape (batch, width).
        steps: optimiser steps.
        width: of the layers.
    """
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"first": torch.nn.Linear(width, width), "second": torch.nn.Linear(width, width)}).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = torch.randn(8, width, generator=torch.Generator().manual_seed(1)).to(device)
    losses, gradients = [], {}
    for step in range(steps):
        loss = (model["second"](between(model["first"](data))) - data / 2).pow(2).mean()
        optimiser.zero_grad()
        loss.backward()
        if step == 0:
            gradients = gradients_of(model)
        optimiser.step()
        losses.append(loss.detach().item())
    with torch.inference_mode(), counted_calls() as calls:
        tokens = model["second"](between(model["first"](data))).argmax(1).tolist()
    return Outcome(losses, gradients, weights_of(model), tokens, calls)
