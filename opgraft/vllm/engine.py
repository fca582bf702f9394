"""Real vLLM with and without overrides: the same prompts, tokens and logprobs compared, counts summed over its processes.

vLLM runs in processes of its own each time (``python -m opgraft.vllm.engine JOB`` is one of them, ``vllm serve``
another); the overrides reach its workers through the plugin alone. What native calls is counted by vLLM's own profiler,
which knows nothing of our registrations.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from opgraft import platforms, sim

from . import shards

PROMPTS = [[1, 5, 9], [2] * 11, [7, 3, 8, 4, 40, 41, 42, 43], [60], [11, 12], list(range(3, 24))]
#: Other prompts, generated before profiling: what vLLM compiles for itself on a fresh machine calls operators too, while it
#: traces, and those are no calls of the model.
WARM_UP = [[33, 34, 35, 36, 37], [50] * 3, [44]]
NEW_TOKENS = 8
#: More prompts than this wait for a place: continuous batching.
SEQUENCES_AT_ONCE = 2
ENGINE = {
    "dtype": "float32", "enforce_eager": True, "max_model_len": 64, "max_num_seqs": SEQUENCES_AT_ONCE, "seed": 0,
    "gpu_memory_utilization": 0.1,
}  # fmt: skip


@dataclass(frozen=True)
class Scenario:
    """A way to run vLLM.

    Attributes:
        name: as records and messages say it.
        model: of :mod:`opgraft.vllm.models`.
        implementation: vLLM's ``model_impl``: its own model code (``auto``) or that of ``transformers``.
        tensor_parallel: workers that share each layer.
        served: as ``vllm serve`` on loopback, asked over HTTP by several clients at once; else through ``vllm.LLM``.
    """

    name: str
    model: str
    implementation: str = "auto"
    tensor_parallel: int = 1
    served: bool = False


SCENARIOS = (
    Scenario("llama", "llama"),
    Scenario("gemma3n served", "gemma3n", served=True),
    Scenario("phi by transformers, tensor parallel 2", "phi", "transformers", tensor_parallel=2),
)


@dataclass
class Generation:
    """What vLLM gave.

    Attributes:
        tokens: new tokens of each prompt.
        logprobs: of those tokens.
        margins: how far the best logprob was above the second at each step.
        counts: by operator, over all processes; empty without overrides.
        calls: how often each ATen operator (``aten::copy_``) was called while generating; empty if not profiled.
    """

    tokens: list[list[int]]
    logprobs: list[list[float]]
    margins: list[list[float]]
    counts: dict[str, shards.Counts]
    calls: Counter[str]


def generate(
    scenario: Scenario,
    model: pathlib.Path,
    ops: list[str] | None,
    platform: str,
    one_process: bool = False,
    timeout: float = 600,
) -> Generation:
    """Run vLLM on :data:`PROMPTS`, greedily.

    Args:
        scenario: how.
        model: the folder with the scenario's model.
        ops: operators to replace; None runs without the plugin being asked, and profiles.
        platform: for the overrides.
        one_process: run vLLM's engine and worker in one process where the scenario allows it, which takes half the time.
        timeout: seconds.

    Raises:
        RuntimeError: vLLM is not installed here, or it failed; carries the end of its output.
    """
    if importlib.util.find_spec("vllm") is None:
        raise RuntimeError("vLLM is not installed in this environment; docs/vllm.md says how")
    with tempfile.TemporaryDirectory() as work:
        counts, traces, log = (pathlib.Path(work, name) for name in ("counts", "traces", "log"))
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
        environment["VLLM_HOST_IP"] = "127.0.0.1"
        environment["OPGRAFT_SIM"] = simulated if sim.active(simulated := platforms.profiles()[platform].device_type) else ""
        settings = {**ENGINE, "model_impl": scenario.implementation, "tensor_parallel_size": scenario.tensor_parallel}
        if scenario.tensor_parallel > 1:  # vLLM wants a NUMA node for each worker, or to be told which core each gets
            cores = sorted(os.sched_getaffinity(0))
            of_workers = (str(cores[i % len(cores)]) for i in range(scenario.tensor_parallel))
            environment["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(of_workers)
        if one_process and not scenario.served and scenario.tensor_parallel == 1:
            environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        if ops is None:
            settings["profiler_config"] = {
                "profiler": "torch", "torch_profiler_dir": str(traces), "torch_profiler_with_stack": False,
                "torch_profiler_use_gzip": False, "ignore_frontend": True,
            }  # fmt: skip
        else:
            environment |= {
                "OPGRAFT_VLLM_OPS": ",".join(ops),
                "OPGRAFT_VLLM_PLATFORM": platform,
                "OPGRAFT_VLLM_COUNTS": str(counts),
            }
        run = _serve if scenario.served else _run_offline
        try:
            with log.open("w") as stream:
                answers = run(model, settings, environment, stream, pathlib.Path(work), timeout)
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            replaced = f"{len(ops)} operators ({', '.join(ops)})" if ops else "no operators"
            raise RuntimeError(f"vLLM ({scenario.name}) with {replaced} replaced: {error}\n{_failure(log)}") from error
        tokens, logprobs, margins = (list(column) for column in zip(*answers))
        return Generation(tokens, logprobs, margins, shards.total(counts) if ops is not None else {}, _calls(traces))


def _failure(log: pathlib.Path) -> str:
    """The lines of vLLM's output that say what went wrong: its errors if there are any, else its end."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line for line in lines if "Error" in line and "Traceback" not in line]
    return "\n".join((errors or lines)[-12:])[-3000:]


