"""One process has one PrivateUse1 backend: the test process has the simulated device under its own name."""

import os
import pathlib
import subprocess
import sys

import pytest

import opgraft.sim
from opgraft.a1 import registrations

ROOT = pathlib.Path(__file__).parents[1]
opgraft.sim.enable("sim")


@pytest.fixture(autouse=True)
def nothing_left_registered():
    """A test that leaves an override behind would change the tests after it."""
    yield
    left = registrations()
    for registration in left:
        registration.remove()
    assert not left, f"left registered: {left}"
    opgraft.sim.check()


@pytest.fixture
def python():
    """Run Python source in a fresh process from the repository root; returns its output, asserts that it succeeded."""

    def run(source: str, cwd=ROOT, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", source],
            cwd=cwd,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
