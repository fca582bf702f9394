"""detach_ at the framework level: a decoder that calls it is trained and decoded."""

from opgraft.ops.detach_.register import OPERATOR
from opgraft.verify import FrameworkLevel, prove

LEVEL = FrameworkLevel(OPERATOR)
test_framework_level = prove
