"""Writing routing tables from a benchmark (``opgraft bench --route``)."""

from __future__ import annotations

import json
import pathlib
from typing import Any

from opgraft import routing

from .run import ratio, wait_ratio

#: A wait that is this much longer is within the noise: host times of few rounds scatter by a fifth (docs/h200-notes.md).
NOISE = 0.8
#: A device time that is this close to native's is as good, if the caller waits no longer: small copies are a launch and little else.
NEAR = 0.97


def choose(gained: float, waited: float) -> str:
    """``own`` or ``native``, by how many times less the device takes with our kernel, and a caller who waits for the result
    (:func:`opgraft.bench.run.wait_ratio`)."""
    return "own" if (gained >= 1 and waited >= NOISE) or (gained >= NEAR and waited >= 1) else "native"


def entries(record: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The entries that follow from a record, by the operator whose table they belong to: one for each case that was asked of
    a table once and ran both ways."""
    found: dict[str, list[dict[str, Any]]] = {}
    for case in record["cases"]:
        asked = {json.dumps(f) for f in case["ways"].get("own", {}).get("features", ())}
        gained, waited = ratio(case), wait_ratio(case)
        if gained is None or waited is None or len(asked) != 1:
            continue
        owner, route, dtype, fields, size = json.loads(asked.pop())
        gained, waited = round(gained, 3), round(waited, 3)
        found.setdefault(owner, []).append(
            {
                "route": route, "dtype": dtype, "fields": fields, "size": size, "choice": choose(gained, waited),
                "device × native": gained, "wait × native": waited,
                "operator": case["operator"], "case": case["case"],
            }
        )  # fmt: skip
    return found


def write(record: dict[str, Any]) -> list[pathlib.Path]:
    """Put what a record says into the ``routes.json`` of the operators concerned; entries of other platforms, and of operators
    that the record did not measure, stay. Returns the files."""
    measured = {case["operator"] for case in record["cases"]}
    written = []
    for owner, made in entries(record).items():
        path = routing.path(owner)
        whole = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"platforms": {}}
        there = whole["platforms"].setdefault(record["platform"], {"measured": {}, "entries": []})
        source = {k: record[k] for k in ("device", "versions", "commit", "date")}
        there["measured"].update({name: source for name in sorted({e["operator"] for e in made})})
        there["entries"] = [e for e in there["entries"] if e["operator"] not in measured] + made
        path.write_text(_one_line_an_entry(whole), encoding="utf-8")
        written.append(path)
    return written


def _one_line_an_entry(whole: dict[str, Any]) -> str:
    platforms = []
    for name, there in whole["platforms"].items():
        lines = ",\n".join("    " + json.dumps(entry, ensure_ascii=False) for entry in there["entries"])
        measured = json.dumps(there["measured"], ensure_ascii=False)
        platforms.append(f'  {json.dumps(name)}: {{"measured": {measured},\n   "entries": [\n{lines}\n   ]}}')
    return '{"platforms": {\n' + ",\n".join(platforms) + "\n}}\n"
