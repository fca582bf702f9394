"""``torch.<name>``: the Python module PyTorch and user scripts expect of a device."""

from __future__ import annotations

import time

import torch

from . import fallback, guard, memory


class Stream:
    """A stream. Work on the simulated device is finished when a call returns, so a stream orders nothing."""

    def __init__(self, device=None, priority: int = 0, **_):
        self.device = torch.device(fallback._name, _index(device))
        self.stream_id = 0

    def synchronize(self) -> None:
        """Nothing is pending."""

    def query(self) -> bool:
        """All work is done."""
        return True

    def wait_stream(self, stream) -> None:
        """Nothing to wait for."""

    def wait_event(self, event) -> None:
        """Nothing to wait for."""

    def record_event(self, event=None):
        """Record ``event`` (or a new one) now."""
        event = event or Event(enable_timing=True)
        event.record(self)
        return event

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


class Event:
    """An event; ``elapsed_time`` is host time in milliseconds, since work runs as it is called."""

    def __init__(self, enable_timing: bool = False, **_):
        self._at: float | None = None

    def record(self, stream=None) -> None:
        """Note the host time."""
        self._at = time.perf_counter()

    def query(self) -> bool:
        """All work is done."""
        return True

    def synchronize(self) -> None:
        """Nothing is pending."""

    def wait(self, stream=None) -> None:
        """Nothing to wait for."""

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds of host time between two recorded events."""
        if self._at is None or end._at is None:
            raise RuntimeError("both events must be recorded before calculating elapsed time")
        return (end._at - self._at) * 1e3


class Generator(torch.Generator):
    """A generator for the simulated device: a CPU generator that names the device it serves.

    ``torch.Generator(device=...)`` itself asks a C++ hook that Python cannot supply and raises; use this
    class (``torch.<name>.Generator()``), or any CPU generator: the device's operators take both.
    """

    def __new__(cls, device=None):
        """A generator for a device index, the current one if ``device`` is None."""
        return cls._for_index(_index(device))

    @classmethod
    def _for_index(cls, index: int) -> Generator:
        generator = torch.Generator.__new__(cls, "cpu")
        generator._index = index
        return generator

    @property
    def device(self) -> torch.device:
        """The device index this generator serves."""
        return torch.device(fallback._name, self._index)


def _index(device) -> int:
    if device is None:
        return guard.current_device()
    if isinstance(device, int):
        index = device
    else:
        device = torch.device(device)
        if device.type != fallback._name:
            raise ValueError(f"expected a {fallback._name} device, got {device}")
        index = guard.current_device() if device.index is None else device.index
    count = len(fallback.generators)
    if not 0 <= index < count:
        raise RuntimeError(f"invalid device index {index}: this process has {count} simulated device(s), 0 to {count - 1}")
    return index


class device:
    """Context manager: make a device index current, and the previous one again on exit."""

    def __init__(self, device):
        self.idx = -1 if isinstance(device, int) and device < 0 else _index(device)
        self.prev_idx = -1

    def __enter__(self):
        self.prev_idx = guard.current_device()
        if self.idx >= 0:
            guard.set_current_device(self.idx)
        return self

    def __exit__(self, *_):
        guard.set_current_device(self.prev_idx)
        return False


class device_of(device):
    """Context manager: make the device of a tensor current; nothing for a tensor elsewhere."""

    def __init__(self, tensor: torch.Tensor):
        super().__init__(tensor.device.index if fallback.is_sim(tensor) else -1)


class _Properties:
    def __init__(self, index: int):
        self.name = get_device_name(index)
        self.total_memory = mem_get_info()[1]
        self.multi_processor_count = 1
        self.major, self.minor = 0, 0


#: torch.utils.checkpoint saves a device's RNG state only if this says that the device was used.
_initialized = True


def is_available() -> bool:
    """The device exists once it was enabled."""
    return True


def is_initialized() -> bool:
    """Nothing is initialised lazily."""
    return True


def _is_in_bad_fork() -> bool:
    return False


def _lazy_init() -> None:
    return None


def device_count() -> int:
    """How many device indexes this process has."""
    return len(fallback.generators)


def current_device() -> int:
    """The calling thread's current device index."""
    return guard.current_device()


