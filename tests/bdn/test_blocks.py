"""Which block of memory is filled next: the warm one where that is cheaper, a rested one where that is."""

from __future__ import annotations

import random
from collections.abc import Callable

from bdn.blocks import PROBE_EVERY, Blocks

BLOCKS, IN_USE = 32, 8


def walk(blocks: Blocks, steps: int, cost: Callable[[int], float], seed: int = 1) -> list[int]:
    """Takes blocks as a pull does, with some on their way to the disk; `cost` of how many other blocks were filled
    since this one. Which rested how long, for those filled before."""
    rng, busy, last, rests = random.Random(seed), [], {}, []
    for now in range(steps):
        block = blocks.take()
        assert block is not None
        rest = now - last[block] if block in last else -1
        last[block] = now
        blocks.cost(block, cost(rest) * rng.uniform(0.9, 1.1) + (100.0 if rng.random() < 0.02 else 0.0))
        if rest >= 0:
            rests.append(rest)
        busy.append(block)
        if len(busy) > IN_USE:
            blocks.give_back(busy.pop(0))
    for block in busy:
        blocks.give_back(block)
    return rests


def share_of_warm(rests: list[int]) -> float:
    return sum(rest <= 2 * IN_USE for rest in rests) / len(rests)


def test_where_warm_memory_is_cheaper_the_block_given_back_last_is_taken() -> None:
    rests = walk(Blocks(range(BLOCKS)), 1000, lambda rest: 1.0 if rest <= 2 * IN_USE else 1.2)
    assert share_of_warm(rests[100:]) > 0.9


def test_where_warm_memory_is_dearer_a_block_rests_while_all_others_are_filled() -> None:
    rests = walk(Blocks(range(BLOCKS)), 1000, lambda rest: 5.0 if rest <= 2 * IN_USE else 1.2)
    assert share_of_warm(rests[100:]) < 2 / PROBE_EVERY


def test_a_change_is_noticed_both_ways() -> None:
    blocks = Blocks(range(BLOCKS))
    for warm, expected in ((1.0, True), (5.0, False), (1.0, True)):
        rests = walk(blocks, 1000, lambda rest, warm=warm: warm if rest <= 2 * IN_USE else 1.2)  # type: ignore[misc]
        assert (share_of_warm(rests[PROBE_EVERY * 10 :]) > 0.5) is expected


def test_the_first_filling_of_a_block_says_nothing() -> None:
    """It costs page faults: believed, it would speak against whichever kind had more of them."""
    blocks = Blocks(range(BLOCKS))
    rests = walk(blocks, 1000, lambda rest: 50.0 if rest < 0 else 1.0 if rest <= 2 * IN_USE else 1.2)
    assert share_of_warm(rests[100:]) > 0.9


def test_every_block_comes_back_once() -> None:
    blocks = Blocks(range(BLOCKS))
    walk(blocks, 500, lambda rest: 1.0)
    taken = [blocks.take() for _ in range(BLOCKS)]
    assert sorted(b for b in taken if b is not None) == list(range(BLOCKS))
    assert blocks.take() is None
