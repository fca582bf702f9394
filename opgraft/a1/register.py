"""Operators, what is registered of them in this process, and the calls that change it.

State lives here only, keyed by operator name and platform, so it does not matter under which module name an
operator's folder was imported.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opgraft import platforms
from opgraft.call_path import below_overrides

from .arguments import by_name
from .declare import Override
from .install import Installed, schema_problem, unreachable

_lock = threading.RLock()
_registrations: dict[tuple[str, str], Registration] = {}


@dataclass(frozen=True)
class Operator:
    """An operator's declaration. Its folder holds one of these, and nothing of how registration works.

    Attributes:
        name: the folder's name.
        overrides: the ATen schemas it replaces together.
        refusal: for an operator that cannot be registered by design, why. Its overrides then only declare its
            schema and kernels.
        companion: called with the platform when the operator is installed, for what must change beside the
            dispatcher; returns the function that undoes it.
    """

    name: str
    overrides: tuple[Override, ...]
    refusal: str | None = None
    companion: Callable[[Any], Callable[[], None]] | None = None

    @property
    def aten_names(self) -> set[str]:
        """The ATen operators it replaces, without overloads, as a profiler names them: ``{"aten::clone"}``."""
        return {override.qualified_name.partition(".")[0] for override in self.overrides}

    def register_a1(self, dispatch_key: str = "AutogradPrivateUse1", counter: dict | None = None, platform: str | None = None):
        """Replace the operator on a platform by our kernel.

        Args:
            dispatch_key: one of the platform's two keys, its autograd key (canonical) or its backend key. Either
                way the override is reached in grad mode, ``no_grad`` and ``inference_mode``.
            counter: ``counter["n"]`` counts the calls that reach the operator, from 0 if it is not set. It is written within each
                call, so it reads right at any moment, in any thread; that takes the GIL, about 0.1 µs a call, which
                :attr:`Registration.hits` does not cost.
            platform: the platform's name; if None it follows from the key and the backend that is present.

        Returns:
            The :class:`~opgraft.a1.Registration`: a context manager with ``remove()``, ``hits`` and
            ``handed_to_native``. The library keeps it alive until it is removed.

        Raises:
            RuntimeError: unknown platform or key, the device is not usable here, the operator is registered for
                this platform already, or the override could not be reached.
            NotImplementedError: the operator cannot be registered by design.
            TypeError: an argument is of the wrong type.
        """
        return register(self, dispatch_key, counter, platform)

    def call(self, *args, override: int = 0, **kwargs):
        """Run a kernel of the first argument's platform directly, below autograd; native where it is not supported. Nothing is registered
        or counted, and no gradient recorded.

        Args:
            args: of the call, a tensor first.
            override: which of :attr:`overrides`.
            kwargs: of the call.

        Raises:
            RuntimeError: no platform describes the device of the first argument.
        """
        device, chosen = args[0].device.type, self.overrides[override]
        profile = platforms.profile_for_device(device)
        if profile is None:
            known = ", ".join(p.device_type for p in platforms.profiles().values())
            raise RuntimeError(f"no platform describes the device type {device!r}; described: {known}")
        with below_overrides():
            if by_name(chosen.unsupported, chosen.overload._schema)(*args, **kwargs) is None:
                return chosen.kernel_for(profile)(*args, **kwargs)
            return chosen.overload(*args, **kwargs)


class Registration:
    """One operator replaced on one platform. Use it as a context manager, or call :meth:`remove`.

    Attributes:
        operator: the operator's declaration.
        profile: the platform.
    """

    def __init__(self, operator: Operator, profile: platforms.Profile, counter: dict | None):
        self.operator = operator
        self.profile = profile
        self._holds = 1
        self._counter = counter
        self._installed: list[tuple[Override, Installed]] = []
        self._undo: list[Callable[[], None]] = []
        if counter is not None:
            counter.setdefault("n", 0)

    def __repr__(self) -> str:
        state = "active" if self.active else "removed"
        return f"<Registration {self.operator.name} on {self.profile.name}: {state}, {self.hits} hits, {self.handed_to_native} to native>"

    @property
    def active(self) -> bool:
        """Whether the override is in place."""
        return bool(self._undo)

    @property
    def hits(self) -> int:
        """Calls that reached the operator, those handed to native included."""
        return sum(installed.hits for override, installed in self._installed if not override.backward)

    @property
    def inference_hits(self) -> int:
        """Of :attr:`hits`, those under ``torch.inference_mode()``: what an engine's forward makes, loading weights does not."""
        return sum(installed.inference_hits for override, installed in self._installed if not override.backward)

    @property
    def backward_hits(self) -> int:
        """Calls of the overrides that are derivatives (``backward`` in their declaration); not among :attr:`hits`."""
        return sum(installed.hits for override, installed in self._installed if override.backward)

    @property
    def handed_to_native(self) -> dict[str, int]:
        """Calls that were handed to the native kernel, by reason."""
        found: Counter[str] = Counter()
        for _, reason, calls in sorted(entry for _, installed in self._installed for entry in installed.handed):
            found[reason] += calls
        return dict(found)

    @property
    def plans(self) -> int:
        """How many calls' decisions are remembered, each for every call of its signature."""
        return sum(installed.plans for _, installed in self._installed)

    def remove(self) -> None:
        """Take the override out; PyTorch behaves as before. Removing twice does nothing."""
        with _lock:
            if _registrations.get(self._key) is self:
                del _registrations[self._key]
            self._uninstall()

    def __enter__(self) -> Registration:
        return self

    def __exit__(self, *_) -> None:
        self.remove()

    @property
    def _key(self) -> tuple[str, str]:
        return self.operator.name, self.profile.name

    def _install(self) -> None:
        try:
            for override in self.operator.overrides:
                problem = schema_problem(override)
                if problem:
                    raise RuntimeError(f"{self.operator.name}: {problem}")
                counter = None if override.backward else self._counter
                installed = Installed(override, self.profile, self.operator.name, counter)
                self._installed.append((override, installed))
                self._undo.append(installed.remove)
                problem = unreachable(override, self.profile)
                if problem:
                    raise RuntimeError(f"{self.operator.name}: registration refused, it could not be reached: {problem}")
            if self.operator.companion is not None:
                installed.when_gone(self.operator.companion(self.profile))
            for _, installed in self._installed:
                installed.start()
        except BaseException:
            self._uninstall()
            raise

    def _uninstall(self) -> None:
        while self._undo:
            self._undo.pop()()


