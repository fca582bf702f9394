"""embedding at the framework level: the decoder's token and position tables."""

from opgraft.ops.embedding.register import OPERATOR
from opgraft.verify import FrameworkLevel, prove

LEVEL = FrameworkLevel(OPERATOR, exact=False)
test_framework_level = prove
