"""A mini language model (embedding, sdpa, dropout, layer norm, cross entropy) trained and decoded with embedding and sdpa."""

import pytest
import torch

import opgraft
from opgraft.models import decoder

PLATFORMS = {"sim": "sim:0", "cpu": "cpu"}
STEPS = 50


@pytest.mark.parametrize("platform", PLATFORMS)
def test_fifty_steps_and_greedy_decoding(platform):
    sizes = decoder.Sizes(dropout=0.1)
    native = decoder.run(PLATFORMS[platform], sizes, STEPS, decode=12)
    with opgraft.use(["embedding", "sdpa"], platform=platform) as (embedding, sdpa):
        ours = decoder.run(PLATFORMS[platform], sizes, STEPS, decode=12)
        assert embedding.hits == 2 * (STEPS + 13) and embedding.backward_hits == 2 * STEPS
        assert sdpa.hits == sizes.layers * (STEPS + 13)
        assert not embedding.handed_to_native and not sdpa.handed_to_native
    assert native.losses[-1] < 0.8 * native.losses[0], "it did not learn"
    torch.testing.assert_close(ours.losses, native.losses, rtol=1e-4, atol=0)
    assert ours.tokens == native.tokens
