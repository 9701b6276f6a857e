"""The loop that a second of sound is compared with does what the published one does, so far as steps can tell."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path

import pytest

from runtime.port import Entry

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(importlib.util.find_spec("moshi") is None, reason="the public package is not installed"),
]
WORDS = [Entry((5 + n, 6), str(n), 2) for n in range(6)]


def test_a_caller_alone_leads_without_codes_sounds_to_its_end_and_is_followed(small_checkpoint: Path) -> None:
    from benchmarks.reference_loop import FINAL_PADDING, ReferenceLoop, conditions_of, reference_model

    model = reference_model(small_checkpoint)
    loop = ReferenceLoop(model, conditions_of(model, small_checkpoint, 3), 3, 1, itertools.repeat(WORDS))
    loop.step()
    first = loop._seats[0]
    assert first and loop._seats[1:] == [None, None]
    while loop._seats[0] is first:
        loop.step()
    words = [word for word, _ in first.state.transcript]
    assert words == [entry.text for entry in WORDS] and first.state.end_step
    assert loop.text_only_steps == model.delay_steps, "alone it takes no whole step before its delay is over"
    frames = first.state.end_step + FINAL_PADDING
    assert loop.sound_s * model.mimi.frame_rate == pytest.approx(frames)
    assert loop.whole_steps == frames + loop._generate.max_delay
    cpu_s, wall_s, sound_s = loop.frames(4)
    assert cpu_s > 0 and wall_s > 0 and sound_s > 0 and loop._seats[0] not in (None, first), "the next one came"


def test_while_somebody_leads_two_steps_without_codes_go_between_whole_ones(small_checkpoint: Path) -> None:
    from benchmarks.reference_loop import ReferenceLoop, conditions_of, reference_model

    model = reference_model(small_checkpoint)
    scripts = itertools.chain([WORDS * 20], itertools.repeat(WORDS))
    loop = ReferenceLoop(model, conditions_of(model, small_checkpoint, 2), 2, 1, scripts)
    loop.frames(4)
    loop.callers = 2
    kinds = [loop.step() for _ in range(12)]
    while not loop._seats[1] or loop._seats[1].offset < 2:
        kinds.append(loop.step())
    began = kinds.index(False)
    assert kinds[began : began + 9] == [False, False, True] * 3
