"""Long speech: memory stays flat, time does not drift, and what is said late is said as it would have been alone."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import psutil
import pytest

from runtime.port import Entry, LaneState, StreamSpec
from tests.runtime.models import entries_of, small_engine

GREEDY = StreamSpec(temp=0, text_temp=0)


def rss_bytes() -> int:
    gc.collect()
    return int(psutil.Process(os.getpid()).memory_info().rss)


@pytest.mark.slow
def test_ten_thousand_frames_leave_memory_flat(tmp_path: Path) -> None:
    """13 minutes of one stream: two and a half hundred times round the ring of keys and values."""
    engine = small_engine(tmp_path, codebooks=2)
    lane = engine.open(StreamSpec(temp=0.8, text_temp=0.8, seed=2))
    marks, frames, words, started = [], 0, 0, 0
    while frames < 10_000:
        while engine.state(lane) is LaneState.STARVED:
            engine.feed(lane, [Entry((10 + words % 400, 7), str(words), 1)])
            words += 1
        for out in engine.step([lane]):
            frames += out.pcm is not None
            for word in out.started:
                assert word.text == str(started) and abs(word.start_s - out.step * 0.08) < 1e-3
                started += 1
        if frames % 1_000 == 0:
            marks.append(rss_bytes())
    assert max(marks) - marks[2] < 8 << 20, marks


def test_a_lane_that_has_spoken_long_speaks_as_fresh_when_reopened(tmp_path: Path) -> None:
    """The ring has gone round (context 64), offsets are large: none of it may reach the next stream."""
    engine = small_engine(tmp_path, codebooks=2)

    def said(words: str) -> list[float]:
        lane = engine.open(GREEDY)
        engine.feed(lane, entries_of(engine, words))
        engine.end(lane)
        heard: list[float] = []
        while engine.state(lane) is not LaneState.ENDED:
            for out in engine.step([lane], lead=engine.state(lane) is LaneState.LEAD):
                heard += [] if out.pcm is None else out.pcm[:3].tolist()
        engine.close(lane)
        return heard

    fresh = said("one two")
    said("and " * 20)
    assert said("one two") == fresh


def test_a_thousand_streams_opened_and_cancelled_leave_nothing(tmp_path: Path) -> None:
    engine = small_engine(tmp_path, codebooks=2, lanes=2)
    for n in range(1_000):
        lane = engine.open(GREEDY)
        if n % 50 == 0:
            engine.feed(lane, entries_of(engine, "a few words and then silence"))
            engine.step([lane], lead=True)
        engine.close(lane)
    assert engine.state(0) is engine.state(1) is LaneState.FREE
