"""The call path in Python, for where there is no C++ one: the same steps, some ten times as long.

PyTorch frees a Python kernel when it is removed, also under a thread that is inside it, and a thread that reads the dispatcher's table
during a removal may pair one kernel's object with the other's function. So a removal leaves the kernel in place, passing every call on
to native, while another thread calls it (:meth:`PythonInstalled.uninstall`); it is taken out by a later registration or removal, once
those threads are gone. What is left of the danger: a thread whose first call of the operator falls into the removal itself, some
nanoseconds long. docs/call-path.md says more.
"""

from __future__ import annotations

import functools
import itertools
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch

from opgraft import call_path
from opgraft.memo import kept

from .derive import has_tangent, is_traced

#: How long a removal waits to see whether another thread calls the operator, in seconds: twice what Python lets a thread run on.
WATCH_SECONDS = 0.01
_below_autograd = torch._C._AutoDispatchBelowAutograd
_any_requires_grad = torch._C._any_requires_grad
_data_address = torch._C._data_address  # type: ignore[attr-defined]
_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


_number = itertools.count()


class Tallies:
    """Counts of one kernel: every call, by what answered it."""

    def __init__(self, counter: dict | None):
        self._lock = threading.Lock()
        self._counter = counter
        self._calls: Counter[tuple[str | None, bool]] = Counter()
        self._numbers: dict[str | None, int] = {}

    def count(self) -> None:
        """A call that our kernel answers."""
        self._add(None)

    def hand_over(self, reason: str) -> None:
        """A call that native answers, and why."""
        self._add(reason)

    def _add(self, reason: str | None) -> None:
        with self._lock:
            if reason not in self._numbers:
                self._numbers[reason] = next(_number)
            self._calls[reason, torch.is_inference_mode_enabled()] += 1
            if self._counter is not None:
                self._counter["n"] += 1

    @property
    def hits(self) -> int:
        """All calls."""
        return sum(self._calls.copy().values())

    @property
    def inference_hits(self) -> int:
        """Those in inference mode."""
        return sum(n for (_, inference), n in self._calls.copy().items() if inference)

    @property
    def handed(self) -> list[tuple[int, str, int]]:
        """Those that native answered: a number by which reasons that came up first come first, the reason, how many."""
        found: Counter[str] = Counter()
        for (reason, _), n in self._calls.copy().items():
            if reason is not None:
                found[reason] += n
        return [(self._numbers[reason], reason, n) for reason, n in found.items()]

    def renew_lock(self) -> None:
        """In a forked child, where another thread's hold would never end."""
        self._lock = threading.Lock()


def _address(tensor: torch.Tensor) -> int:
    # Of the storage; data_ptr() would make a lazy clone a real one.
    return _data_address(tensor) + tensor.storage_offset() * tensor.dtype.itemsize


def _flat(values) -> Iterator[Any]:
    """Arguments one by one, those in lists with the lists' lengths before them."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield len(value)
            yield from _flat(value)
        else:
            yield value


def signature(args: tuple, kwargs: dict) -> Hashable:
    """Everything that a decision about a call may depend on, as the C++ path's; None for one that must be looked at anew."""
    words: list[Any] = [call_path.forced(), torch.get_default_dtype()]
    spans: list[tuple[int, int]] = []
    grad = False
    for value in _flat((args, *kwargs.items())):
        if not isinstance(value, torch.Tensor):
            words.append((type(value), value))  # 1, 1.0 and True are equal
            continue
        if value.layout is not torch.strided or is_traced((value,)):
            return None
        address, width = _address(value), value.dtype.itemsize
        grad = grad or value.requires_grad
        words.append((
            value.dtype, value.shape, value.stride(), value.device, value.is_conj(), value.is_neg(), value._is_zerotensor(),
            value.is_inference(), address & 15,
        ))  # fmt: skip
        end = address + (0 if 0 in value.shape else width * (1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride()))))
        for i, (low, high) in enumerate(spans):
            if low < end and address < high and address < end:
                words.append((i, address - low))  # where tensors that share memory lie relative to each other
        spans.append((address, end))
    words.append(grad and torch.is_grad_enabled())
    return tuple(words)


class _Site:
    """An operator at a dispatch key: the kernel in the dispatcher, which lives on as a pass-through between registrations."""

    def __init__(self, overload: torch._ops.OpOverload, key: str):
        self.overload, self.key = overload, key
        self.library: torch.library.Library | None = None
        self.live: PythonInstalled | None = None
        self.claimed = False
        self.native: Any = None
        self.callers: set[int] = set()
        self.when_gone: list[Callable[[], None]] = []

    def put(self, native: Callable[..., Any], kernel: Callable[..., Any]) -> None:
        self.native = native
        self.callers.clear()
        self.library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            # Replacing a kernel is what the user asked for.
            warnings.filterwarnings("ignore", message=r"[\s\S]*Overriding a previously registered kernel")
            self.library.impl(self.overload, kernel, self.key, with_keyset=True, allow_override=True)

    def take_out(self) -> None:
        library, self.library = self.library, None
        if library is not None:
            library._destroy()
        while self.when_gone:
            self.when_gone.pop()()

    def called_elsewhere(self) -> bool:
        """Whether a Python thread that lives has called it, but for this one. Autograd's threads call within somebody's backward."""
        threads = {t.ident for t in threading.enumerate() if not isinstance(t, threading._DummyThread)}
        return bool(self.callers & (threads - {threading.get_ident()}))