def set_device(device) -> None:
    """Make a device index current for the calling thread."""
    guard.set_current_device(_index(device))


def _exchange_device(index: int) -> int:
    previous = guard.current_device()
    if index >= 0:
        guard.set_current_device(index)
    return previous


_maybe_exchange_device = _exchange_device


def get_device_name(device=None) -> str:
    """Says that the device is simulated, whatever it is called."""
    return f"opgraft simulated {fallback._name} (host memory, index {_index(device)})"


def get_device_capability(device=None) -> tuple[int, int]:
    """A simulated device has no compute capability: (0, 0)."""
    return (0, 0)


def get_device_properties(device=None) -> _Properties:
    """Name, total memory in bytes, multiprocessors (1)."""
    return _Properties(_index(device))


def mem_get_info(device=None) -> tuple[int, int]:
    """(free, total) bytes: the host's memory."""
    import os

    page = os.sysconf("SC_PAGE_SIZE")
    return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page


def memory_allocated(device=None) -> int:
    """Bytes in live allocations, over all device indexes."""
    return memory.bytes_used()


memory_reserved = memory_allocated


def max_memory_allocated(device=None) -> int:
    """The most bytes live at once."""
    return memory.peak_bytes()


max_memory_reserved = max_memory_allocated


def memory_stats(device=None) -> dict[str, int]:
    """Bytes live now, and the most at once, under the names that PyTorch's own allocators use."""
    return {"allocated_bytes.all.current": memory.bytes_used(), "allocated_bytes.all.peak": memory.peak_bytes()}


def reset_peak_memory_stats(device=None) -> None:
    """Start :func:`max_memory_allocated` anew."""
    memory.peak_bytes(reset=True)


reset_accumulated_memory_stats = reset_peak_memory_stats


def empty_cache() -> None:
    """Nothing is cached."""


empty_host_cache = empty_cache


def synchronize(device=None) -> None:
    """Work is finished when a call returns, so this is where faults come up: see :func:`check_memory`."""
    check_memory()


def check_memory() -> None:
    """Check every red zone and the freed blocks. Raises ``opgraft.sim.MemoryFault``."""
    memory.check()


def current_stream(device=None) -> Stream:
    """The one stream."""
    return Stream(device)


default_stream = current_stream


def set_stream(stream) -> None:
    """Accepted; there is one stream."""


def stream(stream):
    """A context manager that does nothing."""
    return stream if stream is not None else Stream()


def manual_seed(seed: int) -> None:
    """Seed the current device's generator."""
    fallback.generators[guard.current_device()].manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed the generator of every device index; ``torch.manual_seed`` calls this."""
    for generator in fallback.generators:
        generator.manual_seed(int(seed))


def seed() -> int:
    """Seed the current device's generator from the system's entropy."""
    return fallback.generators[guard.current_device()].seed()


def seed_all() -> None:
    """Seed every device's generator from the system's entropy."""
    for generator in fallback.generators:
        generator.seed()


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return fallback.generators[guard.current_device()].initial_seed()


def get_rng_state(device=None) -> torch.Tensor:
    """The generator's state, a CPU uint8 tensor."""
    return fallback.generators[_index(device)].get_state()


def set_rng_state(new_state: torch.Tensor, device=None) -> None:
    """Restore a state that :func:`get_rng_state` gave."""
    fallback.generators[_index(device)].set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """The state of every device's generator."""
    return [generator.get_state() for generator in fallback.generators]


def set_rng_state_all(states) -> None:
    """Restore what :func:`get_rng_state_all` gave."""
    for generator, state in zip(fallback.generators, states):
        generator.set_state(state)


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes autocast may cast to."""
    return [torch.float16, torch.bfloat16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """bf16 runs, as on the CPU."""
    return True
