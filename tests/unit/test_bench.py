"""opgraft bench: turns in processes of their own, the comparison with a baseline, routing tables from records."""

import json
import subprocess
import sys

import pytest
import torch

import opgraft
from opgraft import ops, routing
from opgraft.bench import cases, route, run, worker
from opgraft.routing import Features


def record(**ratios):
    """A record in which our device and host times are native's by these factors."""
    made = []
    for name, factor in ratios.items():

        def times(way_factor):
            return {k: {"median": 10 * way_factor, "least": 9, "most": 20} for k in ("device", "host")}

        ways = {
            "native": times(1),
            "own": {**times(1 / factor), "features": [["sdpa", "prefill", "bfloat16", [["head_dim", 8]], len(name)]]},
        }
        ways["handed"] = {"host": ways["native"]["host"]}
        made.append({"operator": "sdpa", "case": name, "group": name, "bytes": 1, "ways": ways})
    where = {"device": "a device", "versions": {"torch": "2"}, "commit": "abc", "date": "2026-12-01", "platform": "cuda"}
    return {**where, "cases": made, "rounds": 1, "peak TB/s": 1.0}  # fmt: skip


def test_compare_warns_over_20_percent_and_fails_over_30():
    baseline = record(same=2.0, better=1.0, worse=1.0, bad=1.0, gone=1.0)
    warnings, failures = run.compare(record(same=2.0, better=3.0, worse=0.75, bad=0.65), baseline)
    assert [w.split(":")[0] for w in warnings] == ["sdpa, worse"] * 2
    assert [f.split(":")[0] for f in failures] == ["sdpa, bad"] * 2 + ["sdpa, gone"]


def test_the_command_on_a_cpu_and_a_baseline(tmp_path):
    command = [
        sys.executable,
        "-m",
        "opgraft.cli",
        "bench",
        "detach",
        "-p",
        "cpu",
        "--rounds",
        "1",
        "--evidence",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "cpu" / "bench.json").read_text())
    ways = written["cases"][0]["ways"]
    assert set(ways) == {"native", "own", "routed"} and all(w["host"]["median"] > 0 for w in ways.values())
    assert written["peak TB/s"] > 0 and "bf16 256" in done.stdout
    for case in written["cases"]:
        case["ways"]["own"] = {k: {"median": 1e-9} for k in ("device", "host")}
    (tmp_path / "baseline.json").write_text(json.dumps(written))
    done = subprocess.run([*command, "--compare", str(tmp_path / "baseline.json")], capture_output=True, text=True)
    assert done.returncode == 1 and "much worse" in done.stdout


def test_what_cannot_be_measured_says_why():
    with pytest.raises(RuntimeError, match="simulated here"):
        run.run(["clone"], "sim")
    with pytest.raises(ValueError, match="no benchmark: empty"):
        run.selected(["empty"])
    with pytest.raises(ValueError, match="unknown operator"):
        run.selected(["nothing"])


def test_a_case_that_fails_is_reported_and_the_next_one_runs():
    remote = run.Remote("cpu", "native")
    remote.ask(do="prepare", operator="clone", name="no such case")
    assert "error" in remote.answer()
    remote.ask(do="prepare", operator="clone", name="bf16 256")
    assert "ok" in remote.answer()
    remote.process.kill()
    assert "ended with code" in remote.answer()["error"]
    remote.process.wait()
    remote.ask(do="prepare", operator="clone", name="bf16 256")
    assert "ok" in remote.answer()
    remote.close()


@pytest.mark.parametrize("name", ops.modules())
def test_every_case_runs_on_the_cpu_once(name):
    """Its own kernel, with small cases only; what routing sees belongs to a table."""
    for case in cases(name):
        if case.nbytes > 1 << 16 or case.flops > 1 << 24:
            continue
        w = worker.Worker("cpu", "own")
        asked = w.prepare(name, case.name)["features"]
        w.drop()
        assert not case.route or len({json.dumps(f) for f in asked}) <= 1


def test_tables_follow_from_measurements():
    """Of every committed entry the choice is the rule's, and no own choice was slower than native beyond the noise."""
    for name in ops.modules():
        if routing.path(name).exists():
            for there in json.loads(routing.path(name).read_text())["platforms"].values():
                for entry in there["entries"]:
                    device, wait = entry["device × native"], entry["wait × native"]
                    assert entry["choice"] == route.choose(device, wait) and entry["operator"] in there["measured"], entry
                    assert entry["choice"] == "native" or (device >= 0.97 and wait >= 0.8), entry


