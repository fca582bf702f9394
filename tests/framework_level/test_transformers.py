"""Hugging Face models with every operator registered: training step by step and generation, as native.

A small Llama (greedy generation, AdamW, gradient checkpointing, autocast bf16) and a small BERT encoder (dropout on). Native
draws other dropout masks than we do, so where dropout is on the run without overrides uses ours in plain PyTorch.
"""

import contextlib
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

import opgraft
from opgraft.kernels.philox import draw_seed, keeps
from opgraft.verify.compare import assert_same

transformers = pytest.importorskip("transformers")
PLATFORMS = {"sim": "sim:0", "cpu": "cpu"}
STEPS = 50


def llama(dropout):
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=64, attention_dropout=dropout, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def bert(dropout):
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64,
        hidden_dropout_prob=dropout, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.BertForMaskedLM(config)


@contextlib.contextmanager
def our_masks_in_plain_pytorch():
    def dropout(x, p=0.5, training=True, inplace=False):
        if not training or p == 0:
            return x
        keep = keeps(draw_seed(x.device), x.numel(), p).reshape(x.shape)
        wide = torch.float64 if x.dtype is torch.float64 else torch.float32
        return (x.to(wide) * (keep.to(wide) / (1 - p))).to(x.dtype)

    with mock.patch.object(F, "dropout", dropout):
        yield


def train(make, device, dropout, checkpointing, autocast):
    torch.manual_seed(0)
    model = make(dropout).to(device).train()
    if checkpointing:
        model.gradient_checkpointing_enable()
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


def without_gradient(model):
    return {name for name, p in model.named_parameters() if p.grad is None}


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize(
    "make, dropout, checkpointing, autocast",
    [(llama, 0.0, True, True), (llama, 0.0, False, False), (bert, 0.1, False, False), (bert, 0.1, True, True)],
    ids=["llama-checkpointing-bf16", "llama-fp32", "bert-dropout-fp32", "bert-dropout-checkpointing-bf16"],
)
def test_losses_match_step_by_step(make, dropout, checkpointing, autocast, platform):
    device = PLATFORMS[platform]
    with our_masks_in_plain_pytorch() if dropout else contextlib.nullcontext():
        plain, native = train(make, device, dropout, checkpointing, autocast)
    with opgraft.use(platform=platform) as registrations:
        model, ours = train(make, device, dropout, checkpointing, autocast)
        hits = {r.operator.name: r.hits for r in registrations}
    # Module.to breaks tied weights on a PrivateUse1 device (natively too), which leaves some without a gradient.
    assert without_gradient(model) == without_gradient(plain), "a parameter lost its gradient"
    assert ours[-1] < ours[0], "it did not learn"
    assert hits["copy_"] and hits["detach"] and hits["item"] and (hits["dropout"] or not dropout), hits
    torch.testing.assert_close(ours, native, rtol=2e-2 if autocast else 1e-4, atol=0)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_greedy_generation(platform):
    device = PLATFORMS[platform]
    prompt = torch.tensor([[1, 5, 9, 17]])

    def generate():
        torch.manual_seed(0)
        model = llama(0.0).to(device).eval()
        with torch.inference_mode():
            return model.generate(prompt.to(device), max_new_tokens=12, do_sample=False).cpu(), model(
                prompt.to(device)
            ).logits.cpu()

    native = generate()
    with opgraft.use(platform=platform) as registrations:
        ours = generate()
        assert sum(r.inference_hits for r in registrations) > 0
    (tokens, logits), (native_tokens, native_logits) = ours, native
    assert_same(tokens, native_tokens, "generation")
    torch.testing.assert_close(logits, native_logits)  # attention sums in another order than native
