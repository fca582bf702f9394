"""The packaging gate: every operator imports as a package and really runs, each in a fresh process.

    python ops/test_packaging.py --imports-only       anywhere: package entry, signature, the kernel called on the CPU
    python ops/test_packaging.py --e2e PLATFORM       register, ordinary call, counter, values; embedding consumed by a
                                                     model's head; sdpa's routes; then many operators in one process
    python ops/test_packaging.py --npu-e2e            the same on Ascend

From an installed package: ``python -m opgraft.ops.test_packaging …``. On a machine without the device it says so and
exits non-zero. ``OPGRAFT_SIM=npu`` in the environment rehearses Ascend on the simulated device.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import pathlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor


def entry(name: str):
    """The operator's package entry: ``ops.NAME`` from the repository root, else the module it is installed as."""
    from opgraft import ops

    module = ops.modules()[name]
    if module.startswith("opgraft.ops.") and pathlib.Path("ops", name).exists():
        module = f"ops.{name}"
    return importlib.import_module(module)


def check_import(name: str) -> str:
    """In this process: the package entry has what the contract says, and the kernel runs on CPU tensors."""
    from opgraft.call_path import below_overrides
    from opgraft.platforms import profiles
    from opgraft.verify.levels import load_level

    module = entry(name)
    parameters = [(p.name, p.default) for p in inspect.signature(module.register_a1).parameters.values()]
    assert parameters == [("dispatch_key", "AutogradPrivateUse1"), ("counter", None), ("platform", None)], parameters
    level = load_level(name, "op")
    args = level.sample.arguments("cpu")
    with below_overrides():
        got = module.OPERATOR.overrides[0].kernel_for(profiles()["cpu"])(*_kernel_arguments(level, args), **level.sample.kwargs)
    level._compare(got, level.native(level.sample), name)
    return f"{module.__name__}: imported, signature right, kernel ran on the CPU"


def _kernel_arguments(level, args: tuple) -> tuple:
    """The arguments of the schema: a factory's sample leads with a tensor that only says on which device."""
    schema = level.operator.overrides[0].overload._schema
    return args[1:] if len(args) > sum(not a.kwarg_only for a in schema.arguments) else args


def check_registered(name: str, platform: str) -> str:
    """In this process: register through the package entry, make the ordinary call, compare counter and values."""
    from opgraft.verify.levels import load_level, ready

    os.environ.setdefault("OPGRAFT_ROUTE", "own")
    profile = ready(platform)
    module = entry(name)
    level = load_level(name, "op")
    counter = {"n": 0}
    if module.OPERATOR.refusal is not None:
        try:
            module.register_a1(profile.dispatch_key, counter=counter, platform=platform)
        except NotImplementedError:
            return f"{module.__name__}: registering is refused, as designed"
        raise AssertionError(f"{name}: registering must raise NotImplementedError")
    args = level.sample.arguments(profile.device)
    registration = module.register_a1(profile.dispatch_key, counter=counter, platform=platform)
    got = level.call(*args, **level.sample.kwargs)
    assert counter["n"] == 1 == registration.hits, f"{name}: one call was counted {counter['n']} times"
    assert not registration.handed_to_native, f"{name}: handed to native: {registration.handed_to_native}"
    registration.remove()
    level._compare(got, level.native(level.sample), name)
    level.check_storage(got, args)
    return f"{module.__name__}: registered, 1 call, 1 hit, values right"


def check_embedding_consumed(platform: str) -> str:
    """In this process: rows that our embedding gathered go through native layers to a loss, and the gradient comes back."""
    import torch
    import torch.nn.functional as F

    from opgraft.verify.levels import ready

    os.environ.setdefault("OPGRAFT_ROUTE", "own")
    profile = ready(platform)
    module = entry("embedding")
    generator = torch.Generator().manual_seed(0)
    weight, head = torch.randn(50, 24, generator=generator), torch.randn(50, 24, generator=generator)
    ids = torch.randint(50, (3, 7), generator=generator)

    def consume() -> tuple[torch.Tensor, torch.Tensor]:
        table = weight.to(profile.device).requires_grad_()
        rows = F.layer_norm(F.embedding(ids.to(profile.device), table, padding_idx=3), (24,))
        loss = F.cross_entropy((rows @ head.to(profile.device).t()).flatten(0, 1), ids.to(profile.device).reshape(-1))
        loss.backward()
        return loss.detach().cpu(), table.grad.cpu()

    native = consume()
    with module.register_a1(profile.dispatch_key, platform=platform) as registration:
        ours = consume()
    assert (registration.hits, registration.backward_hits) == (1, 1), f"embedding: {registration}"
    assert not registration.handed_to_native, f"embedding: handed to native: {registration.handed_to_native}"
    torch.testing.assert_close(ours, native)
    return "embedding: consumed by layer norm, a head and cross entropy; loss and the table's gradient as native"


