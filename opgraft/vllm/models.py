"""Tiny models with random weights for vLLM, made on the spot: between them their forward calls every operator that vLLM can reach.

Each has 2 layers, width 64 and a vocabulary of 64 tokens, with weights from a fixed seed.
"""

from __future__ import annotations

import pathlib
from typing import Any

VOCABULARY = 64
_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 64, "initializer_range": 0.5, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def llama() -> Any:
    """A Llama, run by vLLM's own model code: calls copy_, detach, empty_strided and item."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(intermediate_size=128, num_key_value_heads=1, **_COMMON))


def gemma3n() -> Any:
    """A Gemma 3n, run by vLLM's own model code: calls clone, contiguous, type_as and empty_like as well."""
    import torch
    from transformers import Gemma3nForCausalLM, Gemma3nTextConfig

    layers = _COMMON["num_hidden_layers"]
    config = Gemma3nTextConfig(
        intermediate_size=[128] * layers, num_key_value_heads=1, head_dim=32, layer_types=["full_attention"] * layers,
        vocab_size_per_layer_input=VOCABULARY, hidden_size_per_layer_input=16, num_kv_shared_layers=0, altup_num_inputs=2,
        activation_sparsity_pattern=[0.0] * layers, laurel_rank=4, **_COMMON,
    )  # fmt: skip
    model = Gemma3nForCausalLM(config)
    with torch.no_grad():  # its output layer is its embedding: with large rows every token would follow itself
        model.get_input_embeddings().weight.mul_(0.02)
    return model


def phi() -> Any:
    """A Phi, for vLLM's transformers backend, which keeps that library's dropout layers in the forward."""
    from transformers import PhiConfig, PhiForCausalLM

    return PhiForCausalLM(PhiConfig(intermediate_size=128, partial_rotary_factor=0.5, resid_pdrop=0.1, **_COMMON))


def save(model: str, folder: pathlib.Path) -> pathlib.Path:
    """Save a model of this module by name, with a tokenizer of one word a token (``t0`` … ``t63``); returns the folder."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    torch.manual_seed(0)
    {"llama": llama, "gemma3n": gemma3n, "phi": phi}[model]().save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCABULARY)}, unk_token="t0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, bos_token="t1", eos_token="t2").save_pretrained(folder)
    return folder