def _calls(traces: pathlib.Path) -> Counter[str]:
    calls: Counter[str] = Counter()
    for trace in traces.rglob("*rank*.json"):
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
        calls.update(e["name"] for e in events if e.get("cat") == "cpu_op" and e["name"].startswith("aten::"))
    return calls


Answer = tuple[list[int], list[float], list[float]]


def _run_offline(model, settings, environment, log, work, timeout) -> list[Answer]:
    job, result = work / "job.json", work / "result.json"
    job.write_text(json.dumps({"model": str(model), "settings": settings, "result": str(result)}), encoding="utf-8")
    command = [sys.executable, "-m", "opgraft.vllm.engine", str(job)]
    done = subprocess.run(command, env=environment, stdout=log, stderr=subprocess.STDOUT, timeout=timeout)
    if done.returncode != 0:
        raise RuntimeError(f"it ended with {done.returncode}")
    return [tuple(answer) for answer in json.loads(result.read_text(encoding="utf-8"))]


def main() -> None:
    """In vLLM's own process: do the job that the file given as argument describes."""
    from vllm import LLM, SamplingParams

    job = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
    engine = LLM(job["model"], **job["settings"])
    parameters = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, logprobs=2, detokenize=False, ignore_eos=True)
    profiled = "profiler_config" in job["settings"]
    if profiled:
        engine.generate([{"prompt_token_ids": prompt} for prompt in WARM_UP], parameters)
        engine.start_profile()
    outputs = engine.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], parameters)
    if profiled:
        engine.stop_profile()
    _let_counts_be_written()
    answers = []
    for completion in (output.outputs[0] for output in outputs):
        best = [sorted((entry.logprob for entry in step.values()), reverse=True) for step in completion.logprobs]
        chosen = [step[token].logprob for step, token in zip(completion.logprobs, completion.token_ids)]
        answers.append((list(completion.token_ids), chosen, [first - second for first, second, *_ in best]))
    pathlib.Path(job["result"]).write_text(json.dumps(answers), encoding="utf-8")


def _serve(model, settings, environment, log, work, timeout) -> list[Answer]:
    """Start ``vllm serve``, send every prompt at once over HTTP, stop it."""
    with _server(model, settings, environment, log, timeout) as address:
        profiled = "profiler_config" in settings
        if profiled:
            for prompt in WARM_UP:
                _complete(address, str(model), prompt)
            _post(f"{address}/start_profile", None)
        with ThreadPoolExecutor(len(PROMPTS)) as clients:
            answers = list(clients.map(lambda prompt: _complete(address, str(model), prompt), PROMPTS))
        if profiled:
            _post(f"{address}/stop_profile", None)
        _let_counts_be_written()
    return answers


def _let_counts_be_written() -> None:
    """vLLM kills its workers when it stops, and a worker writes its counts from time to time."""
    time.sleep(3 * shards.INTERVAL_SECONDS)


@contextlib.contextmanager
def _server(model, settings, environment, log, timeout) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # The module that `vllm serve` runs; the command itself asks for the version of a package "vllm", which vllm-cpu is not.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    for name, value in settings.items():
        option = "--" + name.replace("_", "-")
        command += [option] if value is True else [option, json.dumps(value) if isinstance(value, dict) else str(value)]
    server = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        address, deadline = f"http://127.0.0.1:{port}", time.monotonic() + timeout
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/health", timeout=10):
                break
            if server.poll() is not None:
                raise RuntimeError(f"the server ended with {server.returncode} before it answered")
            if time.monotonic() > deadline:
                raise RuntimeError(f"the server did not answer within {timeout} s")
            time.sleep(0.5)
        yield address
    finally:
        server.terminate()
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _complete(address: str, model: str, prompt: list[int]) -> Answer:
    body = {
        "model": model, "prompt": prompt, "max_tokens": NEW_TOKENS, "temperature": 0, "logprobs": 2, "ignore_eos": True,
        "return_token_ids": True,
    }  # fmt: skip
    choice = _post(f"{address}/v1/completions", body)["choices"][0]
    best = [sorted(step.values(), reverse=True) for step in choice["logprobs"]["top_logprobs"]]
    return choice["token_ids"], choice["logprobs"]["token_logprobs"], [first - second for first, second, *_ in best]


def _post(url: str, body: dict | None) -> dict:
    data = json.dumps(body).encode() if body is not None else b""
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=300) as response:
            return json.loads(response.read() or b"{}")
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{url} answered {error.code}: {error.read()[:500]!r}") from error


if __name__ == "__main__":
    main()
