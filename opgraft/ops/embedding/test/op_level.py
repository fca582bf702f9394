"""embedding at the op level: ``F.embedding`` in every mode; gradients, routes, indices out of range."""

import os
import subprocess
import sys

import torch
import torch.nn.functional as F

from opgraft import routing
from opgraft.kernels import interpreted
from opgraft.ops.embedding.register import OPERATOR
from opgraft.verify import Case, Check, OpLevel, TensorSpec, prove
from opgraft.verify.compare import assert_same

TABLE = TensorSpec((11, 5))


def call(weight, indices, **keywords):
    """As a user calls it."""
    return F.embedding(indices, weight, **keywords)


def _indices(*shape, dtype="int64", **geometry):
    return TensorSpec(shape, dtype, seed=3, below=11, **geometry)


CASES = [
    *(Case(f"indices {shape}", (TABLE, _indices(*shape))) for shape in ((), (1,), (7,), (3, 4), (2, 3, 4))),
    Case("no indices", (TABLE, _indices(0, 3)), native="empty"),
    Case("int32", (TABLE, _indices(3, 4, dtype="int32"))),
    Case("strided indices", (TABLE, _indices(3, 4, strides=(1, 7), offset=2))),
    Case("expanded indices", (TABLE, _indices(3, 4, strides=(0, 0)))),
    Case("transposed table", (TensorSpec((11, 5), strides=(1, 11)), _indices(6))),
    Case("table with gaps", (TensorSpec((11, 5), strides=(12, 2), offset=1), _indices(6))),
    *(Case(dtype, (TensorSpec((11, 5), dtype), _indices(6))) for dtype in ("float16", "bfloat16", "float64", "int32", "bool")),
    Case("complex64", (TensorSpec((11, 5), "complex64"), _indices(6)), native="dtype torch.complex64"),
    Case("padding_idx", (TABLE, _indices(6)), {"padding_idx": 2}),
    Case("negative padding_idx", (TABLE, _indices(6)), {"padding_idx": -3}),
    Case("scale_grad_by_freq", (TABLE, _indices(6)), {"scale_grad_by_freq": True}),
    Case("one-dimensional table", (TensorSpec((11,)), _indices(6))),
    Case("floating-point indices", (TABLE, TensorSpec((6,)))),
]


