"""Platforms: what is known of a chip, as data.

A platform is one small YAML file beside this module, or one that an outside package offers through the entry
point group ``opgraft.platforms`` (its value is a path, or a function that returns one). Nothing else in the
library names a chip.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import importlib.util
import os
import pathlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import yaml

KERNEL_LEVELS = ("torch", "triton")


@dataclass(frozen=True)
class Profile:
    """One platform.

    Attributes:
        name: what ``platform=`` takes.
        vendor: who makes it.
        device_type: PyTorch's device type, as in ``torch.device(device_type)``.
        module: the Python module that brings the device, or None if PyTorch itself does.
        autograd_key: the dispatch key of its autograd, the canonical key to register with.
        backend_key: the dispatch key of its kernels.
        kernel_level: which of an operator's kernels serve it, ``torch`` or ``triton``.
        launcher: the C function that launches a compiled kernel, as ``libcuda.so.1:cuLaunchKernel``: its library and its name. It takes the
            arguments of CUDA's cuLaunchKernel (HIP's hipModuleLaunchKernel and MUSA's muLaunchKernel do); empty: Triton launches.
        hint: what to do where the device is not usable.
    """

    name: str
    vendor: str
    device_type: str
    module: str | None
    autograd_key: str
    backend_key: str
    kernel_level: str
    launcher: str = ""
    hint: str = ""

    @property
    def dispatch_key(self) -> str:
        """The key to register with: the canonical autograd key."""
        return self.autograd_key

    @property
    def keys(self) -> tuple[str, str]:
        """The dispatch keys the platform takes."""
        return (self.autograd_key, self.backend_key)

    @property
    def device(self) -> str:
        """A device string for its first device, for example ``mlu:0`` (``cpu`` has no index)."""
        return self.device_type if self.device_type == "cpu" else f"{self.device_type}:0"

    def device_graph(self) -> Callable[[], Any] | None:
        """The class of the device's graphs, as ``torch.cuda.CUDAGraph``; None if it has none."""
        import torch

        if self.device_type == "cpu":
            return None
        return getattr(torch.get_device_module(self.device_type), f"{self.device_type.upper()}Graph", None)


@dataclass(frozen=True)
class Status:
    """What :func:`probe` found: ``usable``, and in ``reason`` why (not)."""

    usable: bool
    reason: str
    simulated: bool = False


class Simulator(Protocol):
    """What stands in for a chip in this process; :func:`simulate` makes it known."""

    #: The device type that it serves.
    device_type: str

    def launch(self, kernel, grid: tuple[int, ...], tensors: tuple, args: tuple, constants: dict) -> None:
        """Run a Triton kernel: ``tensors`` are those that it is given, ``args`` all its arguments but the constants."""


_simulator: Simulator | None = None


def simulate(by: Simulator) -> None:
    """Make a simulator known. PyTorch has one PrivateUse1 device for the life of a process, so it stays."""
    global _simulator
    _simulator = by


def simulator(device_type: str) -> Simulator | None:
    """What simulates a device type in this process, or None: it is real."""
    return _simulator if _simulator is not None and _simulator.device_type == device_type else None


def load_profile(path: str | os.PathLike) -> Profile:
    """Read one platform file.

    Raises:
        ValueError: names the file, the field, what was given and what is accepted.
    """
    path = pathlib.Path(path)
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not valid YAML: {error}") from None
    fields = {f.name: f for f in dataclasses.fields(Profile)}
    if not isinstance(given, dict):
        raise ValueError(f"{path}: a platform file is a mapping with the fields {', '.join(fields)}")
    unknown = sorted(set(given) - set(fields))
    required = {n for n, f in fields.items() if f.default is dataclasses.MISSING}
    missing = sorted(required - set(given))
    if unknown or missing:
        raise ValueError(
            f"{path}: {f'unknown field(s) {unknown}; ' if unknown else ''}{f'missing field(s) {missing}; ' if missing else ''}"
            f"a platform file has {', '.join(fields)}"
        )
    for name, value in given.items():
        if not isinstance(value, str) and not (name == "module" and value is None):
            raise ValueError(f"{path}: {name} must be text{' or null' if name == 'module' else ''}, got {value!r}")
    if given["kernel_level"] not in KERNEL_LEVELS:
        raise ValueError(f"{path}: kernel_level is {given['kernel_level']!r}, accepted: {', '.join(KERNEL_LEVELS)}")
    import torch

    for name in ("autograd_key", "backend_key"):
        if not hasattr(torch._C.DispatchKey, given[name]):
            raise ValueError(f"{path}: {name} is {given[name]!r}, which is no dispatch key of PyTorch {torch.__version__}")
    if given["autograd_key"] != f"Autograd{given['backend_key']}":
        raise ValueError(
            f"{path}: autograd_key is {given['autograd_key']!r} and backend_key {given['backend_key']!r}: the autograd key "
            f"of a backend is its name after 'Autograd'"
        )
    return Profile(**given)


