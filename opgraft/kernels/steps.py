"""A call as steps that need no Python: outputs to allocate, kernels to launch, the operand to return."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from opgraft import platforms

from .geometry import span
from .launch import Direct, Launch, launch_hooks
from .output import new_empty_strided, new_from_primitive


class Output(NamedTuple):
    """A tensor to allocate: sizes and strides in elements. ``primitive``: made from ``empty``, by the override of empty_strided itself."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    primitive: bool = False

    @property
    def span(self) -> int:
        """Elements from the first to the last."""
        return span(self.size, self.stride)

    def allocate(self) -> torch.Tensor:
        """The tensor, uninitialised; a guarded one while a proof is running."""
        return new_empty_strided(self.size, self.stride, self.dtype, self.device)

    def allocate_alone(self) -> torch.Tensor:
        """The tensor where allocating it is the whole operator, and no kernel writes to it."""
        if self.primitive:
            return new_from_primitive(self.size, self.stride, self.dtype, self.device)
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=self.device)


class DirectSteps(NamedTuple):
    """What the C++ call path carries out by itself (opgraft/csrc/plan.h)."""

    device: torch.device
    outputs: tuple[Output, ...]
    launches: tuple[Direct, ...]
    result: int
    launcher: int
    hooks: list | None


class Steps:
    """What a prepared kernel returns for every call of a signature, if nothing else is to be done in it.

    Args:
        device: where it runs, with its index.
        outputs: tensors to allocate.
        launches: each with its operands, the tensors that it is given: i is the call's argument at position i, -1 - i is output i.
        result: the operand that is returned.
    """

    def __init__(
        self, device: torch.device, outputs: Sequence[Output] = (), launches: Sequence[tuple[Launch, tuple[int, ...]]] = (), result: int = -1
    ):  # fmt: skip
        self._device, self._outputs, self._launches, self._result = device, tuple(outputs), tuple(launches), result

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Carry them out here, with the call's arguments."""
        return self._run(args)[0]

    def first(self, *args: Any, **kwargs: Any) -> tuple[Any, DirectSteps | None]:
        """The same, and how the C++ call path does it from now on; None where a kernel is not launched by one C function."""
        result, outputs = self._run(args)
        launcher, directs = 0, []
        if self._launches:
            launcher = launch_function(self._device.type)
            for launch, operands in self._launches:
                addresses = [self._operand(i, args, outputs).data_ptr() for i in operands]
                direct = launch.direct(-1 if self._device.index is None else self._device.index, addresses, operands)
                if direct is None or not launcher:
                    return result, None
                directs.append(direct)
        return result, DirectSteps(
            self._device, self._outputs, tuple(d for d in directs if d.grid[0]), self._result, launcher, launch_hooks()
        )

    def _run(self, args: tuple) -> tuple[Any, list[torch.Tensor]]:
        outputs = [out.allocate() if self._launches else out.allocate_alone() for out in self._outputs]
        for launch, operands in self._launches:
            launch(*[self._operand(i, args, outputs) for i in operands])
        return self._operand(self._result, args, outputs), outputs

    @staticmethod
    def _operand(i: int, args: tuple, outputs: list[torch.Tensor]) -> Any:
        return args[i] if i >= 0 else outputs[-1 - i]


@functools.cache
def launch_function(device_type: str) -> int:
    """The address of the C function that launches kernels there, which the platform names; 0 if it names none, or none is found."""
    profile = platforms.profile_for_device(device_type)
    library, _, symbol = (profile.launcher if profile else "").partition(":")
    try:
        return ctypes.cast(getattr(ctypes.CDLL(library), symbol), ctypes.c_void_p).value or 0 if symbol else 0
    except (OSError, AttributeError):
        return 0