def test_a_copy_that_is_only_a_launch_stays_ours_unless_native_is_clearly_faster():
    waits = {0.99: 1.3, 0.97: 1.0, 0.969: 1.3, 0.98: 0.9, 1.0: 0.8, 1.5: 0.79}
    chosen = {device: route.choose(device, wait) for device, wait in waits.items()}
    assert chosen == {0.99: "own", 0.97: "own", 0.969: "native", 0.98: "native", 1.0: "own", 1.5: "native"}


def test_a_table_keeps_other_operators_and_platforms(tmp_path, monkeypatch):
    monkeypatch.setattr(routing, "path", lambda operator: tmp_path / f"{operator}.json")
    other = {"measured": {"x": {}}, "entries": [{"operator": "x", "choice": "own"}]}
    (tmp_path / "sdpa.json").write_text(json.dumps({"platforms": {"cuda": other, "mlu": other}}))
    route.write(record(a=2.0, bb=0.5))
    found = json.loads((tmp_path / "sdpa.json").read_text())["platforms"]
    assert found["mlu"] == other and set(found["cuda"]["measured"]) == {"x", "sdpa"}
    assert [(e["operator"], e["choice"]) for e in found["cuda"]["entries"]] == [
        ("x", "own"),
        ("sdpa", "own"),
        ("sdpa", "native"),
    ]


def test_the_nearest_size_decides_and_what_was_not_measured_is_native(tmp_path, monkeypatch):
    monkeypatch.setattr(routing, "path", lambda operator: tmp_path / f"{operator}.json")
    whole = record(a=2.0, bbbbbbbbbbbbbbbb=0.5)
    route.write(whole)
    routing.table.cache_clear()
    routing._by_table.cache_clear()
    try:
        fields = (("head_dim", 8),)
        on_cuda, on_cpu = (routing.chooser("sdpa", platform, None) for platform in ("cuda", "cpu"))
        to_native = [on_cuda(Features("prefill", torch.bfloat16, fields, n)) is not None for n in (0, 1, 4, 5, 1000)]
        assert to_native == [False, False, False, True, True]
        decode = Features("decode", torch.bfloat16, fields, 1)
        assert on_cuda(decode) == f"routed to native: {decode}"
        assert on_cpu(decode) is None
    finally:
        routing.table.cache_clear()
        routing._by_table.cache_clear()


def test_the_environment_forces_when_registering(monkeypatch):
    x = torch.randn(4, 4).t()
    for text, handed in (("native", 1), ("contiguous=native", 1), ("own", 0), ("clone=native", 0)):
        monkeypatch.setenv("OPGRAFT_ROUTE", text)
        with opgraft.use(["contiguous"], platform="cpu") as (registration,):
            x.contiguous()
            assert sum(registration.handed_to_native.values()) == handed, text
    monkeypatch.setenv("OPGRAFT_ROUTE", "contiguous=maybe")
    with pytest.raises(ValueError, match="contiguous=maybe"):
        opgraft.enable(["contiguous"], platform="cpu")


def test_what_was_decided_is_remembered_by_signature_only():
    """Calls that differ in what `unsupported` reads get decisions of their own."""
    with opgraft.use(["copy_", "clone"], platform="cpu") as (copy_, clone):
        a, b = torch.randn(6), torch.randn(6)
        for _ in range(2):
            a.copy_(b)
        assert not copy_.handed_to_native
        a[:3].copy_(a[3:])  # the same storage, no overlap
        assert not copy_.handed_to_native
        with pytest.raises(RuntimeError, match="single memory location"):
            a[:4].copy_(a[2:])
        assert list(copy_.handed_to_native) == ["source and destination share memory"]
        c = torch.randn(3, dtype=torch.complex64)
        c.clone()
        assert not clone.handed_to_native
        c.conj().clone()
        assert list(clone.handed_to_native) == ["conj or neg bit set"]
        with routing.force("native"):
            a.copy_(b)
        a.copy_(b)
        assert sum(copy_.handed_to_native.values()) == 2


def test_only_cases_that_match_are_measured():
    with pytest.raises(ValueError, match="no case matches 'nothing'"):
        run.run(["clone"], "cpu", match="nothing")
    measured = run.run(["clone"], "cpu", rounds=1, match=r"clone, bf16 256$")
    assert [case["case"] for case in measured["cases"]] == ["bf16 256"]