_sites: dict[tuple[str, str], _Site] = {}


def _tidy() -> None:
    """Take out the pass-throughs that no other thread calls any more."""
    for site in _sites.values():
        if site.library is not None and not site.claimed and not site.called_elsewhere():
            site.take_out()


class PythonInstalled(Tallies):
    """One kernel of a registration in the dispatcher, as the C++ path's class of the same methods.

    Args:
        overload: the operator.
        key: the dispatch key.
        role: ``backend``; ``autograd`` for an operator that PyTorch composes; ``formula`` for PyTorch's own derivative.
        planner: arguments to a reason or to what runs.
        recorder: the same for a call whose gradient is kept, or None.
        uncertain: runs what no plan serves at the autograd key, or None.
        counter: the user's dictionary, or None.
        native_key: where the native kernel is captured.
    """

    typed = False

    def __init__(self, overload, key, role, planner, recorder, uncertain, counter, native_key):
        super().__init__(counter)
        self._site = _sites.setdefault((str(overload), key), _Site(overload, key))
        self._role, self._planner, self._recorder, self._uncertain = role, planner, recorder, uncertain
        self._native_key = native_key
        self._plans: dict[Hashable, Any] = {}
        self._installed = False

    @property
    def plans(self) -> int:
        """How many decisions are remembered."""
        return len(self._plans)

    def install(self, debug: str) -> None:
        """Put it into the dispatcher; calls pass through until :meth:`start`."""
        _tidy()
        if self._site.claimed:
            raise RuntimeError(f"{self._site.overload} at {self._site.key} is replaced by opgraft already")
        if self._site.library is None:
            native = torch.library.get_kernel(self._site.overload, self._native_key).call_boxed
            self._site.put(native, _kernel(self._site, self._role))
        self._installed = self._site.claimed = True

    def start(self) -> None:
        """Calls are ours from here on."""
        self._site.live = self

    def stop(self) -> None:
        """Calls go to native from here on."""
        if self._site.live is self:
            self._site.live = None
        self._plans.clear()

    def when_gone(self, undo: Callable[[], None]) -> None:
        """Call ``undo`` once it is really out of the dispatcher."""
        self._site.when_gone.append(undo)

    def uninstall(self) -> None:
        """Take it out, or leave it as a pass-through where another thread calls it: one that did, or does within
        :data:`WATCH_SECONDS`."""
        if not self._installed:
            return
        self._installed = self._site.claimed = False
        if threading.active_count() > 1 and not self._site.called_elsewhere():
            time.sleep(WATCH_SECONDS)
        _tidy()

    def decide(self, record: bool, args: tuple, kwargs: dict) -> Any:
        """A reason, or what runs; remembered by the call's signature."""
        planner = self._recorder if record else self._planner
        if not call_path.remembering():
            return planner(*args, **kwargs)
        try:
            key = signature(args, kwargs)
            hash(key)
        except (RuntimeError, TypeError):  # a tensor without strides, a size that is a symbol, arguments that native refuses
            key = None
        if key is None:
            return planner(*args, **kwargs)
        return kept(self._plans, key, planner, *args, **kwargs)


def _kernel(site: _Site, role: str) -> Callable[..., Any]:
    wrap = _without_numbers(site.overload)
    after_autograd = torch._C._after_autograd_keyset

    def below(keyset, *args, **kwargs):
        with _below_autograd():
            return site.overload.redispatch(keyset & after_autograd, *args, **kwargs)

    def kernel(keyset, *args, **kwargs):
        if wrap is not None:
            args = wrap(args)
        live, native = site.live, functools.partial(site.native, keyset)
        site.callers.add(threading.get_ident())
        if role == "formula" or live is None or call_path.inside():
            return native(*args, **kwargs)
        record = False
        if role == "autograd":
            record = live._recorder is not None and torch.is_grad_enabled() and _any_requires_grad(*args)
            if live._recorder is not None and (has_tangent(args) or (record and is_traced(args))):
                return live._uncertain(keyset, *args, **kwargs)
            if not record:
                return below(keyset, *args, **kwargs)
        before = call_path.set_inside(True)
        try:
            try:
                decided = live.decide(record, args, kwargs)
            except BaseException:
                live.count()
                raise
            if isinstance(decided, str):
                live.hand_over(decided)
                return native(*args, **kwargs)
            if not getattr(decided, "whole", True):
                call_path.set_inside(before)
                return decided(keyset, *args, **kwargs)
            live.count()
            return decided(keyset, *args, **kwargs) if record else decided(*args, **kwargs)
        finally:
            call_path.set_inside(before)

    return kernel


def _without_numbers(overload: torch._ops.OpOverload) -> Callable[[tuple], tuple] | None:
    """PyTorch hands a Python kernel the bare number where native is handed a tensor that wraps it (``x[i] = 32`` calls copy_); a
    function that makes it a 0-dim tensor again, or None if there is no need."""
    positions = [i for i, a in enumerate(overload._schema.arguments) if str(a.type) == "Tensor" and i > 0]
    if not positions:
        return None

    def wrap(args: tuple) -> tuple:
        for i in positions:
            if i < len(args) and type(args[i]) in _NUMBERS:
                number = torch.tensor(args[i], dtype=_NUMBERS[type(args[i])], device="cpu")
                args = (*args[:i], number, *args[i + 1 :])
        return args

    return wrap
