"""What is registered in this process, and the calls that change it.

State lives here only, keyed by operator name and platform, so it does not matter under which module name an
operator's folder was imported.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Callable

import torch

from opgraft import platforms

from . import dispatch
from .decide import Decider
from .operator import Operator

_lock = threading.RLock()
_registrations: dict[tuple[str, str], Registration] = {}


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
        self._hits = 0
        self._inference_hits = 0
        self._backward_hits = 0
        self._native: Counter[str] = Counter()
        self._counter = counter
        self._counting = threading.Lock()
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
        return self._hits

    @property
    def inference_hits(self) -> int:
        """Of :attr:`hits`, those under ``torch.inference_mode()``: what an engine's forward makes, loading weights does not."""
        return self._inference_hits

    @property
    def backward_hits(self) -> int:
        """Calls of the overrides that are derivatives (``backward`` in their declaration); not among :attr:`hits`."""
        return self._backward_hits

    @property
    def handed_to_native(self) -> dict[str, int]:
        """Calls that were handed to the native kernel, by reason."""
        return dict(self._native)

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

    def _count(self) -> None:
        with self._counting:
            self._hits += 1
            if torch.is_inference_mode_enabled():
                self._inference_hits += 1
            if self._counter is not None:
                self._counter["n"] += 1

    def _count_backward(self) -> None:
        with self._counting:
            self._backward_hits += 1

    def _hand_over(self, reason: str) -> None:
        with self._counting:
            self._native[reason] += 1

    def _install(self) -> None:
        try:
            for override in self.operator.overrides:
                problem = dispatch.schema_problem(override)
                if problem:
                    raise RuntimeError(f"{self.operator.name}: {problem}")
                count = self._count_backward if override.backward else self._count
                decide = Decider(self.operator.name, override, self.profile)
                installed = dispatch.install(override, self.profile, decide, count, self._hand_over)
                self._undo.append(installed.remove)
                problem = dispatch.unreachable(override, self.profile)
                if problem:
                    raise RuntimeError(f"{self.operator.name}: registration refused, it could not be reached: {problem}")
            if self.operator.companion is not None:
                self._undo.append(self.operator.companion(self.profile))
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
        registration._counting = threading.Lock()


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
