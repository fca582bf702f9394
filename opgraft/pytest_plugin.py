"""Pytest plugin (entry point group ``pytest11``): a test for every check of a module's ``LEVEL``.

The platform is ``OPGRAFT_PLATFORM``, by default the simulated device. Only collecting makes checks: importing a test
module does not, since that would enable the simulated device in a process that works on a real one.
It stands outside opgraft.verify, so that other projects' pytest runs do not import torch for it.
"""

from __future__ import annotations


def pytest_generate_tests(metafunc) -> None:
    """Give tests that ask for ``proof`` the checks of their module's level."""
    level = getattr(metafunc.module, "LEVEL", None)
    if "proof" in metafunc.fixturenames and level is not None:
        from opgraft.verify.levels import test_profile

        metafunc.parametrize("proof", list(level.checks(test_profile())), ids=lambda check: check.name)
