"""Route A1: validation, counting, nesting, other libraries' overrides, and what must never happen."""

import dataclasses
import os
import threading

import pytest
import torch

import opgraft
from opgraft.a1 import Formula, NotDifferentiable, Operator, Override, install, register, registrations
from opgraft.ops.clone import OPERATOR, register_a1
from opgraft.platforms import profiles

SIM = profiles()["sim"]


def x(**kwargs):
    return torch.arange(6.0, device="sim", **kwargs).reshape(2, 3)


@pytest.mark.parametrize(
    "arguments, error, words",
    [
        (dict(dispatch_key="Autograd"), RuntimeError, ["alias", "every other backend"]),
        (dict(dispatch_key="Foo"), RuntimeError, ["unknown dispatch key 'Foo'", "AutogradPrivateUse1"]),
        (dict(platform="acme"), RuntimeError, ["unknown platform 'acme'", "cambricon", "ascend", "cuda", "cpu", "sim"]),
        (dict(dispatch_key="AutogradCUDA", platform="cpu"), RuntimeError, ["does not belong", "AutogradCPU or CPU"]),
        (dict(dispatch_key="CPU", platform="sim"), RuntimeError, ["does not belong", "PrivateUse1"]),
        (dict(platform="cambricon"), RuntimeError, ["torch_mlu is not installed", "backend 'sim'"]),
        (dict(dispatch_key="CUDA"), RuntimeError, ["no cuda device is present"]),
        (dict(counter=[]), TypeError, ["counter", "dict", "list"]),
        (dict(dispatch_key=None), TypeError, ["dispatch_key", "NoneType"]),
        (dict(platform=3), TypeError, ["platform", "int"]),
    ],
)
def test_what_is_refused_and_the_message(arguments, error, words):
    before = torch._C._dispatch_dump("aten::clone")
    with pytest.raises(error) as raised:
        register_a1(**arguments)
    assert all(word in str(raised.value) for word in words), str(raised.value)
    assert torch._C._dispatch_dump("aten::clone") == before and not registrations()


@pytest.mark.parametrize("key", ["AutogradPrivateUse1", "PrivateUse1"])
def test_platform_follows_from_the_backend_that_is_present(key):
    with register_a1(key) as registration:
        assert registration.profile.name == "sim"


def test_counter_and_hits():
    counter = {"n": 5, "mine": "untouched"}
    with register_a1(counter=counter) as registration:
        x().clone()
        x().clone()
        with torch.inference_mode():
            x().clone()
    assert counter == {"n": 8, "mine": "untouched"} and (registration.hits, registration.inference_hits) == (3, 1)
    x().clone()
    assert counter["n"] == 8


def test_the_library_keeps_a_registration_alive():
    counter = {}
    register_a1(counter=counter)
    import gc

    gc.collect()
    x().clone()
    assert counter["n"] == 1
    registrations()[0].remove()


def test_twice_for_a_platform_says_so():
    with register_a1():
        with pytest.raises(RuntimeError, match=r"clone is registered for platform 'sim' already.*remove\(\)"):
            register_a1("PrivateUse1")
        with register_a1("CPU"):  # another platform is another registration
            assert len(registrations()) == 2


def test_removing_twice_and_out_of_order():
    a, b = register_a1(), register_a1("CPU")
    a.remove()
    a.remove()
    assert registrations() == [b] and not a.active
    b.remove()


def test_use_nests_and_shares():
    with opgraft.use("clone") as (outer,):
        with opgraft.use(["clone"], platform="sim") as (inner,):
            assert inner is outer
        assert outer.active
        x().clone()
    assert outer.hits == 1 and not outer.active


def test_enable_twice_disable_once():
    enabled = opgraft.enable("clone")
    assert opgraft.enable("clone") == enabled
    with opgraft.use("clone"):
        opgraft.disable()
        assert enabled[0].active, "disable() must not end a block of use()"
    assert not enabled[0].active
    opgraft.disable()


