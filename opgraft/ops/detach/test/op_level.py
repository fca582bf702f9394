"""detach at the op level: history, version counter, inference mode; and nn.Parameter, modules and deepcopy unharmed."""

import copy

import torch

from opgraft.ops.detach.register import OPERATOR
from opgraft.ops.detach.test import kernel_level
from opgraft.verify import Case, Check, OpLevel, TensorSpec, prove


def _particular(profile):
    device = profile.device

    def registered():
        return OPERATOR.register_a1(profile.dispatch_key, platform=profile.name)

    def history():
        x = torch.randn(4, 3, device=device, requires_grad=True)
        with registered() as registration:
            d = x.t()[1:].detach()
            assert d.data_ptr() == x.data_ptr() + 4 and d.stride() == (1, 3) and not d.requires_grad and d.is_leaf
            y = x * 2
            z = y.detach()
            assert z.grad_fn is None and z._version == y._version
            z.add_(1)
            assert z._version == y._version == 1, "the version counter must be shared"
            (x * 3 + (x * 3).detach()).sum().backward()
            assert x.grad.eq(3).all().item() and registration.hits >= 3
            assert (z._is_view(), d._is_view()) == (
                torch.ones(2).mul(1).detach()._is_view(),
                torch.ones(2)[1:].detach()._is_view(),
            )

    def inference():
        x = torch.randn(3, device=device, requires_grad=True)
        with registered(), torch.inference_mode():
            d = x.detach()
            assert not d.is_inference() and d.data_ptr() == x.data_ptr() and not d.requires_grad
            assert torch.zeros(3, device=device).detach().is_inference()

    def parameters():
        native = torch.Tensor._make_subclass
        with registered() as registration:
            p = torch.nn.Parameter(torch.randn(3, 4, device=device))
            assert type(p) is torch.nn.Parameter and p.requires_grad and p.is_leaf and type(p.data) is torch.Tensor
            assert not torch.nn.Parameter(torch.ones(2, device=device), requires_grad=False).requires_grad
            source = torch.ones(2, device=device)
            shared = torch.nn.Parameter(source)
            assert shared.data_ptr() == source.data_ptr() and not source.requires_grad
            lazy = torch.nn.LazyLinear(3, device=device)
            lazy(torch.ones(2, 4, device=device)).sum().backward()
            assert type(lazy.weight) is torch.nn.Parameter and lazy.weight.grad.shape == (3, 4)

            class Own(torch.nn.Parameter):
                pass

            assert type(Own(source)) is Own and type(copy.deepcopy(Own(source))) is Own
            assert registration.hits >= 2
        assert torch.Tensor._make_subclass is native, "_make_subclass must be given back"

    def modules():
        torch.manual_seed(0)
        model, data = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2)), torch.randn(5, 4)
        with registered():
            there = copy.deepcopy(model).to(device)
            assert all(
                type(p) is torch.nn.Parameter and p.is_leaf and p.device.type == profile.device_type for p in there.parameters()
            )
            twin = copy.deepcopy(there)
            twin.load_state_dict(there.state_dict())
            for net in (model, there, twin):
                optimiser = torch.optim.AdamW(net.parameters(), lr=0.1)
                net(data.to(next(net.parameters()).device)).pow(2).sum().backward()
                optimiser.step()
        for a, b, c in zip(model.parameters(), there.parameters(), twin.parameters()):
            assert torch.allclose(a, b.cpu(), atol=1e-5) and torch.equal(b.cpu(), c.cpu())

    look_at = "ops/detach/register.py"
    yield Check("history and version counter", history, look_at)
    yield Check("inference mode", inference, look_at)
    yield Check("nn.Parameter", parameters, "ops/detach/parameters.py")
    yield Check("modules, deepcopy, state_dict, optimiser", modules, "ops/detach/parameters.py")


LEVEL = OpLevel(
    OPERATOR,
    torch.Tensor.detach,
    kernel_level.CASES,
    storage="same",
    sample=Case("sample", (TensorSpec((3, 5)),)),
    differentiable=False,
    without={"func.grad": "it cuts the gradient"},
    rewritten=frozenset({"compile"}),
    extra=_particular,
)
test_op_level = prove
