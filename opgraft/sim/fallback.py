"""What the simulated device does with every ATen operator: PyTorch's own CPU kernels on host aliases.

Three rules, decided once per operator from its schema:

1. An operator that returns a view of its input, or only changes metadata (``set_``), runs PyTorch's CPU
   kernel on the device tensors themselves, so that the storage stays shared and views stay views.
2. Everything else runs on host aliases of its arguments; new results are copied to the device with their
   strides. ``out=`` arguments go through a scratch tensor, since an alias cannot be resized.
3. Random operators draw from the device's own generator, never from the CPU's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch.utils import _pytree as pytree

from . import guard, memory
from .substitutes import SUBSTITUTES

_METADATA_ONLY = {"aten::set_", "aten::set_data"}
#: Operators that native PyTorch lets mix devices: they move the small operand themselves.
_MIXED = {"aten::_copy_from", "aten::_copy_from_and_resize", "aten::copy_", "aten::_has_compatible_shallow_copy_type"}
_MIXED_PREFIXES = (
    "aten::index",
    "aten::_index_put_impl",
    "aten::_unsafe_index",
    "aten::set_",
    "aten::_foreach_",
    "aten::_fused_",
    "aten::_amp_",
)

generators: list[torch.Generator] = []
_name = "sim"
_plans: dict[torch._ops.OpOverload, _Plan] = {}


@dataclass
class _Plan:
    view: bool
    outs: tuple[str, ...]
    generator: bool
    seeded: bool
    mixed: bool
    factory: bool
    tensors: tuple[int, ...]


def _plan(op: torch._ops.OpOverload) -> _Plan:
    plan = _plans.get(op)
    if plan is None:
        schema = op._schema
        returns_view = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
        arguments = {a.name: a for a in schema.arguments}
        plan = _plans[op] = _Plan(
            view=returns_view or schema.name in _METADATA_ONLY,
            outs=tuple(a.name for a in schema.arguments if a.kwarg_only and a.alias_info is not None and a.alias_info.is_write),
            generator="generator" in arguments,
            seeded=torch.Tag.nondeterministic_seeded in op.tags,
            mixed=schema.name in _MIXED or schema.name.startswith(_MIXED_PREFIXES),
            factory="device" in arguments,
            tensors=tuple(i for i, a in enumerate(schema.arguments) if str(a.type) == "Tensor"),
        )
    return plan


def is_sim(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies on the simulated device."""
    return tensor.device.type == _name


def to_device(host: torch.Tensor, index: int) -> torch.Tensor:
    """Copy a CPU tensor to device ``index``, keeping its size and, where it is dense, its stride."""
    out = memory.empty_strided(host.shape, host.stride(), host.dtype, index)
    if host.numel():
        memory.host_alias(out).copy_(host)
    return out


def resize(tensor: torch.Tensor, size, stride=None) -> torch.Tensor:
    """``resize_``: a storage that is too small is replaced (its other views keep the old one)."""
    size = [int(n) for n in size]
    stride = stride or torch.empty(size, device="meta").stride()
    needed = memory.storage_bytes(size, stride, tensor.dtype.itemsize) + tensor.storage_offset() * tensor.dtype.itemsize
    storage = tensor.untyped_storage()
    if needed > storage.nbytes():
        bigger = memory.empty_strided((needed,), (1,), torch.uint8, tensor.device.index)
        if storage.nbytes():
            old = memory.empty_strided((0,), (1,), torch.uint8, tensor.device.index)
            _set(old, storage, 0, (storage.nbytes(),), (1,))
            memory.host_alias(bigger)[: storage.nbytes()].copy_(memory.host_alias(old))
        storage = bigger.untyped_storage()
    return _set(tensor, storage, tensor.storage_offset(), size, stride)


def _set(tensor, storage, offset, size, stride):
    return torch.ops.aten.set_.source_Storage_storage_offset.redispatch(memory.CPU_KEYS, tensor, storage, offset, size, stride)


def _one_device(op, tensors) -> None:
    first = next(t for t in tensors if is_sim(t))
    for other in tensors:
        if other.device != first.device and (is_sim(other) or other.dim()):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{first.device} and {other.device}! (when running {op})"
            )


def fallback(op: torch._ops.OpOverload, *args, **kwargs):
    """The boxed kernel behind every operator that has none of its own on the device."""
    plan = _plan(op)
    if plan.view:
        return op.redispatch(memory.CPU_KEYS, *args, **kwargs)
    if plan.outs:
        args = _without_numbers(plan, args)
    leaves, spec = pytree.tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    on_device = [t for t in tensors if is_sim(t)]
    index = on_device[0].device.index if on_device else None
    if on_device and not plan.mixed:
        _one_device(op, tensors)
    if plan.factory:
        index = _target_index(op, kwargs, index)
    if index is None:
        index = guard.current_device()

    originals: dict[int, torch.Tensor] = {}
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor) and is_sim(leaf):
            leaves[place] = alias = memory.host_alias(leaf)
            originals[id(alias)] = leaf
        elif isinstance(leaf, torch.device) and leaf.type == _name:
            leaves[place] = torch.device("cpu")
    host_args, host_kwargs = pytree.tree_unflatten(leaves, spec)
    scratch = _scratch_outs(plan, host_kwargs, originals)

    with torch._C._AutoDispatchBelowAutograd():
        result = _run(op, plan, index, host_args, host_kwargs)
    for temporary, target in scratch:
        if temporary.shape != target.shape:
            resize(target, temporary.shape, temporary.stride())
        memory.host_alias(target).copy_(temporary)

    def back(leaf):
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return originals[id(leaf)] if id(leaf) in originals else to_device(leaf, index)

    return pytree.tree_map(back, result)


