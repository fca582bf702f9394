"""_local_scalar_dense at the framework level: a decoder that calls it is trained and decoded."""

from opgraft.ops._local_scalar_dense.register import OPERATOR
from opgraft.verify import FrameworkLevel, prove

LEVEL = FrameworkLevel(OPERATOR)
test_framework_level = prove