def _particular(profile):
    device = profile.device

    def registered():
        return OPERATOR.register_a1(profile.dispatch_key, platform=profile.name)

    def gradients():
        """Against native on the CPU, with what only the backward sees; counted apart."""
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            for keywords in ({}, {"padding_idx": 0}, {"padding_idx": -1}, {"scale_grad_by_freq": True}):
                indices = torch.randint(6, (50, 3), generator=torch.Generator().manual_seed(5))
                weight = torch.randn(6, 9, generator=torch.Generator().manual_seed(6)).to(dtype)

                def run(where):
                    w = weight.to(where).requires_grad_()
                    out = F.embedding(indices.to(where), w, **keywords)
                    up = torch.randn(out.shape, generator=torch.Generator().manual_seed(7)).to(dtype).to(where)
                    return torch.autograd.grad(out, w, up)[0]

                with registered() as registration:
                    got = run(device)
                    assert (registration.hits, registration.backward_hits) == (1, 1), registration
                tolerance = 2e-5 if dtype in (torch.float32, torch.float64) else 5e-2
                torch.testing.assert_close(got.cpu(), run("cpu"), rtol=tolerance, atol=tolerance)

    def second_order():
        indices = torch.tensor([1, 1, 4], device=device)
        weight = torch.randn(6, 3, dtype=torch.float64).to(device).requires_grad_()
        with registered():
            assert torch.autograd.gradcheck(lambda w: F.embedding(indices, w, padding_idx=0), weight)
            assert torch.autograd.gradgradcheck(lambda w: F.embedding(indices, w, padding_idx=1).pow(2), weight)

    def deterministic():
        indices = torch.randint(4, (300,), device=device)
        upstream = torch.randn(300, 64, device=device)
        torch.use_deterministic_algorithms(True)
        try:
            with registered():
                results = []
                for _ in range(3):
                    weight = torch.zeros(4, 64, device=device, requires_grad=True)
                    results.append(torch.autograd.grad(F.embedding(indices, weight), weight, upstream)[0].cpu())
        finally:
            torch.use_deterministic_algorithms(False)
        assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])

    def sparse():
        weight = torch.randn(6, 3, device=device, requires_grad=True)
        with registered() as registration:
            F.embedding(torch.tensor([1, 1], device=device), weight, sparse=True).sum()
            assert registration.handed_to_native == {"sparse=True": 1}

    def mapped():
        table, indices = torch.randn(3, 6, 4), torch.randint(6, (3, 5))
        calls = (
            (lambda w, i: torch.vmap(F.embedding, (0, None))(i, w[0])),
            (lambda w, i: torch.vmap(F.embedding, (None, 0))(i[0], w)),
            (lambda w, i: torch.vmap(F.embedding, (0, 0))(i, w)),
        )
        for mapped_call in calls:
            with registered():
                got = mapped_call(table.to(device), indices.to(device))
            assert_same(got, mapped_call(table, indices), "vmap", strides=False)

    def routes():
        weight, indices = torch.randn(6, 3, device=device), torch.tensor([1, 5], device=device)
        with registered() as registration:
            with routing.force("own"):
                own = F.embedding(indices, weight)
            assert registration.handed_to_native == {}
            with routing.force("native"):
                native = F.embedding(indices, weight)
            assert registration.handed_to_native == {"routed to native: gather, width 4": 1} and registration.hits == 2
        assert_same(own, native.cpu(), "own and native")

    def out_of_range():
        """In a process of its own: on a GPU the device-side assertion ends the CUDA context."""
        source = (
            "import torch, torch.nn.functional as F\nfrom opgraft.verify.levels import ready\n"
            f"profile = ready({profile.name!r})\nfrom opgraft.ops.embedding import register_a1\n"
            f"register_a1({profile.dispatch_key!r}, platform={profile.name!r})\n"
            "w = torch.randn(3, 5).to(profile.device)\n"
            "for bad in ([0, 3], [-1, 0]):\n"
            "    try:\n        F.embedding(torch.tensor(bad, device=profile.device), w).cpu()\n"
            "    except (IndexError, RuntimeError) as error:\n        print('refused', type(error).__name__)\n"
            "    else:\n        raise SystemExit('no error for ' + str(bad))\n"
        )
        done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, env=dict(os.environ), timeout=300)
        assert done.returncode == 0 and done.stdout.count("refused") == 2, done.stdout + done.stderr
        if profile.device_type == "cuda":
            assert "out of the table's range" in done.stdout + done.stderr, done.stderr
        else:
            assert done.stdout.split() == ["refused", "IndexError"] * 2, done.stdout
        return {"error": done.stdout.splitlines()[0]}

    def no_table():
        if not interpreted(torch.device(device)):
            return {"not run": "native asserts on the device there, which ends its context"}
        with registered() as registration:
            try:
                F.embedding(torch.tensor([0, 1], device=device), torch.empty(0, 5, device=device))
            except (RuntimeError, IndexError) as error:
                assert registration.handed_to_native == {"empty": 1}
                return {"raises": type(error).__name__}
        raise AssertionError("native refuses it; the override gave a result")

    look_at = "ops/embedding/register.py and ops/embedding/kernel/triton_level.py"
    yield Check("no table", no_table, look_at)
    yield Check("gradients beside native's", gradients, look_at)
    yield Check("second order, numerically", second_order, look_at)
    yield Check("deterministic backward", deterministic, look_at)
    yield Check("sparse=True is native's", sparse, look_at)
    yield Check("vmap over table, indices and both", mapped, look_at)
    yield Check("routes: forced, counted", routes, "opgraft/routing.py")
    yield Check("an index out of range", out_of_range, look_at)


LEVEL = OpLevel(
    OPERATOR,
    call,
    CASES,
    storage="new",
    sample=Case("sample", (TABLE, _indices(3, 5))),
    extra=_particular,
)
test_op_level = prove