def _without_numbers(plan, args):
    """A boxed kernel is handed the bare number where the schema says Tensor (``x & 1``). Operators take it as such, save
    their ``out=`` variants: a 0-dim tensor then, of a dtype that takes part in promotion as the number would."""
    first = next((a for a in args if isinstance(a, torch.Tensor)), None)
    for i in plan.tensors:
        if i < len(args) and isinstance(args[i], (bool, int, float, complex)):
            widest = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}[type(args[i])]
            promoted = torch.result_type(first, args[i])
            dtype = widest if first.dim() and promoted == first.dtype else promoted
            args = (*args[:i], torch.tensor(args[i], dtype=dtype, device="cpu"), *args[i + 1 :])
    return args


def _target_index(op, kwargs, index):
    device = kwargs.get("device")
    if kwargs.get("pin_memory"):
        raise RuntimeError(f"Only dense CPU tensors can be pinned ({op} was asked for a pinned tensor on {_name})")
    if device is None:
        return index
    return guard.current_device() if device.index is None else device.index


def _scratch_outs(plan, host_kwargs, originals):
    scratch = []

    def swap(alias):
        if not isinstance(alias, torch.Tensor) or id(alias) not in originals:
            return alias
        temporary = torch.empty_strided(alias.shape, alias.stride(), dtype=alias.dtype, device="cpu").copy_(alias)
        scratch.append((temporary, originals[id(alias)]))
        originals[id(temporary)] = originals[id(alias)]
        return temporary

    for name in plan.outs:
        if name in host_kwargs:
            host_kwargs[name] = pytree.tree_map(swap, host_kwargs[name])
    return scratch


def _run(op, plan, index, args, kwargs):
    generator = generators[index]
    if plan.generator:
        if kwargs.get("generator") is None and not any(isinstance(a, torch.Generator) for a in args):
            names = [a.name for a in op._schema.arguments]
            if len(args) > (position := names.index("generator")):
                args = (*args[:position], generator, *args[position + 1 :])
            else:
                kwargs["generator"] = generator
    elif plan.seeded:
        return with_device_state(generator, op, *args, **kwargs)
    return SUBSTITUTES.get(op, op)(*args, **kwargs)


def with_device_state(generator: torch.Generator, function, *args, **kwargs):
    """Call ``function`` with the CPU's default generator standing in the device generator's state."""
    default = torch.default_generator
    saved = default.get_state()
    default.set_state(generator.get_state())
    try:
        return function(*args, **kwargs)
    finally:
        generator.set_state(default.get_state())
        default.set_state(saved)


def _empty_strided(size, stride, *, dtype=None, layout=None, device=None, pin_memory=None):
    index = _target_index("aten::empty_strided", {"device": device, "pin_memory": pin_memory}, None)
    return memory.empty_strided(
        size, stride, dtype or torch.get_default_dtype(), guard.current_device() if index is None else index
    )


def _empty(size, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    dtype = dtype or torch.get_default_dtype()
    shape = torch.empty(size, dtype=dtype, device="meta", memory_format=memory_format)  # checks, and strides
    return _empty_strided(shape.shape, shape.stride(), dtype=dtype, device=device, pin_memory=pin_memory)


def _copy_from(source, destination, non_blocking=False):
    host = memory.host_alias(destination) if is_sim(destination) else destination
    host.copy_(memory.host_alias(source) if is_sim(source) else source)
    return destination


def _copy_from_and_resize(source, destination):
    if source.shape != destination.shape:
        destination.resize_(source.shape)
    return _copy_from(source, destination)


def _resize_(tensor, size, *, memory_format=None):
    if memory_format not in (None, torch.contiguous_format, torch.preserve_format):
        return resize(tensor, size, torch.empty(size, device="meta", memory_format=memory_format).stride())
    return resize(tensor, size)


def _bind(op):
    """A kernel of its own for a hot operator: the same rules as the boxed fallback, looked up once."""
    return lambda *args, **kwargs: op.redispatch(memory.CPU_KEYS, *args, **kwargs)


def install(name: str, library: torch.library.Library, boxed: torch.library.Library) -> None:
    """Register the device's kernels for PrivateUse1, and the pinned memory calls for CPU tensors."""
    global _name
    _name = name
    aten = torch.ops.aten
    for op, kernel in {
        aten.empty.memory_format: _empty,
        aten.empty_strided.default: _empty_strided,
        aten._copy_from.default: _copy_from,
        aten._copy_from_and_resize.default: _copy_from_and_resize,
        aten.resize_.default: _resize_,
        aten.as_strided.default: _bind(aten.as_strided.default),
        aten.view.default: _bind(aten.view.default),
        aten._reshape_alias.default: _bind(aten._reshape_alias.default),
        aten.record_stream.default: lambda tensor, stream: None,
    }.items():
        library.impl(op, kernel, "PrivateUse1")
    for op in SUBSTITUTES:  # convolution_overrideable has a composite kernel that refuses
        library.impl(op, partial(fallback, op), "PrivateUse1")
    library.impl("_pin_memory", lambda tensor, device=None: memory.pinned_copy(tensor), "CPU")
    library.impl("is_pinned", lambda tensor, device=None: memory.is_pinned(tensor), "CPU")
    # PyTorch's conj/neg fallbacks resolve the bit by a clone, which ends in _copy_from again: host aliases carry the
    # bits, so let them through.
    for operator in ("_copy_from", "_copy_from_and_resize"):
        for bit in ("Conjugate", "Negative"):
            library.impl(operator, torch.library.fallthrough_kernel, bit)
    boxed.fallback(fallback, "PrivateUse1")
