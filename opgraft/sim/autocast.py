"""Autocast on the simulated device: the cast policy that PyTorch's C++ backends register for theirs.

The operator lists are those of "Autocast Op Reference" in PyTorch's documentation
(docs.pytorch.org/docs/stable/amp.html, CUDA section), for the operators that exist at the dispatcher.
"""

from __future__ import annotations

import torch
from torch.utils import _pytree as pytree

LOWER_PRECISION = (
    "__matmul__ addbmm addmm addmv addr baddbmm bmm chain_matmul linalg_multi_dot conv1d conv2d conv3d conv_transpose1d "
    "conv_transpose2d.input conv_transpose3d.input convolution _convolution conv_tbc gru_cell lstm_cell linear matmul mm mv "
    "prelu rnn_relu_cell rnn_tanh_cell scaled_dot_product_attention"
).split()
FP32 = (
    "acos asin cosh erfinv exp expm1 log log10 log1p log2 reciprocal rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar "
    "binary_cross_entropy_with_logits cosine_embedding_loss cosine_similarity ctc_loss.IntList ctc_loss.Tensor cumprod cumsum "
    "dist group_norm gelu hinge_embedding_loss kl_div l1_loss layer_norm log_softmax.int margin_ranking_loss mse_loss "
    "multi_margin_loss multilabel_margin_loss native_layer_norm nll_loss nll_loss2d norm.Scalar norm.ScalarOpt_dim normalize "
    "pdist poisson_nll_loss prod prod.dim_int renorm rms_norm smooth_l1_loss softmax.int softplus softmin soft_margin_loss sum "
    "sum.dim_IntList triplet_margin_loss upsample_nearest2d"
).split()
WIDEST = "addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add tensordot cat stack".split()

_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)


def _cast(tree, dtype: torch.dtype, eligible):
    def one(leaf):
        return leaf.to(dtype) if isinstance(leaf, torch.Tensor) and eligible(leaf) else leaf

    return pytree.tree_map(one, tree)


def _kernel(op: torch._ops.OpOverload, device_type: str, choose):
    def eligible(tensor):
        return tensor.device.type == device_type and tensor.is_floating_point() and tensor.dtype is not torch.float64

    def run(*args, **kwargs):
        dtype = choose(args, kwargs, eligible)
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            if dtype is not None:
                args, kwargs = _cast((args, kwargs), dtype, eligible)
            return op(*args, **kwargs)

    return run


def install(name: str, library: torch.library.Library, boxed: torch.library.Library) -> None:
    """Register a fallthrough at AutocastPrivateUse1 and the three cast policies over it."""

    def widest(args, kwargs, eligible):
        found = {t.dtype for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and eligible(t)}
        return torch.float32 if len(found) > 1 and torch.float32 in found else None

    boxed.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    policies = (
        (LOWER_PRECISION, lambda *_: torch.get_autocast_dtype(name)),
        (FP32, lambda *_: torch.float32),
        (WIDEST, widest),
    )
    for operators, choose in policies:
        for spelled in operators:
            packet, _, overload = spelled.partition(".")
            found = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
            if found is not None:
                library.impl(found, _kernel(found, name, choose), "AutocastPrivateUse1")
