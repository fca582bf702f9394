"""Edge cases from public bug reports, on the simulated device and the CPU, with every operator of the library registered."""

import pathlib
import runpy
import warnings

import pytest
import torch

import opgraft

CASES = runpy.run_path(str(pathlib.Path(__file__).with_name("cases.py")))["CASES"]


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("platform", ["sim", "cpu"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case(case, platform):
    torch.manual_seed(0)
    with opgraft.use(platform=platform):
        case["fn"]("sim:0" if platform == "sim" else "cpu")
