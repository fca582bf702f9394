"""Compare every kernel with the committed golden results.

    python script/check_accuracy.py [OP]... [--platform P]

Prints, for each operator and kernel level, the cases and the largest absolute error; exit code 1 if one is outside the
contract's tolerance. Never writes golden data (that is script/make_golden.py).
"""

import argparse
import sys

import torch

from opgraft import ops
from opgraft.call_path import below_overrides
from opgraft.verify import golden
from opgraft.verify.levels import load_level, ready, run_check


def largest_error(level, kernel, profile) -> float:
    largest = 0.0
    for case, args, want in golden.load(level.operator.name, profile.device):
        if isinstance(want, torch.Tensor) and want.numel() and (want.is_floating_point() or want.is_complex()):
            with below_overrides():
                got = kernel(*args, **case.kwargs, **level.keywords(profile))
            got = got.cpu() if isinstance(got, torch.Tensor) else torch.tensor(got, dtype=want.dtype)
            largest = max(largest, (got.double() - want.double()).abs().max().item())
    return largest


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare every kernel with the committed golden results.")
    parser.add_argument("ops", nargs="*", metavar="OP")
    parser.add_argument("--platform", default="sim")
    options = parser.parse_args()
    profile, good = ready(options.platform), True
    for name in options.ops or ops.modules():
        level = load_level(name, "kernel")
        if not golden.exists(name):
            print(f"{name:20} no golden data")
            good = False
            continue
        kernels = level.kernels or level.operator.overrides[0].kernels
        for check in level.checks(profile):
            level_name, _, what = check.name.partition(": ")
            if what == "golden data":
                result = run_check(check)
                good = good and result.ok
                cases = result.figures.get("golden cases", "?")
                error = f"{largest_error(level, kernels[level_name], profile):.3g}" if level.values else "geometry"
                print(
                    f"{name:20} {level_name:7} {cases:>4} cases  largest error {error:9} {'ok' if result.ok else 'FAILED ' + result.error}"
                )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
