"""Where the C++ call path comes from: the wheel, an earlier build on this machine, or the compiler now.

It uses PyTorch's C++ interfaces, which keep no binary compatibility between versions, so a build belongs to one PyTorch version, one
Python and one source; each has its own place, and one that was made for others is never loaded. PyTorch's stable ABI
(``torch/csrc/stable``, 2.13) would spare that, but does not reach: its kernels are functors that removal frees, and it has no way to a
captured kernel, a call's key set or a tensor's bits.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import pathlib
import shutil
import sys
import sysconfig
import time
from types import ModuleType

import torch

SOURCES = pathlib.Path(__file__).parents[1] / "csrc"
NAME = "_opgraft_call_path"
FLAGS = ["-O2", "-fvisibility=hidden"]
#: Beside the sources, as a wheel brings it.
BUILT = SOURCES / f"{NAME}{sysconfig.get_config_var('EXT_SUFFIX')}"
MADE_FOR = SOURCES / "made_for.json"


def identity() -> dict[str, str]:
    """What a build belongs to."""
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for path in sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h")]):
        digest.update(path.read_bytes())
    return {
        "torch": torch.__version__,
        "python": f"{sys.implementation.cache_tag}-{sysconfig.get_platform()}",
        "source": digest.hexdigest()[:16],
    }


def cache() -> pathlib.Path:
    """Where builds of this machine lie: ``OPGRAFT_CACHE``, else the user's cache folder; one folder for each identity."""
    root = (
        os.environ.get("OPGRAFT_CACHE") or pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "opgraft"
    )
    return pathlib.Path(root) / "call-path" / "-".join(identity().values()).replace("/", "_")


def load() -> tuple[ModuleType | None, str]:
    """The C++ call path and where it came from, or None and why it is not to be had."""
    try:
        if BUILT.exists() and MADE_FOR.exists():
            made_for = json.loads(MADE_FOR.read_text(encoding="utf-8"))
            if made_for == identity():
                return _module(BUILT), "built with the package"
        folder = cache()
        built = folder / BUILT.name
        if built.exists():
            return _module(built), f"built on this machine ({folder})"
        missing = missing_tools()
        if missing:
            return None, missing
        return _build(folder), f"built on this machine ({folder})"
    except Exception as error:  # a compiler fails in many ways, and the Python path serves
        lines = [line for line in str(error).splitlines() if "error" in line.lower()] or [str(error) or type(error).__name__]
        detail = f"building it failed: {lines[0].strip()[:300]}"
        print(f"opgraft: no C++ call path, calls go through Python, which is slower ({detail})", file=sys.stderr)
        return None, detail


def missing_tools() -> str | None:
    """What is missing to build it, and what to do; None if nothing is."""
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler.split()[0]) is None:
        return f"no C++ compiler ({compiler}) is installed; install one (Debian: g++), or a wheel that was built with one"
    if not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Python's headers are not installed; install them (Debian: python3-dev), or a wheel that was built with them"
    if shutil.which("ninja") is None and importlib.util.find_spec("ninja") is None:
        return "ninja is not installed: pip install ninja"
    return None


def _module(path: pathlib.Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(NAME, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _build(folder: pathlib.Path) -> ModuleType:
    """Build into ``folder``; of processes that start together one builds, and the others find its result."""
    from torch.utils import cpp_extension

    built, work = folder / BUILT.name, folder / "build"
    work.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if built.exists():
            return _module(built)
        print(f"opgraft: building its C++ call path, once for this PyTorch (about a minute) in {folder} ...", file=sys.stderr)
        shutil.rmtree(work)  # what a build that was killed left, PyTorch's own lock among it
        work.mkdir()
        start = time.perf_counter()
        with _tools_on_path():
            module = cpp_extension.load(NAME, [str(SOURCES / "module.cpp")], extra_cflags=FLAGS, build_directory=str(work))
        shutil.copyfile(work / f"{NAME}.so", folder / "partial")
        os.replace(folder / "partial", built)
        shutil.rmtree(work)
        print(f"opgraft: built in {time.perf_counter() - start:.0f} s", file=sys.stderr)
        return module


@contextlib.contextmanager
def _tools_on_path():
    """ninja from its Python package, for a Python that was started by its path."""
    before = os.environ.get("PATH", "")
    os.environ["PATH"] = os.pathsep.join([before, sysconfig.get_path("scripts")])
    try:
        yield
    finally:
        os.environ["PATH"] = before
