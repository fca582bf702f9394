"""Declared inputs: a tensor described by its geometry, dtype and seed, made alike on every device."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

import torch

from opgraft.kernels.geometry import span

#: (strides, offset) by name for a shape; None where a layout says nothing new about it.
LAYOUTS = ("contiguous", "transposed", "sliced", "expanded", "offset", "channels_last", "channels_last_3d", "gappy")


@dataclass(frozen=True)
class TensorSpec:
    """A tensor to be made.

    Attributes:
        shape: its sizes.
        dtype: the dtype's name, ``float32``.
        strides: in elements; None means contiguous.
        offset: storage offset in elements.
        seed: which values. Bool is a coin, integers span their range, floats are normal.
        requires_grad: whether it is a leaf that asks for a gradient.
        below: for integers, values are from 0 to below - 1 instead (indices); 0 means no bound.
        scale: floats are multiplied with it.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    strides: tuple[int, ...] | None = None
    offset: int = 0
    seed: int = 0
    requires_grad: bool = False
    below: int = 0
    scale: float = 1.0

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype."""
        return getattr(torch, self.dtype)

    def on(self, device: str | torch.device) -> torch.Tensor:
        """The tensor on a device: the same values, size, strides and offset everywhere."""
        strides = self.strides if self.strides is not None else torch.empty(self.shape, device="meta").stride()
        flat = values(self.offset + span(self.shape, strides), self.torch_dtype, self.seed)
        flat = flat.remainder_(self.below) if self.below else flat.mul_(self.scale) if self.scale != 1 else flat
        flat = flat.to(device)
        with torch._C._AutoDispatchBelowADInplaceOrView():  # an input is nobody's view
            tensor = flat.as_strided(self.shape, strides, self.offset)
        return tensor.requires_grad_() if self.requires_grad else tensor

    def reseeded(self, by: int = 1) -> TensorSpec:
        """The same tensor with other values."""
        return dataclasses.replace(self, seed=self.seed + 1000 * by)

    def with_grad(self) -> TensorSpec:
        """The same tensor asking for a gradient."""
        return dataclasses.replace(self, requires_grad=True)


def values(numel: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """``numel`` reproducible CPU values of a dtype, spread over what the dtype can hold."""
    generator = torch.Generator("cpu").manual_seed(seed)
    if dtype is torch.bool:
        return torch.randint(0, 2, (numel,), generator=generator, device="cpu").bool()
    if dtype.is_complex:
        parts = torch.randn(numel, 2, generator=generator, dtype=torch.float64, device="cpu")
        return torch.view_as_complex(parts).to(dtype)
    if dtype.is_floating_point:
        return (2 * torch.randn(numel, generator=generator, dtype=torch.float32, device="cpu")).to(dtype)
    low, high = (0, 2**31) if not dtype.is_signed else (-(2**31), 2**31)
    return torch.randint(low, high, (numel,), generator=generator, device="cpu").to(dtype)


def layout(shape: tuple[int, ...], name: str) -> tuple[tuple[int, ...], int] | None:
    """Strides and offset of a named layout for a shape, or None if the layout does not apply to it."""
    meta = torch.empty(shape, device="meta")
    if name == "contiguous":
        return meta.stride(), 0
    if name == "offset":
        return meta.stride(), 3
    if name == "transposed" and len(shape) >= 2:
        return torch.empty(shape[::-1], device="meta").permute(*range(len(shape) - 1, -1, -1)).stride(), 0
    if name == "sliced" and shape:
        return torch.empty((*shape[:-1], 2 * shape[-1] + 1), device="meta")[..., 1::2].stride(), 1
    if name == "gappy" and len(shape) >= 2:
        return torch.empty((shape[0], *[n + 2 for n in shape[1:]]), device="meta").stride(), 1
    if name == "expanded" and shape:
        return (0, *torch.empty(shape[1:], device="meta").stride()), 0
    if name == "channels_last" and len(shape) == 4:
        return meta.contiguous(memory_format=torch.channels_last).stride(), 0
    if name == "channels_last_3d" and len(shape) == 5:
        return meta.contiguous(memory_format=torch.channels_last_3d).stride(), 0
    return None


@dataclass(frozen=True)
class Case:
    """One call: positional arguments (specs become tensors) and keywords.

    Attributes:
        name: how the case is named in results.
        args: positional arguments; a :class:`TensorSpec` is made on the device.
        kwargs: keyword arguments, as they are.
        native: for the op level, a word of the reason with which this call must go to native; None if the kernel
            must take it.
        golden: whether golden data holds this case.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    native: str | None = None
    golden: bool = False

    def arguments(self, device: str | torch.device) -> tuple[Any, ...]:
        """The positional arguments on a device."""
        return tuple(a.on(device) if isinstance(a, TensorSpec) else a for a in self.args)

    def changed(self, **to: Any) -> Case:
        """The same case with every spec changed in some fields."""
        return dataclasses.replace(
            self, args=tuple(dataclasses.replace(a, **to) if isinstance(a, TensorSpec) else a for a in self.args)
        )

    def reseeded(self) -> Case:
        """The same case with other values."""
        return dataclasses.replace(self, args=tuple(a.reseeded() if isinstance(a, TensorSpec) else a for a in self.args))


def tensor_cases(shapes, dtypes=("float32",), layouts=LAYOUTS, golden=lambda spec: False) -> list[Case]:
    """A case of one tensor for every shape, dtype and layout that applies."""
    found = []
    for shape in shapes:
        for name in layouts:
            geometry = layout(shape, name)
            if geometry is None:
                continue
            for dtype in dtypes:
                spec = TensorSpec(shape, dtype, *geometry, seed=math.prod(shape) % 97 + len(found))
                found.append(Case(f"{'x'.join(map(str, shape)) or '0-dim'} {dtype} {name}", (spec,), golden=golden(spec)))
    return found
