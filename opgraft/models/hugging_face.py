"""Small Hugging Face models, trained and decoded on a device: what a framework does with the operators.

A Llama (greedy generation, AdamW, gradient checkpointing, autocast bf16) and a BERT encoder (dropout on).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

STEPS = 50


def llama(dropout: float = 0.0) -> torch.nn.Module:
    """A Llama of two layers with shared key heads."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=64, attention_dropout=dropout, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def bert(dropout: float = 0.0) -> torch.nn.Module:
    """A BERT encoder of two layers, with its loss."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64,
        hidden_dropout_prob=dropout, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BertForMaskedLM(config)


def train(
    make: Callable[[float], torch.nn.Module], device: str, dropout: float, checkpointing: bool, autocast: bool
) -> tuple[torch.nn.Module, list[float]]:
    """Train a model for :data:`STEPS` steps; returns it with its losses."""
    torch.manual_seed(0)
    model = make(dropout).to(device).train()
    if checkpointing:
        model.gradient_checkpointing_enable()  # type: ignore[operator]
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ids = torch.randint(3, 64, (2, 12), generator=torch.Generator().manual_seed(1)).to(device)
    torch.manual_seed(2)
    losses = []
    for _ in range(STEPS):
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16, enabled=autocast):
            loss = model(input_ids=ids, labels=ids).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return model, losses


def generate(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Twelve tokens that a Llama chooses greedily, and the logits of the prompt, both on the CPU."""
    torch.manual_seed(0)
    model = llama().to(device).eval()
    prompt = torch.tensor([[1, 5, 9, 17]], device=device)
    with torch.inference_mode():
        tokens = model.generate(prompt, max_new_tokens=12, do_sample=False)  # type: ignore[operator]
        return tokens.cpu(), model(prompt).logits.cpu()