def check_sdpa_routes(platform: str) -> str:
    """In this process: small and large attention by the table, forced to our kernel, and forced to native."""
    import torch
    import torch.nn.functional as F

    from opgraft import routing
    from opgraft.ops.sdpa.inputs import features
    from opgraft.verify.levels import ready

    profile = ready(platform)
    module = entry("sdpa")
    taken = []
    choose = routing.chooser("sdpa", profile.name, routing.from_environment("sdpa"))
    shapes = {"small": (1, 2, 16, 32), "large": (2, 4, 512, 64), "decode, large": (2, 4, 512, 64)}
    for name, shape in shapes.items():
        q, k, v = (torch.randn(shape, generator=torch.Generator().manual_seed(i)) for i in range(3))
        q = q[:, :, :1] if name.startswith("decode") else q
        want = F.scaled_dot_product_attention(q.double(), k.double(), v.double())
        q, k, v = (t.to(profile.device) for t in (q, k, v))
        for forced in (None, *routing.CHOICES):
            with module.register_a1(profile.dispatch_key, platform=platform) as registration, routing.force(forced):
                expected = "own" if choose(features(q, k, v)) is None else "native"
                got = F.scaled_dot_product_attention(q, k, v)
            chosen = "native" if registration.handed_to_native else "own"
            assert registration.hits == 1 and chosen == expected == (forced or expected), (
                f"sdpa {name}: took {chosen}, expected {expected}: {registration.handed_to_native}"
            )
            torch.testing.assert_close(got.cpu().double(), want, rtol=2e-3, atol=2e-3, msg=f"sdpa {name} by {chosen}")
            if forced is None:
                taken.append(f"{name}: {chosen}")
    return f"sdpa: by the table {', '.join(taken)}; both paths forced; values right"


def check_together(platform: str) -> str:
    """In this process: all operators at once, each called and counted, then a model trained and decoded with them."""
    import opgraft
    from opgraft.models import decoder
    from opgraft.verify.framework_level import assert_same_outcome
    from opgraft.verify.levels import load_level, ready

    profile = ready(platform)
    native = decoder.run(profile.device)
    with opgraft.use(platform=platform) as registrations:
        for registration in registrations:
            level = load_level(registration.operator.name, "op")
            args = level.sample.arguments(profile.device)
            before = registration.hits
            got = level.call(*args, **level.sample.kwargs)
            assert registration.hits == before + 1, (
                f"{registration.operator.name}: {registration.hits - before} hits for one call"
            )
            level._compare(got, level.native(level.sample), registration.operator.name)
        ours = decoder.run(profile.device)
    assert_same_outcome(ours, native, exact=False)  # attention sums in another order than native
    unused = [r.operator.name for r in registrations if r.hits == 1]
    return f"{len(registrations)} operators in one process; a decoder trained and decoded as native" + (
        f"; not called by it: {unused}" if unused else ""
    )


def _in_a_fresh_process(expression: str) -> tuple[bool, str]:
    source = f"from opgraft.ops import test_packaging as gate\nprint(gate.{expression})"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", source], capture_output=True, text=True)
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    return done.returncode == 0, lines[-1] if lines else f"exit code {done.returncode}"


def run(expressions: list[str]) -> bool:
    """Evaluate expressions over this module, each in a fresh process; print what they say. True if all succeeded."""
    good = True
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for expression, (ok, line) in zip(expressions, pool.map(_in_a_fresh_process, expressions)):
            print(("ok    " if ok else "FAIL  ") + (line if ok else f"{expression}: {line}"), flush=True)
            good = good and ok
    return good


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="The packaging gate: every operator imports as a package and really runs.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--imports-only", action="store_true", help="package entries, anywhere")
    what.add_argument("--e2e", metavar="PLATFORM", help="end to end on a platform")
    what.add_argument("--npu-e2e", action="store_true", help="end to end on Ascend")
    options = parser.parse_args(argv)

    from opgraft import ops, platforms
    from opgraft.verify.levels import ready

    names = list(ops.modules())
    if options.imports_only:
        good = run([f"check_import({name!r})" for name in names])
    else:
        platform = "ascend" if options.npu_e2e else options.e2e
        try:
            profile = ready(platform)
        except RuntimeError as error:
            print(f"FAIL  {error}")
            return 1
        simulated = " (simulated)" if platforms.probe(profile).simulated else ""
        print(f"{platform}{simulated}, device {profile.device}")
        checks = [f"check_registered({name!r}, {platform!r})" for name in names]
        checks += [f"{check}({platform!r})" for check in ("check_embedding_consumed", "check_sdpa_routes", "check_together")]
        good = run(checks)
    print("packaging: " + ("all right" if good else "not all right"))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
