"""embedding by the platform's own kernels."""

from __future__ import annotations

import torch

embedding = torch.ops.aten.embedding.default
embedding_dense_backward = torch.ops.aten.embedding_dense_backward.default
