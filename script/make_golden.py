"""Write golden data from the operators' references, on the CPU. Run by hand when a reference changes on purpose.

python script/make_golden.py [OP]...
"""

import sys

from opgraft import ops
from opgraft.verify import golden
from opgraft.verify.levels import load_level


def main() -> None:
    for name in sys.argv[1:] or ops.modules():
        level = load_level(name, "kernel")
        print(name, golden.make(name, level.cases, level.reference, not level.values), "cases")


if __name__ == "__main__":
    main()
