"""Drawing tokens: both ways to put probabilities in order agree, so that a step's kind does not decide what is said."""

from __future__ import annotations

import pytest
import torch

from runtime.model.sampling import Temperature, ranked, ranked_by_sorting, sample


@pytest.mark.parametrize(("card", "count"), [(4, 4), (256, 250), (512, 25), (2048, 250)])
@pytest.mark.parametrize("sharpness", [0.1, 1.0, 30.0])
def test_both_orders_draw_the_same_tokens(card: int, count: int, sharpness: float) -> None:
    draws = torch.Generator().manual_seed(card)
    logits = torch.randn(64, card, generator=draws) * sharpness
    noise = torch.empty(64, count).exponential_(generator=draws)
    temp = Temperature(torch.full((64, 1), 0.6))
    with torch.inference_mode():
        assert torch.equal(sample(logits, temp, noise, ranked_by_sorting), sample(logits, temp, noise, ranked))


def test_sorting_gives_the_greatest_first_and_equal_ones_by_token() -> None:
    probs = torch.tensor([[0.0, 0.25, 0.5, 0.25, 0.0], [1.0, 1e-45, 0.0, 1e-38, 1e-38]])
    top, ids = ranked_by_sorting(probs, 4)
    assert ids.tolist() == [[2, 1, 3, 0], [0, 3, 4, 1]]
    assert torch.equal(top, probs.gather(1, ids))
    assert torch.equal(top, ranked(probs, 4)[0])
