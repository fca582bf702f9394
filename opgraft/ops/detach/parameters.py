"""nn.Parameter while detach is overridden in Python, where there is no C++ call path.

``torch.Tensor._make_subclass``, which makes every ``nn.Parameter``, detaches in C++ and then gives the result a new Python
object. A Python override has given it one already, and PyTorch refuses ("the raw Tensor object is already associated to
a python object"). So while the override is in place, tensors of its devices become a subclass the Python way: detached,
then their class is set. Found on PyTorch 2.13.0 (docs/dispatcher.md); tensors elsewhere are made as ever.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from opgraft import call_path

_devices: list[str] = []
_native = torch.Tensor._make_subclass


def _make_subclass(cls, data, requires_grad=False, **kwargs):
    if data.device.type == "meta":
        # A FakeTensor's memoryless part may carry our device's dispatch keys: keep its detach at the Meta key.
        before = torch._C._meta_in_tls_dispatch_include()
        torch._C._set_meta_in_tls_dispatch_include(True)
        try:
            return _native(cls, data, requires_grad, **kwargs)
        finally:
            torch._C._set_meta_in_tls_dispatch_include(before)
    if data.device.type not in _devices or kwargs:
        return _native(cls, data, requires_grad, **kwargs)
    made = data.detach().requires_grad_(requires_grad)  # before the class is set: an UninitializedParameter refuses it
    made.__class__ = cls
    return made


def keep_parameters_working(profile) -> Callable[[], None]:
    """Take over ``_make_subclass`` for a platform's device; returns the function that gives it back. On the C++ call path nothing is to be
    done: the alias that it returns has no Python object yet."""
    if call_path.extension() is not None:
        return lambda: None
    import torch._dynamo  # it looks up PyTorch's own _make_subclass when it is imported, and must not find this one

    _devices.append(profile.device_type)
    torch.Tensor._make_subclass = staticmethod(_make_subclass)

    def undo() -> None:
        _devices.remove(profile.device_type)
        if not _devices:
            torch.Tensor._make_subclass = _native

    return undo
