"""Counting across processes, and the vLLM plugin as vLLM calls it (without vLLM)."""

import os
import signal
import subprocess
import sys
import time

import pytest

from opgraft.vllm import shards

CHILD = """
import os, sys, time, torch
from opgraft.vllm.plugin import register
register()
register()  # vLLM may load plugins more than once in a process
x = torch.ones(3)
for _ in range(5):
    x.clone()
with torch.inference_mode():
    for _ in range(7):
        x.clone()
    torch.tensor([1j]).conj().clone()
{then}
"""


def environment(folder, ops="clone"):
    return {**os.environ, "OPGRAFT_VLLM_OPS": ops, "OPGRAFT_VLLM_PLATFORM": "cpu", "OPGRAFT_VLLM_COUNTS": str(folder)}


def start(folder, then, ops="clone"):
    return subprocess.Popen(
        [sys.executable, "-c", CHILD.format(then=then)], env=environment(folder, ops), stdout=subprocess.PIPE
    )


def test_processes_are_summed_with_the_mode_kept_apart(tmp_path):
    for process in [start(tmp_path, "") for _ in range(2)]:
        assert process.wait(120) == 0
    counts = shards.total(tmp_path)["clone"]
    assert (counts.hits, counts.inference_hits, dict(counts.handed_to_native)) == (26, 16, {"conj or neg bit set": 2})


def test_a_killed_process_loses_only_what_it_had_not_written(tmp_path):
    process = start(tmp_path, "print('ready', flush=True)\ntime.sleep(60)")
    assert process.stdout.readline()
    deadline = time.monotonic() + 30  # it writes every half second; a loaded machine may take longer
    while "clone" not in shards.total(tmp_path) or shards.total(tmp_path)["clone"].hits < 13:
        assert time.monotonic() < deadline, "the process never wrote its counts"
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    assert shards.total(tmp_path)["clone"].hits == 13


def test_a_forked_child_counts_its_own_calls_only(tmp_path):
    fork = "pid = os.fork()\nif pid == 0:\n    x.clone()\n    time.sleep(4)\n    os._exit(0)\nassert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0"
    assert start(tmp_path, fork).wait(120) == 0
    assert len(list(tmp_path.glob("*.json"))) == 2 and shards.total(tmp_path)["clone"].hits == 14


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"OPGRAFT_VLLM_OPS": "clone,nope"}, "unknown operator 'nope'"),
        ({"OPGRAFT_VLLM_OPS": "empty"}, "empty cannot be registered"),
        ({"OPGRAFT_VLLM_PLATFORM": "acme"}, "unknown platform 'acme'"),
        ({"OPGRAFT_VLLM_PLATFORM": "cambricon"}, "torch_mlu is not installed"),
        ({"OPGRAFT_VLLM_OPS": ""}, "OPGRAFT_VLLM_OPS names no operator"),
    ],
)
def test_a_wrong_value_stops_the_process(tmp_path, changes, words):
    code = "from opgraft.vllm.plugin import register\nregister()"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**environment(tmp_path), **changes}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode != 0 and words in done.stderr, done.stderr


def test_not_asked_it_changes_nothing(python):
    """Neither the dispatch tables nor what is imported."""
    python(
        "import sys, torch\nbefore = torch._C._dispatch_dump('aten::clone'), set(sys.modules)\n"
        "from opgraft.vllm.plugin import register\nregister()\n"
        "new = {m for m in sys.modules if m not in before[1]}\n"
        "assert torch._C._dispatch_dump('aten::clone') == before[0]\n"
        "assert new <= {'opgraft', 'opgraft.vllm', 'opgraft.vllm.plugin'}, new"
    )
