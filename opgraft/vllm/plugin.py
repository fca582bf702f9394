"""The vLLM plugin (entry point group ``vllm.general_plugins``), which vLLM loads in every process by itself.

It does nothing unless asked, through the environment:

* ``OPGRAFT_VLLM_OPS``: operators to replace, comma separated, or ``all``;
* ``OPGRAFT_VLLM_PLATFORM``: the platform; without it the one that is present, as ``opgraft.enable`` finds it;
* ``OPGRAFT_VLLM_COUNTS``: a folder for each process's counts (see :mod:`opgraft.vllm.shards`).

A wrong value is an error that stops the engine at its start. Registering reads the dispatcher's tables only, so it is
safe before vLLM forks.
"""

from __future__ import annotations

import os

_writers: list = []


def register() -> None:
    """What vLLM calls.

    Raises:
        ValueError: an unknown operator, or a platform or folder without operators. RuntimeError: the platform is not usable.
        NotImplementedError: an operator that cannot be registered by design.
    """
    wanted = os.environ.get("OPGRAFT_VLLM_OPS", "").strip()
    platform = os.environ.get("OPGRAFT_VLLM_PLATFORM") or None
    counts = os.environ.get("OPGRAFT_VLLM_COUNTS")
    if not wanted:
        if platform or counts:
            raise ValueError(
                "OPGRAFT_VLLM_PLATFORM or OPGRAFT_VLLM_COUNTS is set, but OPGRAFT_VLLM_OPS names no operator ('all' for every one)"
            )
        return
    import opgraft
    from opgraft.vllm import shards

    if not _writers:
        opgraft.enable(None if wanted == "all" else [name.strip() for name in wanted.split(",")], platform)
        if counts:
            _writers.append(shards.Writer(counts))


def platform() -> str | None:
    """Entry point of the group ``vllm.platform_plugins``: vLLM's platform class if the simulated device is asked for
    (``OPGRAFT_SIM``), as a chip's own package would answer where the chip is."""
    return "opgraft.vllm.sim.SimulatedPlatform" if os.environ.get("OPGRAFT_SIM") else None
