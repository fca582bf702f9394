"""clone at the framework level: a decoder that clones its residual is trained and decoded."""

from opgraft.ops.clone.register import OPERATOR
from opgraft.verify import FrameworkLevel, prove

LEVEL = FrameworkLevel(OPERATOR)
test_framework_level = prove
