"""What becomes of a call: the override's kernel, or native with a reason."""

from __future__ import annotations

from collections.abc import Hashable

from opgraft import routing
from opgraft.memo import kept

from .operator import Composite, Kernel, Override


class Decider:
    """What becomes of the calls of one override on one platform.

    The override's ``unsupported`` is asked first, then the routing table if it declares ``features``.
    """

    def __init__(self, operator: str, override: Override, profile):
        self._override = override
        self._kernel = override.kernel_for(profile)
        self._prepare = getattr(self._kernel, "prepare", None)
        self._choose = routing.chooser(override.routes or operator, profile.name, routing.from_environment(operator))
        self._decided: dict[Hashable, str | Kernel] = {}

    def __call__(self, *args, **kwargs) -> str | Kernel:
        """Why native runs, or the kernel to call with the same arguments.

        Both, and what the kernel prepared (:func:`opgraft.kernels.prepared`), are remembered by the call's signature if the override
        declares one.
        """
        signature, decided = self._override.signature, self._decided
        if signature is None:
            return self._decide(*args, **kwargs)
        try:
            key = routing.forced(), signature(*args, **kwargs)
            found = decided.get(key)
        except (RuntimeError, TypeError):  # a tensor without strides, a size that is a symbol, arguments that native refuses
            return self._decide(*args, **kwargs)
        if found is not None and not routing.observed:
            return found
        if key[1] is None or routing.observed:
            return self._decide(*args, **kwargs)
        return kept(decided, key, self._decide, *args, **kwargs)

    def _decide(self, *args, **kwargs) -> str | Kernel:
        reason = self._reason(True, *args, **kwargs)
        if reason is not None:
            return reason
        return self._kernel if self._prepare is None else self._prepare(*args, **kwargs)

    def _reason(self, routed: bool, *args, **kwargs) -> str | None:
        reason = self._override.unsupported(*args, **kwargs)
        if reason is None and routed and self._override.features is not None:
            reason = self._choose(self._override.features(*args, **kwargs))
        return reason

    def traced(self, *args, **kwargs) -> str | None:
        """Why native is recorded for a call that only records what it would do, whose sizes may be symbols; None for ours.

        Nothing is remembered or prepared. The table is asked only for a :class:`Composite`, which is recorded as the operators it is made
        of; every other call is decided again when it runs.
        """
        return self._reason(issubclass(self._override.gradient, Composite), *args, **kwargs)
