"""The word feed: same tokens however text arrives, nothing lost, nothing invented."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from runtime.port import Entry
from runtime.wordfeed import NEW_WORD, PAD, Commit, FeedRules, WordFeed

CARD = 513
RULES = FeedRules(card=CARD)


def script(seed: int, words: int = 12) -> list[Entry]:
    rng = random.Random(seed)
    entries = []
    for n in range(words):
        if rng.random() < 0.2:
            entries.append(Entry((), "", rng.randrange(1, 6)))
        tokens = tuple(rng.randrange(4, 512) for _ in range(rng.randrange(1, 4)))
        entries.append(Entry(tokens, f"w{n}", rng.choice((0, len(tokens)))))
    return entries


def answer(seed: int, step: int) -> bool:
    """What the model would say at a step, whatever the feed's history: asks for a word about every third step."""
    return random.Random(seed * 100_003 + step).random() < 0.3


def play(feed: WordFeed, seed: int, *, until: int = 400) -> list[Commit]:
    commits = []
    while feed.ready and feed.end_step is None and feed.step < until:
        pad, word = feed.peek()
        wants = answer(seed, feed.step)
        commit = feed.commit(wants)
        assert commit.token == (word if wants else pad), "peek promises what commit does"
        commits.append(commit)
    return commits


def whole(entries: Sequence[Entry], seed: int, rules: FeedRules = RULES) -> list[Commit]:
    feed = WordFeed(rules)
    feed.push(entries)
    feed.end()
    return play(feed, seed)


@pytest.mark.parametrize("lookahead", [0, 1, 2])
@pytest.mark.parametrize("seed", range(20))
def test_entries_one_by_one_give_the_same_steps_as_all_at_once(seed: int, lookahead: int) -> None:
    rules = FeedRules(card=CARD, lookahead=lookahead, patience=lookahead)
    entries = script(seed)
    feed, commits = WordFeed(rules), []
    for entry in entries:
        feed.push([entry])
        commits += play(feed, seed)
    feed.end()
    commits += play(feed, seed)
    assert commits == whole(entries, seed, rules)


@pytest.mark.parametrize("seed", range(10))
def test_every_word_is_fed_whole_and_in_order_and_is_timed_once(seed: int) -> None:
    entries = script(seed)
    commits = whole(entries, seed)
    words = [entry for entry in entries if entry.tokens]
    fed = [c.token % CARD for c in commits if c.token % CARD not in (PAD, NEW_WORD)]
    assert fed == [token for entry in words for token in entry.tokens]
    started = [w for c in commits for w in c.started]
    finished = [w for c in commits for w in c.finished]
    assert [w.text for w in started] == [w.text for w in finished] == [e.text for e in words]
    assert [w.start for w in finished] == [w.start for w in started]
    assert all(w.stop is not None and w.stop > w.start for w in finished)


def test_a_word_waits_for_its_lookahead_and_no_longer() -> None:
    feed = WordFeed(RULES)
    words = [Entry((10 + n,), str(n)) for n in range(3)]
    feed.push(words[:2])
    play(feed, 1)
    assert feed.step == RULES.initial_padding, "the forced padding needs no text"
    feed.push(words[2:])
    assert feed.ready


def test_a_smaller_patience_speaks_sooner() -> None:
    feed = WordFeed(FeedRules(card=CARD, patience=0, initial_padding=0))
    feed.push([Entry((10,), "now")])
    assert feed.ready


def test_flush_speaks_every_word_and_brings_its_sound_out_then_starves() -> None:
    feed = WordFeed(RULES)
    feed.push([Entry((10,), "one"), Entry((11,), "two")])
    feed.flush()
    commits = []
    while feed.ready:
        feed.peek()
        commits.append(feed.commit(False))
        assert feed.step < 200
    finished = [w for c in commits for w in c.finished]
    assert [w.text for w in finished] == ["one", "two"]
    assert feed.end_step is None
    stop = finished[-1].stop
    assert stop is not None and feed.step == stop + RULES.tail_steps
    feed.flush()
    assert not feed.ready, "a second flush has nothing to bring out"


def test_a_word_after_a_flush_waits_again_but_never_holds_the_flushed_sound_back() -> None:
    feed = WordFeed(RULES)
    feed.push([Entry((10,), "one")])
    feed.flush()
    feed.push([Entry((11,), "two")])
    finished = []
    while feed.ready:
        finished += feed.commit(feed.step % 7 == 0).finished
    assert [w.text for w in finished] == ["one"]
    feed.end()
    assert [w.text for c in play(feed, 3) for w in c.finished] == ["two"]


def test_the_model_is_made_to_go_on_after_max_padding() -> None:
    feed = WordFeed(RULES)
    feed.push([Entry((10,), "a"), Entry((11,), "b")])
    feed.end()
    starts = []
    while feed.end_step is None:
        starts += [w.start for w in feed.commit(False).started]
    assert starts == [2, 2 + 1 + RULES.max_padding]


def test_an_end_without_a_word_is_silent() -> None:
    feed = WordFeed(RULES)
    feed.end()
    assert feed.silent


def test_a_prompt_comes_before_everything_and_carries_no_text() -> None:
    feed = WordFeed(FeedRules(card=CARD, prefix_steps=3))
    feed.push([Entry((10,), "a")])
    feed.end()
    tokens = [feed.commit(True).token for _ in range(3)]
    assert tokens == [-1, -1, -1]
    assert next(w.start for c in play(feed, 0) for w in c.started) >= 3 + RULES.initial_padding
