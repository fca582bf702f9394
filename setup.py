"""Builds the C++ call path into the wheel where PyTorch is there at build time: `python -m build --wheel --no-isolation`.

pip's isolated builds have no PyTorch, and asking for it there would download gigabytes; they make a wheel without, which builds the call
path at first use, or goes without where there is no compiler (opgraft/call_path/build.py).
"""

import importlib.util
import json
import pathlib

from setuptools import setup

ROOT = pathlib.Path(__file__).parent


def commands_and_extensions() -> dict:
    """What setuptools needs for the extension, or nothing."""
    try:
        from torch.utils.cpp_extension import BuildExtension, CppExtension
    except ImportError:
        return {}
    spec = importlib.util.spec_from_file_location("opgraft_build", ROOT / "opgraft" / "call_path" / "build.py")
    assert spec is not None and spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    if build.missing_tools() is not None:
        return {}

    class WithIdentity(BuildExtension):
        """Writes beside the extension what it was made for."""

        def run(self) -> None:
            if self.editable_mode or self.inplace:
                return  # the sources may change under it: it is built at first use
            super().run()
            folder = pathlib.Path(self.build_lib) / "opgraft" / "csrc"
            (folder / build.MADE_FOR.name).write_text(json.dumps(build.identity()) + "\n", encoding="utf-8")

    extension = CppExtension(f"opgraft.csrc.{build.NAME}", ["opgraft/csrc/module.cpp"], extra_compile_args=build.FLAGS)
    return {"ext_modules": [extension], "cmdclass": {"build_ext": WithIdentity}}


setup(**commands_and_extensions())
