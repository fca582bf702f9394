"""opgraft: graft an accelerator's own kernels onto PyTorch's ATen operators, and prove it.

``enable(ops, platform)`` replaces operators for the process, ``with use(ops, platform)`` for a block, and
``disable()`` takes back what ``enable`` did. One operator by itself: ``from opgraft.ops.clone import register_a1``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opgraft.a1 import Registration

__version__ = "0.1.0"
__all__ = ["disable", "enable", "operators", "use"]

_enabled: list[Registration] = []


def operators(ops: str | Iterable[str] | None = None) -> list:
    """Declarations of operators by name; all that can be registered if ``ops`` is None.

    Raises:
        ValueError: a name that is no operator; lists those that are.
    """
    from opgraft import catalogue

    return catalogue.select(ops)


def enable(ops: str | Iterable[str] | None = None, platform: str | None = None) -> list[Registration]:
    """Replace operators on a platform until :func:`disable`. All of them or, on an error, none.

    Args:
        ops: names of operators; None means every operator that can be registered.
        platform: the platform's name; None means the one of the PrivateUse1 backend that is present, else cuda,
            if it is usable.

    Returns:
        Their registrations. An operator that is registered already is shared, not registered again.

    Raises:
        ValueError: unknown operator. RuntimeError: platform not usable here, or a registration refused.
        NotImplementedError: an operator that cannot be registered by design was named.
    """
    from opgraft.a1 import register

    held = register.hold(operators(ops), _platform(platform))
    _enabled.extend(held)
    return list(held)


def disable() -> None:
    """Take back everything :func:`enable` did. Blocks of :func:`use` and single registrations stay."""
    from opgraft.a1 import register

    register.release(_enabled)


@contextlib.contextmanager
def use(ops: str | Iterable[str] | None = None, platform: str | None = None) -> Iterator[list[Registration]]:
    """Replace operators inside a ``with`` block; blocks nest. Arguments and errors as for :func:`enable`."""
    from opgraft.a1 import register

    held = register.hold(operators(ops), _platform(platform))
    try:
        yield list(held)
    finally:
        register.release(held)


def _platform(name: str | None) -> str:
    from opgraft import platforms

    known = platforms.profiles()
    if name is not None:
        if name not in known:
            raise RuntimeError(f"unknown platform {name!r}; known: {', '.join(known)}")
        return name
    present = platforms.backend_name()
    if present is not None:
        return platforms.resolve("AutogradPrivateUse1", None).name
    if platforms.probe(known["cuda"]).usable:
        return "cuda"
    raise RuntimeError(
        f"no accelerator is present, so name the platform: {', '.join(known)}. For a simulated one call opgraft.sim.enable() first"
    )
