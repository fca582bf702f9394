"""python ops/sdpa/example.py [PLATFORM]: the three levels and the native comparison."""

import sys

from opgraft.verify.example import main

if __name__ == "__main__":
    sys.exit(main("sdpa"))