@functools.cache
def profiles() -> dict[str, Profile]:
    """Every platform by name: the library's own and those of outside packages.

    Raises:
        ValueError: a file is malformed, or two give the same name.
    """
    paths = sorted(pathlib.Path(__file__).parent.glob("*.yaml"))
    for entry in importlib.metadata.entry_points(group="opgraft.platforms"):
        value = entry.load()
        paths.append(pathlib.Path(value() if callable(value) else value))
    found: dict[str, Profile] = {}
    for path in paths:
        profile = load_profile(path)
        if profile.name in found:
            raise ValueError(f"{path}: there is a platform named {profile.name!r} already")
        found[profile.name] = profile
    return found


def profile_for_device(device_type: str) -> Profile | None:
    """The platform whose device type this is, or None."""
    return next((p for p in profiles().values() if p.device_type == device_type), None)


def backend_name() -> str | None:
    """The real name of the PrivateUse1 backend of this process, or None if there is none."""
    import torch

    name = torch._C._get_privateuse1_backend_name()
    return None if name == "privateuseone" else name


def resolve(dispatch_key: str, platform: str | None) -> Profile:
    """Which platform a registration is for.

    Args:
        dispatch_key: one of the platform's two keys.
        platform: its name; if None it follows from the key and, for the PrivateUse1 keys, from the real name
            of the backend that is present.

    Raises:
        RuntimeError: unknown platform or key, a key of another platform, or no PrivateUse1 backend present;
            says what was given and what is supported.
    """
    known = profiles()
    supported = "; ".join(f"{p.name}: {' or '.join(p.keys)}" for p in known.values())
    if dispatch_key == "Autograd":
        raise RuntimeError(
            "dispatch key 'Autograd' is refused: it is an alias that also catches the autograd dispatch of every other "
            f"backend in the process, the CPU's included. Supported keys by platform: {supported}"
        )
    if platform is not None:
        if platform not in known:
            raise RuntimeError(f"unknown platform {platform!r}. Supported platforms and their keys: {supported}")
        profile = known[platform]
        if dispatch_key not in profile.keys:
            raise RuntimeError(
                f"dispatch key {dispatch_key!r} does not belong to platform {platform!r}, which takes "
                f"{' or '.join(profile.keys)}"
            )
        return profile
    candidates = [p for p in known.values() if dispatch_key in p.keys]
    if not candidates:
        raise RuntimeError(f"unknown dispatch key {dispatch_key!r}. Supported keys by platform: {supported}")
    if not dispatch_key.endswith("PrivateUse1"):
        return candidates[0]
    present = backend_name()
    names = ", ".join(f"{p.name} ({p.device_type})" for p in candidates)
    if present is None:
        raise RuntimeError(
            f"dispatch key {dispatch_key!r}: no PrivateUse1 backend is present in this process, so no platform follows from "
            f"the key. Import the chip's module, or call opgraft.sim.enable(). Platforms with this key: {names}"
        )
    for profile in candidates:
        if profile.device_type == present:
            return profile
    raise RuntimeError(
        f"the PrivateUse1 backend of this process is named {present!r}, which no platform describes. Known: {names}. "
        "A package adds one with a YAML file and the entry point group 'opgraft.platforms'"
    )


def probe(profile: Profile) -> Status:
    """Whether a platform can be used in this process, and if not exactly why. Does no work on the device."""
    import torch

    if profile.device_type == "cpu":
        return Status(True, "always present")
    if simulator(profile.device_type) is not None:
        return Status(True, f"simulated by opgraft under the name {profile.device_type!r}", True)
    hint = f"; what to do: {profile.hint}" if profile.hint else ""
    if profile.module == "opgraft.sim":
        other = f"; the simulated device of this process is named {_simulator.device_type!r}" if _simulator else ""
        return Status(False, f"the simulated device {profile.device_type!r} is not enabled{other}{hint}")
    if profile.module is not None:
        if importlib.util.find_spec(profile.module) is None:
            taken = backend_name()
            also = f"; PrivateUse1 is the backend {taken!r} here" if taken else ""
            return Status(False, f"module {profile.module} is not installed{also}{hint}")
        try:
            importlib.import_module(profile.module)
        except (ImportError, OSError, RuntimeError) as error:
            first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            return Status(False, f"module {profile.module} is installed but cannot be loaded: {first}{hint}")
    backend = getattr(torch, profile.device_type, None)
    if backend is None:
        return Status(False, f"PyTorch has no device {profile.device_type!r} in this process{hint}")
    if (count := backend.device_count()) == 0:
        return Status(False, f"no {profile.device_type} device is present (device_count() is 0){hint}")
    return Status(True, f"{count} device(s)")
