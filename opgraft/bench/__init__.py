"""Benchmarks: an operator's own kernel beside native PyTorch and peers, in one run (``opgraft bench``).

Every way to run a case (native, own, routed, a peer) has a process of its own, since a peer's ``enable()`` holds for the
whole process; the processes take turns, a short sample each, so that what drifts on the machine drifts for all.
An operator's ``bench.py`` declares its cases in ``CASES``.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opgraft import catalogue

#: native: nothing is registered. own: our kernel. routed: what the table says. handed: registered, but every call handed to
#: native, which is what a table can choose instead of own.
WAYS = ("native", "own", "routed", "handed", "flaggems")


@dataclass(frozen=True)
class Case:
    """One measured call.

    Attributes:
        name: unique within the operator, as ``bf16 2^27``.
        make: given a device string, one set of arguments for ``call``. It is called for every set in rotation, with the
            operator registered or not as the way says.
        call: the ordinary PyTorch call.
        nbytes: the fewest bytes that must move: each input read once, each output written once; 0 where arithmetic is
            the limit.
        flops: arithmetic operations where they are the limit, else 0.
        group: cases of one group differ in size only and form a curve in the plots.
        graph: whether the call can be captured in a device graph (item cannot: it waits for the device).
        route: whether ``--route`` decides by it.
        peer: for ``flaggems``, the function to call instead, as ``module:function``, where its ``enable()`` does not reach.
    """

    name: str
    make: Callable[[str], tuple]
    call: Callable[..., Any]
    nbytes: int = 0
    flops: int = 0
    group: str = ""
    graph: bool = True
    route: bool = True
    peer: str | None = None


def cases(operator: str) -> list[Case]:
    """The cases of an operator; empty if it declares none."""
    module = f"{catalogue.modules()[operator]}.bench"
    return list(importlib.import_module(module).CASES) if importlib.util.find_spec(module) else []
