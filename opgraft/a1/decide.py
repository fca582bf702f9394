"""What becomes of a call: the override's kernel, or native with a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opgraft import routing

from .arguments import by_name
from .declare import Composite, Kernel, Override


class Decider:
    """What becomes of the calls of one override on one platform.

    The override's ``unsupported`` is asked first, then the routing table if it declares ``features``. Nothing is remembered here: the
    call path keeps what was decided by the call's signature.
    """

    def __init__(self, operator: str, override: Override, profile):
        schema = override.overload._schema
        self._kernel = override.kernel_for(profile)
        self._prepare: Callable[..., Kernel] | None = getattr(self._kernel, "prepare", None)
        self._unsupported = by_name(override.unsupported, schema)
        self._features = by_name(override.features, schema) if override.features is not None else None
        self._choose = routing.chooser(override.routes or operator, profile.name, routing.from_environment(operator))
        self._composite = issubclass(override.gradient, Composite)

    def __call__(self, *args, **kwargs) -> str | Kernel:
        """Why native runs, or what to call with the same arguments, for this call and every one of its signature."""
        reason = self.reason(*args, **kwargs)
        if reason is not None:
            return reason
        return self._kernel if self._prepare is None else self._prepare(*args, **kwargs)

    def reason(self, *args: Any, **kwargs: Any) -> str | None:
        """Why native runs, or None."""
        reason = self._unsupported(*args, **kwargs)
        if reason is not None:
            return reason
        return self._choose(None if self._features is None else self._features(*args, **kwargs))

    def traced(self, *args: Any, **kwargs: Any) -> str | None:
        """Why native is recorded for a call that only records what it would do, whose sizes may be symbols; None for ours.

        Nothing is prepared. The table is asked only for a :class:`Composite`, which is recorded as the operators it is made of; every
        other call is decided again when it runs.
        """
        return self.reason(*args, **kwargs) if self._composite else self._unsupported(*args, **kwargs)