def test_use_survives_an_exception():
    with pytest.raises(ZeroDivisionError), opgraft.use("clone"):
        raise ZeroDivisionError
    assert not registrations()


def test_all_or_nothing(monkeypatch):
    bad = Operator(
        "bad", (dataclasses.replace(OPERATOR.overrides[0], schema="aten::clone(Tensor self, int nonsense) -> Tensor"),)
    )
    before = torch._C._dispatch_dump("aten::clone")
    with pytest.raises(RuntimeError, match="declares aten::clone"):
        register.hold([OPERATOR, bad], "sim")
    assert not registrations() and torch._C._dispatch_dump("aten::clone") == before


def test_unknown_operator_and_platform():
    with pytest.raises(ValueError, match="unknown operator 'nope'; operators: .*clone"):
        opgraft.enable("nope")
    with pytest.raises(RuntimeError, match="unknown platform 'acme'"):
        opgraft.enable("clone", platform="acme")


def test_on_top_of_another_library():
    """FlagGems and torch._native override through torch.library, as here."""
    calls = []
    native = torch.library.get_kernel("aten::clone", "PrivateUse1").call_boxed

    def theirs(keyset, self, *, memory_format=None):
        calls.append("theirs")
        return native(keyset, self, memory_format=memory_format)

    other = torch.library.Library("aten", "IMPL")
    other.impl("clone", theirs, "PrivateUse1", with_keyset=True)
    try:
        with register_a1() as registration:
            x().clone()
            assert (registration.hits, calls) == (1, [])
            torch.tensor([1j], device="sim").conj().clone()  # handed to native, which is theirs
            assert registration.handed_to_native == {"conj or neg bit set": 1} and calls == ["theirs"]
        x().clone()
        assert calls == ["theirs", "theirs"], "their override must be reached again"
    finally:
        other._destroy()


def test_a_vendor_kernel_at_the_autograd_key_does_not_shadow_ours():
    """torch_npu puts kernels of its own at the autograd key for some operators."""

    def vendors(self, *, memory_format=None):
        with torch._C._AutoDispatchBelowAutograd():
            return self * 1

    vendor = torch.library.Library("aten", "IMPL")
    vendor.impl("clone", vendors, "AutogradPrivateUse1")
    try:
        assert x().requires_grad_().clone().grad_fn is None, "the vendor's kernel loses the gradient here"
        with register_a1() as registration:
            leaf = torch.arange(6.0, device="sim", requires_grad=True)
            out = leaf.clone()
            assert type(out.grad_fn).__name__ == "CloneBackward0" and registration.hits == 1
            out.pow(2).sum().backward()
            assert torch.equal(leaf.grad.cpu(), 2 * leaf.detach().cpu())
        assert x().requires_grad_().clone().grad_fn is None, "the vendor's kernel must be back"
    finally:
        vendor._destroy()


def test_a_registration_that_could_not_be_reached_is_refused(monkeypatch):
    """An operator whose override goes only to the autograd key would never be reached in inference_mode."""
    real = install._kernel
    monkeypatch.setattr(install, "_kernel", lambda overload, key, *rest: real(overload, SIM.autograd_key, *rest))
    before = torch._C._dispatch_dump("aten::clone")
    with pytest.raises(RuntimeError, match="could not be reached.*inference_mode"):
        register_a1()
    assert torch._C._dispatch_dump("aten::clone") == before and not registrations()


def test_a_kernel_hidden_at_the_autograd_key_is_refused(monkeypatch):
    monkeypatch.setattr(torch._C, "_dispatch_has_kernel_for_dispatch_key", lambda *_: False)
    vendor = torch.library.Library("aten", "IMPL")
    vendor.impl("clone", lambda self, memory_format=None: self, "AutogradPrivateUse1")
    try:
        with pytest.raises(RuntimeError, match="hides the override in grad and no_grad mode"):
            register_a1()
    finally:
        vendor._destroy()


