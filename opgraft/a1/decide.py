"""What becomes of a call: the override's kernel, or native with a reason."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from opgraft import routing
from opgraft.memo import kept

from .operator import Kernel, Override

Decide = Callable[..., "str | Kernel"]


def decider(operator: str, override: Override, profile) -> Decide:
    """A function of a call's arguments that answers why native runs, or with the kernel to call with them.

    The override's ``unsupported`` is asked first, then the routing table if it declares ``features``. What is decided, and what the
    kernel prepared (:func:`opgraft.kernels.prepared`), is remembered by the call's signature if it declares one.
    """
    unsupported, features, signature = override.unsupported, override.features, override.signature
    implementation = override.kernel_for(profile)
    prepare = getattr(implementation, "prepare", None)
    choose = routing.chooser(override.routes or operator, profile.name, routing.from_environment(operator))

    def decide(*args, **kwargs) -> str | Kernel:
        reason = unsupported(*args, **kwargs)
        if reason is None and features is not None:
            reason = choose(features(*args, **kwargs))
        if reason is not None:
            return reason
        return implementation if prepare is None else prepare(*args, **kwargs)

    if signature is None:
        return decide
    decided: dict[Hashable, str | Kernel] = {}
    forced, observed = routing.forced, routing.observed

    def remembered(*args, **kwargs) -> str | Kernel:
        try:
            key = forced(), signature(*args, **kwargs)
        except (RuntimeError, TypeError):  # a tensor without strides, or arguments that native refuses
            return decide(*args, **kwargs)
        found = decided.get(key)
        if found is not None and not observed:
            return found
        if key[1] is None or observed:
            return decide(*args, **kwargs)
        return kept(decided, key, decide, *args, **kwargs)

    return remembered
