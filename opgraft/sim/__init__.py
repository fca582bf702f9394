"""A PrivateUse1 device in pure Python: a chip on every desk.

``enable()`` makes the device, under the name ``sim`` or under a vendor's (``mlu``, ``npu``), so that a script
written for that chip runs unchanged. Tensors have real storage and pointers in host memory; every operator
runs through PyTorch's CPU kernels; Triton kernels run through the Triton interpreter. What it proves is
always labelled simulated. docs/simulated-device.md says what it does and where it differs from a chip.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
import warnings

import torch

from opgraft import _autoload, platforms

from . import autocast, fallback, guard, memory, module
from .memory import MemoryFault

__all__ = ["MemoryFault", "active", "check", "enable", "name"]

_libraries: list[torch.library.Library] = []
_active: str | None = None


class _Simulator:
    """The simulated device as :mod:`opgraft.platforms` knows it."""

    def __init__(self, device_type: str):
        self.device_type = device_type

    def launch(self, kernel, grid, tensors, args, constants) -> None:
        """Interpret a kernel as a chip would run it: in its device's context, with live storages, red zones checked after.

        Raises:
            RuntimeError: the current device is not the tensors' device. On a chip that launch would run on the
                wrong device and read foreign addresses.
            opgraft.sim.MemoryFault: a storage is freed or foreign, or a red zone was written to.
        """
        from opgraft.kernels.interpret import interpret

        name = kernel.fn.__name__
        for tensor in tensors:
            if tensor.device.index != guard.current_device():
                raise RuntimeError(
                    f"kernel {name}: launched in the context of device {guard.current_device()} with a tensor on {tensor.device}; "
                    "enter the tensor's device first (opgraft.kernels.launch does)"
                )
            memory.host_alias(tensor)
        interpret(kernel, grid, args, constants)
        memory.check_tensors(tensors, name)


#: The vendor packages a script written for that chip imports; each name is the device's.
_VENDOR_MODULES = {"mlu": "torch_mlu", "npu": "torch_npu"}


def name() -> str | None:
    """The simulated device's name in this process, or None if there is none."""
    return _active


def active(device_type: str) -> bool:
    """Whether ``device_type`` is the simulated device here."""
    return device_type == _active


def check() -> None:
    """Check all red zones and freed blocks now. Raises :class:`MemoryFault`."""
    memory.check()


def enable(name: str = "sim", device_count: int = 2) -> None:
    """Make the simulated device. PyTorch allows one PrivateUse1 backend for the life of a process.

    Args:
        name: the device type, used in ``torch.device(name)`` and as ``torch.<name>``. With ``mlu`` or ``npu``
            an ``import torch_mlu`` / ``import torch_npu`` in a script finds a placeholder.
        device_count: how many device indexes there are.

    Raises:
        RuntimeError: PrivateUse1 is taken by another backend (named in the message), or the simulated
            device has another name already.
    """
    global _active
    if _active is not None:
        if _active != name:
            raise RuntimeError(
                f"the simulated device is named {_active!r} in this process and PyTorch allows one PrivateUse1 name: "
                f"start a new process for {name!r}"
            )
        return
    taken = torch._C._get_privateuse1_backend_name()
    if taken != "privateuseone":
        raise RuntimeError(f"PrivateUse1 belongs to the backend {taken!r} in this process, so no device can be simulated")
    if torch.cuda.device_count():
        warnings.warn(
            f"with the simulated device {name!r} PyTorch takes PrivateUse1 for the accelerator of this process, and a backward on "
            "CUDA fails with an internal assertion (seen on 2.11); use another process for CUDA",
            stacklevel=2,
        )
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    device_guard, count = guard.make_guard(device_count)
    # torch.<name> must be a module of its own: generated helpers are set on it.
    backend = types.ModuleType(f"torch.{name}", module.__doc__)
    backend.__dict__.update({k: v for k, v in vars(module).items() if not k.startswith("__")})
    _setup_privateuseone_for_python_backend(name, backend_module=backend, device_guard=device_guard)
    fallback._name = name
    for index in range(count):
        generator = module.Generator._for_index(index)
        generator.manual_seed(torch.initial_seed())
        fallback.generators.append(generator)
    backend.default_generators = tuple(fallback.generators)
    library = torch.library.Library("aten", "IMPL")
    boxed = torch.library.Library("_", "IMPL")
    _libraries.extend((library, boxed))
    fallback.install(name, library, boxed)
    autocast.install(name, library, boxed)
    _patch_storage(name)
    _patch_accelerator(backend)
    _active = name
    platforms.simulate(_Simulator(name))
    if name in _VENDOR_MODULES:
        _placeholder(_VENDOR_MODULES[name])


def _patch_storage(name: str) -> None:
    """``torch.UntypedStorage(n, device=name)`` asks a C++ allocator that Python cannot register.

    It is what deepcopy, torch.load and storage.to use, so it is given our own memory instead.
    """
    native_new = torch.UntypedStorage.__new__

    def new(cls, *args, **kwargs):
        device = kwargs.get("device")
        if device is None or torch.device(device).type != name:
            return native_new(cls, *args, **kwargs)
        size = args[0] if args else kwargs.get("size", 0)
        with torch._C._AutoDispatchBelowAutograd(), torch._C.DisableTorchFunction():
            return torch.empty_strided((int(size),), (1,), dtype=torch.uint8, device=device).untyped_storage()

    torch.UntypedStorage.__new__ = staticmethod(new)


def _patch_accelerator(backend: types.ModuleType) -> None:
    """``torch.accelerator`` asks C++ objects for memory and for waiting (internal assertions); give it the module's functions."""
    for function in (*torch.accelerator.memory.__all__, "synchronize"):
        replacement = getattr(backend, "mem_get_info" if function == "get_memory_info" else function)
        for module_ in (torch.accelerator, torch.accelerator.memory):
            if hasattr(module_, function):
                setattr(module_, function, replacement)


def _placeholder(vendor: str) -> None:
    if vendor not in sys.modules:
        stand_in = types.ModuleType(vendor, f"Placeholder: the device is simulated by opgraft, {vendor} is not installed.")
        stand_in.__version__ = "0+opgraft.simulated"
        stand_in.__spec__ = importlib.machinery.ModuleSpec(vendor, None)
        sys.modules[vendor] = stand_in


_autoload.autoload()
