"""wrong_element at the framework level."""

from opgraft.verify import FrameworkLevel

from .. import OPERATOR

LEVEL = FrameworkLevel(OPERATOR)
