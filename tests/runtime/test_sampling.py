"""Drawing tokens: both ways to put probabilities in order agree, so that a step's kind does not decide what is said."""

from __future__ import annotations

import pytest
import torch

from runtime.model.sampling import Race, SortedRace, likeliest, probabilities, ranked


@pytest.mark.parametrize(("card", "count"), [(4, 4), (256, 250), (512, 25), (2048, 250)])
@pytest.mark.parametrize("sharpness", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("greedy", [0, 3], ids=["all drawn", "some likeliest"])
def test_both_kinds_of_race_draw_the_same_tokens(card: int, count: int, sharpness: float, greedy: int) -> None:
    draws = torch.Generator().manual_seed(card)
    logits = torch.randn(64, card, generator=draws) * sharpness
    noise = torch.empty(64, count).exponential_(generator=draws)
    noise[5, 1:] = torch.inf  # a top k of 1
    temp = torch.full((64, 1), 0.6)
    temp[:greedy] = 0
    with torch.inference_mode():
        drawn = SortedRace(temp)(logits, noise)
        assert torch.equal(drawn, Race(temp)(logits, noise))
        assert torch.equal(drawn[:greedy], likeliest(logits)[:greedy])
        assert drawn[5] == likeliest(logits)[5]


def test_sorting_gives_the_greatest_first_and_equal_ones_by_token() -> None:
    probs = torch.tensor([[0.0, 0.25, 0.5, 0.25, 0.0], [1.0, 1e-45, 0.0, 1e-38, 1e-38]])
    pairs = ranked(probs.numpy())[:, :4]
    assert pairs[..., 0].tolist() == [[2, 1, 3, 0], [0, 3, 4, 1]]
    assert torch.equal(torch.from_numpy(probabilities(pairs)), torch.topk(probs, 4)[0])
