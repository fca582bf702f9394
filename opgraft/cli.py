"""The ``opgraft`` command."""

from __future__ import annotations

import os
import pathlib
import runpy
import sys
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="Replace ATen operators by an accelerator's own kernels, and prove it. Start with `opgraft doctor`, then "
    "`opgraft verify --platform sim`.",
)

Operators = Annotated[list[str] | None, typer.Argument(metavar="OP", help="Operators; all if none is named.")]
Platform = Annotated[str, typer.Option("--platform", "-p", help="The platform, as `opgraft doctor` names it.")]
Evidence = Annotated[pathlib.Path, typer.Option("--evidence", help="Folder of the records; reports follow from evidence/.")]


def main() -> None:
    """Entry point: errors of the user's making are one line, not a traceback."""
    try:
        app()
    except (RuntimeError, ValueError) as error:
        if os.environ.get("OPGRAFT_TRACEBACK"):
            raise
        from rich.console import Console

        Console(stderr=True).print(f"[bold red]opgraft:[/] {error}", soft_wrap=True, highlight=False)
        sys.exit(2)


@app.command()
def verify(
    ops: Operators = None,
    platform: Platform = "sim",
    level: Annotated[
        list[str] | None, typer.Option("--level", "-l", help="kernel, op or framework; repeatable. All if not given.")
    ] = None,
    evidence: Evidence = pathlib.Path("evidence"),
    engine: Annotated[str | None, typer.Option(help="Run the framework level in a real engine: vllm.")] = None,
    sim_name: Annotated[str | None, typer.Option(help="Simulate the platform's device under this name (mlu, npu).")] = None,
) -> None:
    """Prove operators on a platform, at three levels, and write records and reports.

    Exit code 1 if a check failed; the output says what failed and what to look at.
    """
    from opgraft import sim
    from opgraft.verify import run

    if sim_name:
        sim.enable(sim_name)
    sys.exit(0 if run.verify(ops, platform, level, evidence, engine=engine) else 1)


@app.command()
def probe(
    ops: Operators = None,
    platform: Platform = "sim",
    bare: Annotated[
        bool, typer.Option("--bare", help="Beside ours, measure a plain override at each key, as facts/dispatcher.md did.")
    ] = False,
) -> None:
    """Measure which modes reach an override and whether the gradient is kept: the interception matrix.

    Exit code 1 if one of our registrations is not reached exactly once in a mode or loses a gradient.
    """
    from opgraft.verify import probe as measure

    sys.exit(0 if measure.main(ops, platform, bare) else 1)


@app.command()
def doctor() -> None:
    """Say for every platform whether it is usable here, and if not exactly why."""
    # A vendor package that cannot load makes `import torch` fail while it autoloads; here the failure is the answer.
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    from rich.console import Console
    from rich.padding import Padding

    from opgraft import call_path, evidence, platforms

    console = Console(highlight=False)
    for profile in platforms.profiles().values():
        status = platforms.probe(profile)
        word = (
            ("[green]simulated[/]" if status.simulated else "[green]usable[/]") if status.usable else "[red]not usable here[/]"
        )
        if profile.module == "opgraft.sim" and platforms.backend_name() is None:
            word = "[green]on demand[/]"
        console.print(f"[bold]{profile.name}[/] ({profile.vendor}, device {profile.device}): {word}")
        for line in status.reason.split("; "):
            console.print(Padding(line, (0, 0, 0, 4)), markup=False)
    way, detail = call_path.state()
    console.print(f"\ncall path: {'C++' if way == 'c++' else 'Python'}, {detail}", soft_wrap=True)
    console.print("  ".join(f"{name} {version}" for name, version in evidence.versions().items()))
    console.print(f"PrivateUse1 backend of this process: {platforms.backend_name() or 'none'}")


@app.command()
def report(evidence: Evidence = pathlib.Path("evidence")) -> None:
    """Render reports and the matrix from the records."""
    from opgraft import evidence as records

    for page in records.render(evidence):
        print(page)


