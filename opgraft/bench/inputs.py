"""Inputs that several operators' cases share."""

from __future__ import annotations

import math

import torch


def randn(shape, dtype: torch.dtype, device: str, requires_grad: bool = False) -> torch.Tensor:
    """Random numbers (never zeros: they would hide unwritten outputs and can run faster)."""
    return torch.randn(shape, device=device).to(dtype).requires_grad_(requires_grad)


def size_name(numel: int) -> str:
    """``2^24`` for a power of two from 1024, else the number."""
    power = int(math.log2(numel))
    return f"2^{power}" if numel >= 1024 and numel == 2**power else str(numel)


def short(dtype: torch.dtype) -> str:
    """``bf16`` for ``torch.bfloat16``."""
    return str(dtype).removeprefix("torch.").replace("bfloat", "bf").replace("float", "fp")


def with_graph(out: torch.Tensor, *inputs: torch.Tensor) -> tuple:
    """(out, inputs, a random gradient of out): what :func:`backward` takes."""
    return out, inputs, torch.randn_like(out)


def backward(out: torch.Tensor, inputs: tuple, grad: torch.Tensor) -> tuple:
    """The backward alone, any number of times."""
    return torch.autograd.grad(out, inputs, grad, retain_graph=True)