def test_an_implementation_may_use_overridden_operators():
    """Its own operator, and another overridden one: no recursion, and only the user's call counts."""

    def clone(self, *, memory_format=None):
        return torch.empty_like(self.clone()).copy_(self.clone())

    own = Operator("clone", (dataclasses.replace(OPERATOR.overrides[0], kernels={"triton": clone}),))
    like = Override(
        "aten::empty_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, "
        "MemoryFormat? memory_format=None) -> Tensor",
        kernels={"triton": lambda self, **kwargs: self.clone()},
        unsupported=lambda *args, **kwargs: None,
        gradient=NotDifferentiable,
    )
    with own.register_a1() as a, Operator("empty_like", (like,)).register_a1() as b:
        assert torch.equal(x().clone().cpu(), x().cpu())
        assert (a.hits, b.hits) == (1, 0)
        torch.empty_like(x())
        assert (a.hits, b.hits) == (1, 1)


def test_a_number_where_the_schema_says_tensor():
    """``t[i] = 32`` calls copy_ with the bare number; native is handed a tensor."""
    seen = []

    def copy_(self, src, non_blocking=False):
        seen.append(src)
        return self

    operator = Operator(
        "copy_",
        (
            Override(
                "aten::copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)",
                kernels={"triton": copy_},
                unsupported=lambda *args: None,
                gradient=Formula,
            ),
        ),
    )
    target = torch.zeros(3, dtype=torch.complex128, device="sim")
    with operator.register_a1() as registration:
        for number in (32, 0.1, True, 1j):
            target[1] = number
    assert registration.hits == 4 and all(isinstance(t, torch.Tensor) for t in seen)
    assert [t.item() for t in seen] == [32, 0.1, True, 1j], "no number may lose precision"


def test_counts_are_exact_in_threads():
    with register_a1() as registration:
        tensor = x()
        threads = [threading.Thread(target=lambda: [tensor.clone() for _ in range(40)]) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert registration.hits == 240


def test_backward_runs_in_the_autograd_thread_of_each_device():
    with register_a1():
        for index in (0, 1):
            leaf = torch.ones(3, device=f"sim:{index}", requires_grad=True)
            leaf.clone().sum().backward()
            assert leaf.grad.device == leaf.device


def test_a_registration_works_in_a_forked_child():
    with register_a1() as registration:
        pid = os.fork()
        if pid == 0:
            try:
                torch.ones(2).clone()
                ok = torch.equal(torch.ones(2, device="sim").clone().cpu(), torch.ones(2)) and registration.hits == 1
                os._exit(0 if ok else 1)
            except BaseException:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert registration.hits == 0


def test_refusing_operators_check_their_arguments_first():
    refusing = Operator("empty", (), refusal="it is the allocation primitive, an override would recurse")
    with pytest.raises(RuntimeError, match="unknown platform"):
        refusing.register_a1(platform="acme")
    with pytest.raises(NotImplementedError, match="allocation primitive"):
        refusing.register_a1()


def test_compiled_code_after_removal(python):
    """PyTorch's Python dispatcher remembered the removed kernel and called address 0."""
    python(
        "import torch\nfrom opgraft.ops.clone import register_a1\n"
        "for _ in range(2):\n"
        "    torch._dynamo.reset()\n"
        "    with register_a1('CPU'):\n        torch.compile(lambda t: t.clone() * 2, backend='aot_eager')(torch.ones(3))\n"
        "torch._dynamo.reset()\n"
        "torch.compile(lambda t: t.clone() * 2, backend='aot_eager')(torch.ones(3))"
    )


def test_a_subclass_without_dispatch_of_its_own_is_counted():
    class Named(torch.Tensor):
        pass

    leaf = torch.ones(20, device="sim").as_subclass(Named).requires_grad_()
    with opgraft.use(["dropout", "clone"]) as (dropout, clone):
        torch.nn.functional.dropout(leaf, 0.5)
        leaf.clone()
    assert (dropout.hits, clone.hits) == (1, 1)
