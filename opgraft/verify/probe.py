"""``opgraft probe``: the interception matrix, measured: operator × key × mode, and whether the gradient is kept.

Every cell comes from a registration made for it and one user's call; a bare override (a plain Python function at
one key that forwards to native) can be measured beside ours to show why route A1 is not just that.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable

import torch
from rich.console import Console
from rich.table import Table

from opgraft import catalogue
from opgraft.a1 import Override
from opgraft.platforms import Profile

from .levels import load_level, ready
from .op_level import OpLevel


class _Bare:
    """A counting override at one key that forwards to the kernel that was there, and keeps nothing else."""

    def __init__(self, override: Override, key: str, backend_key: str):
        self.hits = 0
        native = torch.library.get_kernel(override.overload, backend_key).call_boxed

        def forward(keyset, *args, **kwargs):
            self.hits += 1
            with torch._C._AutoDispatchBelowAutograd():
                return native(keyset, *args, **kwargs)

        self._library = torch.library.Library("aten", "IMPL")
        self._library.impl(override.overload, forward, key, with_keyset=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._library._destroy()


def measure(level: OpLevel, profile: Profile, key: str, bare: bool) -> dict[str, str]:
    """One row: hits by mode (1 is right), and ``gradient``: kept, lost, or – where there is none to keep."""
    override = level.operator.overrides[0]

    def registered():
        if bare:
            return _Bare(override, key, profile.backend_key)
        return level.operator.register_a1(key, platform=profile.name)

    row: dict[str, str] = {}
    for mode, prepare in level.modes().items():
        args = level.sample.arguments(profile.device)
        with registered() as registration, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                run = prepare(level.call, args, level.sample.kwargs, torch.device(profile.device))
                before = registration.hits
                run()
                hits = str(registration.hits - before)
                row[mode] = f"({hits})" if mode in level.rewritten else hits
            except Exception:  # a bare override may break anything
                row[mode] = "error"
    row["gradient"] = "–"
    if level.differentiable:
        with registered(), warnings.catch_warnings(), contextlib.suppress(AssertionError, RuntimeError):
            warnings.simplefilter("ignore")
            row["gradient"] = "lost"
            level._differentiated(profile.device, 1)
            row["gradient"] = "kept"
    return row


#: Column headings that leave room on an 80-column terminal.
_SHORT = {
    "no_grad": "no_gr",
    "inference_mode": "infer",
    "autocast": "amp",
    "dispatch mode": "disp",
    "thread": "thrd",
    "compile": "comp",
    "func.grad": "f.grad",
}


def main(names: Iterable[str] | None, platform: str, bare: bool, console: Console | None = None) -> bool:
    """Print the matrix. Returns whether every registration of ours is reached once in every mode with its gradient."""
    profile = ready(platform)
    console = console or Console()
    chosen = [n for n in (names or catalogue.modules()) if catalogue.load(n).OPERATOR.refusal is None]
    ways = [(key, False) for key in profile.keys] + ([(key, True) for key in (*profile.keys, "Autograd")] if bare else [])
    good = True
    for key, is_bare in ways:
        rows = {}
        for name in chosen:
            with console.status(f"{name} at {key}"):
                rows[name] = measure(load_level(name, "op"), profile, key, is_bare)
        columns = [*dict.fromkeys(c for row in rows.values() for c in row if c != "gradient"), "gradient"]
        kind = "bare Python override" if is_bare else "opgraft"
        table = Table("operator", *(_SHORT.get(c, c) for c in columns), title=f"{kind}, registered with {key}", padding=(0, 0))
        for name, row in rows.items():
            cells = [row.get(column, "–") for column in columns]
            good = good and (is_bare or all(map(_fine, cells)))
            table.add_row(name, *(c if _fine(c) else f"[red]{c}[/]" for c in cells))
        console.print(table)
    modes = ", ".join(f"{short} {name}" for name, short in _SHORT.items())
    console.print(f"Measured on {profile.name} ({profile.device}). Cells are hits for one call: 1 is right, 0 is a call that")
    console.print("native answered unseen, – does not apply, (n) is a mode in which PyTorch rewrites the call itself.")
    console.print(f"{modes}.", highlight=False)
    if not good:
        console.print("[red]Not every registration of ours is reached once in every mode with its gradient kept.[/]")
    return good


def _fine(cell: str) -> bool:
    return cell in ("1", "kept", "–") or cell.startswith("(")
