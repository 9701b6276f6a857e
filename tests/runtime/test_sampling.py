"""Drawing tokens: both ways to put probabilities in order agree, so that a step's kind does not decide what is said."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from runtime.model.sampling import Race, Ranks, SortedRace, likeliest


@pytest.mark.parametrize(("card", "count"), [(4, 4), (256, 250), (512, 25), (2048, 250)])
@pytest.mark.parametrize("sharpness", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("greedy", [0, 3], ids=["all drawn", "some likeliest"])
def test_both_kinds_of_race_draw_the_same_tokens(card: int, count: int, sharpness: float, greedy: int) -> None:
    draws = torch.Generator().manual_seed(card)
    logits = torch.randn(64, card, generator=draws) * sharpness
    noise = torch.empty(64, 3, count).exponential_(generator=draws)
    noise[5, :, 1:] = torch.inf  # a top k of 1
    noise[6, 2, 3] = 0  # wins
    temp = torch.full((64, 1), 0.6)
    temp[:greedy] = 0
    with torch.inference_mode():
        race, plain = SortedRace(temp, noise), Race(temp, noise)
        for number in (2, 0, 1):
            drawn = race(number, logits)
            assert torch.equal(drawn, plain(number, logits))
            assert torch.equal(drawn[:greedy], likeliest(logits)[:greedy])
            assert drawn[5] == likeliest(logits)[5]


def test_sorting_gives_the_likeliest_first_and_equal_ones_by_token() -> None:
    logits = np.array([[0.0, 2.5, 3.0, 2.5, 0.0], [-1.0, -3.0, -np.inf, -2.0, -2.0]], dtype=np.float32)
    ranks = Ranks(2, 5)
    for _ in range(2):
        tokens, behind = ranks.of(logits)
        assert tokens.tolist() == [[2, 1, 3, 0, 4], [0, 3, 4, 1, 2]]
        assert behind.tolist() == [[0, 0.5, 0.5, 3, 3], [0, 1, 1, 2, np.inf]]


def test_the_likeliest_is_taken_beside_drawn_ones_whatever_lies_infinitely_far_behind_it() -> None:
    logits = torch.full((2, 8), -torch.inf)
    logits[:, 5] = 1.0
    noise = torch.ones(2, 1, 4)
    assert SortedRace(torch.tensor([[0.0], [0.7]]), noise)(0, logits).tolist() == [5, 5]


@pytest.mark.parametrize("rows", [1, 3, 16])
def test_a_row_draws_the_same_token_in_any_company(rows: int) -> None:
    draws = torch.Generator().manual_seed(rows)
    logits, temp = torch.randn(64, 300, generator=draws), torch.rand(64, 1, generator=draws)
    noise = torch.empty(64, 2, 250).exponential_(generator=draws)
    among = SortedRace(temp, noise)(1, logits)
    for start in range(0, 64 - rows, rows):
        own = slice(start, start + rows)
        assert torch.equal(SortedRace(temp[own], noise[own])(1, logits[own]), among[own])
