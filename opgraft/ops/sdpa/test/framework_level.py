"""sdpa at the framework level: the decoder's attention, trained (causal) and decoded (one query)."""

from opgraft.ops.sdpa.register import OPERATOR
from opgraft.verify import FrameworkLevel, prove

LEVEL = FrameworkLevel(OPERATOR, exact=False, decodes_exactly=False)
test_framework_level = prove
