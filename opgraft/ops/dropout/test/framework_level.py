"""dropout at the framework level: a decoder trained with dropout on, against the reference under the same seeds."""

import contextlib
from unittest import mock

import torch.nn.functional as F

from opgraft.kernels.philox import draw_seed
from opgraft.models.decoder import Sizes
from opgraft.ops.dropout import reference
from opgraft.ops.dropout.register import OPERATOR
from opgraft.verify import FrameworkLevel, prove


@contextlib.contextmanager
def reference_dropout():
    """The model's dropout by the reference, which draws its seeds as the operator does."""

    def dropout(x, p=0.5, training=True, inplace=False):
        return reference.masked_scale(x, draw_seed(x.device), p) if training and p > 0 else x

    with mock.patch.object(F, "dropout", dropout):
        yield


LEVEL = FrameworkLevel(OPERATOR, exact=False, sizes=Sizes(dropout=0.2), baseline=reference_dropout)
test_framework_level = prove