def _renew_locks() -> None:
    """A lock that another thread held while this process forked would never be released in the child."""
    global _lock
    _lock = threading.RLock()
    for registration in _registrations.values():
        for _, installed in registration._installed:
            installed.renew_locks()


os.register_at_fork(after_in_child=_renew_locks)


def _checked(operator: Operator, dispatch_key, counter, platform) -> platforms.Profile:
    if not isinstance(dispatch_key, str):
        raise TypeError(f"dispatch_key must be a str such as 'AutogradPrivateUse1', got {type(dispatch_key).__name__}")
    if counter is not None and not isinstance(counter, dict):
        raise TypeError(f"counter must be a dict (its 'n' is counted up) or None, got {type(counter).__name__}")
    if platform is not None and not isinstance(platform, str):
        raise TypeError(f"platform must be a str or None, got {type(platform).__name__}")
    profile = platforms.resolve(dispatch_key, platform)
    if operator.refusal is not None:
        raise NotImplementedError(f"{operator.name} cannot be registered: {operator.refusal}")
    status = platforms.probe(profile)
    if not status.usable:
        raise RuntimeError(f"{operator.name}: platform {profile.name!r} is not usable here: {status.reason}")
    return profile


def register(operator: Operator, dispatch_key: str, counter: dict | None, platform: str | None) -> Registration:
    """Register one operator; see :meth:`opgraft.a1.Operator.register_a1`."""
    profile = _checked(operator, dispatch_key, counter, platform)
    with _lock:
        existing = _registrations.get((operator.name, profile.name))
        if existing is not None:
            raise RuntimeError(
                f"{operator.name} is registered for platform {profile.name!r} already ({existing.hits} hits so far); "
                "call .remove() on that registration first, or use opgraft.use(), which nests"
            )
        registration = Registration(operator, profile, counter)
        registration._install()
        _registrations[registration._key] = registration
        return registration


def registrations() -> list[Registration]:
    """Every active registration of this process."""
    return list(_registrations.values())


def hold(operators: list[Operator], platform: str) -> list[Registration]:
    """Register several operators, or share the registrations that exist. All or nothing.

    Returns:
        One registration for each operator; give them to :func:`release` when done.
    """
    held: list[Registration] = []
    with _lock, contextlib.ExitStack() as undo:
        undo.callback(lambda: release(held))
        for operator in operators:
            profile = platforms.profiles()[platform]
            existing = _registrations.get((operator.name, platform))
            if existing is None:
                existing = register(operator, profile.dispatch_key, None, platform)
            else:
                existing._holds += 1
            held.append(existing)
        undo.pop_all()
    return held


def release(held: list[Registration]) -> None:
    """Give up holds; a registration that nobody holds any more is removed."""
    with _lock:
        while held:
            registration = held.pop()
            registration._holds -= 1
            if registration._holds == 0:
                registration.remove()