@app.command()
def bench(
    ops: Operators = None,
    platform: Platform = "cpu",
    peer: Annotated[str, typer.Option(help="Also measure peers, comma separated: flaggems.")] = "",
    rounds: Annotated[int, typer.Option(help="How often the ways take turns.", min=1)] = 7,
    route: Annotated[bool, typer.Option("--route", help="Write the operators' routing tables from what is measured.")] = False,
    match: Annotated[str, typer.Option(help="Only cases where this regular expression is found in 'OP, CASE'.")] = "",
    host: Annotated[
        bool, typer.Option("--host", help="The caller's time for one call of each operator, in every mode.")
    ] = False,
    model: Annotated[
        bool, typer.Option("--model", help="Whole models with all operators; --match is text in their names.")
    ] = False,
    compare: Annotated[
        pathlib.Path | None, typer.Option(help="Compare ratios to native with this record; exit 1 if worse.")
    ] = None,
    evidence: Evidence = pathlib.Path("evidence"),
) -> None:
    """Measure operators beside native and peers in one run: a table, a record, plots.

    Exit code 1 if `--compare` finds a ratio more than 30 % worse than in the baseline (20 % warns). A baseline is a record:
    evidence/P/route.json, say.
    """
    import json

    from opgraft.bench import route as routes
    from opgraft.bench import run, show

    if host or model:
        sys.exit(_bench_ways(ops, platform, rounds, match, model, evidence))
    if route and match:
        raise typer.BadParameter("--route writes whole tables, so it measures every case; leave out --match")
    baseline = json.loads(compare.read_text(encoding="utf-8")) if compare else None
    peers = tuple(p for p in peer.split(",") if p and p != "native")
    record = run.run(ops, platform, peers, rounds, route_only=route, match=match)
    console = show.console()
    console.print(show.table(record))
    path = run.write(record, evidence, "route" if route else "bench")
    drawn = path.with_suffix(".png")
    print(f"{path}\n{drawn}" if show.plots(record, drawn) else f"{path}\nno plots: matplotlib is not installed")
    for written in routes.write(record) if route else ():
        print(written)
    failures: list[str] = []
    if baseline is not None:
        warnings, failures = run.compare(record, baseline, match)
        for line in warnings:
            console.print(f"[yellow]worse than the baseline:[/] {line}")
        for line in failures:
            console.print(f"[bold red]much worse than the baseline:[/] {line}")
        print(f"compared with {compare}: {len(failures)} much worse, {len(warnings)} worse")
    sys.exit(1 if failures else 0)


def _bench_ways(ops: list[str] | None, platform: str, rounds: int, match: str, whole: bool, folder: pathlib.Path) -> int:
    from opgraft import evidence
    from opgraft.bench import dispatch_overhead, model, show

    record = model.run(platform, rounds, match) if whole else dispatch_overhead.run(ops, platform, rounds)
    show.console().print((model if whole else dispatch_overhead).table(record))
    print(evidence.write_figures(record, folder, "model" if whole else "host"))
    return 0


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="The operator's name, which becomes its folder.")],
    schema: Annotated[str, typer.Option(help='The ATen schema it replaces, as "aten::relu(Tensor self) -> Tensor".')],
    into: Annotated[
        pathlib.Path, typer.Option(help="The folder of operators, here or in a package of your own.")
    ] = pathlib.Path("opgraft/ops"),
    package: Annotated[str, typer.Option(help="The importable package of that folder.")] = "opgraft.ops",
) -> None:
    """Render a new operator's folder and say what is left to fill in."""
    from opgraft import scaffold

    rendered = scaffold.render(name, schema, into, package)
    print(f"{rendered.folder}: {len(rendered.files)} files. Left to fill in:")
    for path, number, line in rendered.left:
        print(f"  {path.relative_to(rendered.folder)}:{number}: {line}")
    if package != "opgraft.ops":
        print(
            f"While you write it: OPGRAFT_OPERATORS={package}.{name}; when it is released, an entry point of the group opgraft.operators."
        )
    print(f"Then: opgraft verify {name}")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def simulate(
    context: typer.Context,
    script: Annotated[pathlib.Path, typer.Argument(help="A Python script, run unchanged; its own arguments follow.")],
    name: Annotated[str, typer.Option(help="The device's name: sim, mlu, npu, …")] = "sim",
) -> None:
    """Run a script with the simulated device present under a chip's name."""
    from opgraft import sim

    sim.enable(name)
    sys.argv = [str(script), *context.args]
    sys.path[0] = str(script.resolve().parent)
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
