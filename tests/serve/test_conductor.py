"""The conductor on the fake engine under simulated time: order, words, pauses, flushes, cancels, faults, crosstalk."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from runtime.port import StreamSpec
from runtime.scheduler import Costs
from runtime.serve.conductor import PARCEL_FRAMES, PARCEL_PART, Conductor
from runtime.serve.traffic import (
    Broken,
    Close,
    Command,
    End,
    Feed,
    Finished,
    Flush,
    Flushed,
    Happening,
    Hold,
    Open,
    Paused,
    Sound,
    Words,
)
from runtime.step_cost import StepCost
from tests.serve.fake_engine import FRAME_S, FakeEngine, FakeFeed, SimClock, planted

COSTS = Costs(full=StepCost(0.004, 0.002), lead=StepCost(0.0012, 0.0006))


class Stage:
    """An engine, its conductor and a clock; remembers all that happened, by stream."""

    def __init__(self, trim: bool = True, **engine: object) -> None:
        self.clock = SimClock()
        self.engine = FakeEngine(clock=self.clock, full_fixed_s=0.004, full_lane_s=0.002, **engine)  # type: ignore
        self.conductor = Conductor(self.engine, COSTS, self.clock, trim=trim)
        self.log: list[tuple[float, Happening]] = []

    def tell(self, *commands: Command) -> None:
        self.log += [(self.clock.now, h) for h in self.conductor.obey(commands)]

    def say(self, sid: int, text: str, end: bool = True, seed: int | None = None, ahead_s: float = 4.0) -> None:
        feed = self.engine.text_feed(StreamSpec())
        entries = (*feed.push(text), *feed.end())
        self.tell(Open(sid, StreamSpec(seed=sid if seed is None else seed), ahead_s), Feed(sid, entries))
        if end:
            self.tell(End(sid))

    def run(self, seconds: float) -> None:
        until = self.clock.now + seconds
        while self.clock.now < until:
            out, wake = self.conductor.turn()
            self.log += [(self.clock.now, h) for h in out]
            if wake > self.clock.now:
                self.clock.now = min(wake, until)

    def of(self, sid: int, kind: type) -> list:  # type: ignore[type-arg]
        return [h for _, h in self.log if isinstance(h, kind) and h.sid == sid]

    def sound(self, sid: int) -> np.ndarray:
        return np.concatenate([s.pcm for s in self.of(sid, Sound)] or [np.zeros(0, np.float32)])


def ks(pcm: np.ndarray) -> set[int]:
    """Whose frames these are, by the planted value; silence and the ramp at the end belong to nobody."""
    values = np.rint(np.abs(pcm) * 32767).astype(int)
    return {int(v) for v in np.unique(values) if (values == v).sum() > 200 and v}


def test_a_stream_speaks_all_its_words_in_order_and_then_finishes() -> None:
    stage = Stage()
    stage.say(1, "one two three four")
    stage.run(5)
    words = [w for h in stage.of(1, Words) for w in h.words]
    assert [w.text for w in words] == ["one", "two", "three", "four"]
    assert all(a.stop_s <= b.start_s + 1e-9 for a, b in itertools.pairwise(words))
    assert len(stage.of(1, Finished)) == 1 and not stage.engine.held
    assert len(stage.sound(1)) / 24_000 >= words[-1].stop_s, "the last word is heard to its end"


def test_the_first_sound_takes_the_lead_in_lead_steps_and_three_whole_ones() -> None:
    stage = Stage()
    stage.say(1, "one two three")
    stage.run(1)
    first = next(t for t, h in stage.log if isinstance(h, Sound))
    lead, full = 0.3 * 0.006, 0.006
    assert first == pytest.approx(4 * lead + 3 * full)
    assert [lead for _, lead in stage.engine.steps[:7]] == [True] * 4 + [False] * 3


@pytest.mark.parametrize("text_s", [0.0, 0.001, 5.0])
def test_a_newcomer_is_aimed_at_from_its_text_on_whatever_it_could_do_without(text_s: float) -> None:
    """The engine makes the silence before the first word at once, so a fresh stream is not short of text at first.

    That it was taken for one that has waited since the clock began, beside which nobody may ride, went unnoticed: the
    fake engine was short of text from the start.
    """
    stage = Stage()
    stage.say(2, " ".join(["word"] * 400))
    stage.run(3)
    began = stage.clock.now
    stage.tell(Open(1, StreamSpec(seed=1), 4.0))
    stage.run(text_s)
    waited = stage.clock.now
    stage.tell(Feed(1, (*FakeFeed().push("one two three four "),), stage.clock.now), End(1))
    stage.run(0.0001)
    (seat,) = [s for s in stage.conductor._seats.values() if s.sid == 1]
    assert seat.waiting_since == waited >= began > 0
    assert not stage.of(1, Paused), "nothing was said yet"


def test_a_flush_before_any_text_is_answered() -> None:
    stage = Stage()
    stage.tell(Open(1, StreamSpec(seed=1), 4.0), Flush(1, 7))
    stage.run(1)
    assert [h.mark for h in stage.of(1, Flushed)] == [7] and not stage.of(1, Paused)


def test_it_waits_for_more_words_when_the_text_runs_dry_and_says_so_once() -> None:
    stage = Stage()
    stage.say(1, "one two three four", end=False)
    stage.run(3)
    assert len(stage.of(1, Paused)) == 1
    before = len(stage.sound(1))
    stage.run(3)
    assert len(stage.sound(1)) == before, "no sound is invented"
    stage.tell(End(1))
    stage.run(5)
    assert [w.text for h in stage.of(1, Words) for w in h.words] == ["one", "two", "three", "four"]


def test_a_pause_of_the_text_is_no_underrun() -> None:
    stage = Stage()
    stage.say(1, "one two three four", end=False)
    stage.run(10)
    stage.tell(End(1))
    stage.run(5)
    assert all(s.late_s == 0 for s in stage.of(1, Sound)) and stage.conductor.tally.underruns == 0


def test_the_end_of_a_stream_that_had_said_all_is_no_underrun() -> None:
    """Its last few samples come long after its listener ran dry, as its text did."""
    stage = Stage()
    stage.say(1, "one two three four five", end=False)
    stage.tell(Flush(1, 7))
    stage.run(30)
    assert stage.of(1, Flushed) and not stage.of(1, Finished)
    stage.tell(End(1))
    stage.run(1)
    assert stage.of(1, Finished)
    assert all(s.late_s == 0 for s in stage.of(1, Sound)) and stage.conductor.tally.underruns == 0


@pytest.mark.parametrize("others", [0, 1])
def test_a_reader_who_lets_its_sound_lie_is_no_underrun(others: int) -> None:
    """Also where nobody else keeps the device turning meanwhile."""
    stage = Stage()
    stage.say(1, " ".join(["word"] * 60))
    for sid in range(2, 2 + others):
        stage.say(sid, " ".join(["word"] * 600))
    stage.run(1)
    stage.tell(Hold(1, True))
    stage.run(30)
    stage.tell(Hold(1, False))
    stage.run(10)
    assert stage.of(1, Finished)
    assert all(s.late_s == 0 for s in stage.of(1, Sound)) and stage.conductor.tally.underruns == 0


def test_a_reader_who_comes_back_is_waited_for_from_then_on_and_others_ride_along() -> None:
    """Taken for one that had waited since its call began, it had the device to itself at every return."""
    stage = Stage()
    for sid in (1, 2, 3, 4):
        stage.say(sid, " ".join(["word"] * 400))
    stage.run(3)
    stage.tell(Hold(4, True))
    stage.run(6)
    steps = len(stage.engine.steps)
    stage.tell(Hold(4, False))
    stage.run(0.001)
    (seat,) = [s for s in stage.conductor._seats.values() if s.sid == 4]
    assert len(stage.engine.steps) == steps + 1
    assert seat.lane in stage.engine.steps[-1][0] and len(stage.engine.steps[-1][0]) > 1


@pytest.mark.parametrize("others", [0, 1, 4, 9])
def test_a_call_that_may_run_far_ahead_does_so_whoever_speaks_beside_it(others: int) -> None:
    """It waited for the company of streams with their hands full: 16 s of sound took 16 s beside a single one."""
    stage = Stage(lanes=10)
    for sid in range(2, 2 + others):
        stage.say(sid, " ".join(["word"] * 400))
    stage.run(6)
    began = stage.clock.now
    stage.say(1, " ".join(["word"] * 100), ahead_s=30.0)
    stage.run(20)
    (done,) = [at for at, h in stage.log if isinstance(h, Finished) and h.sid == 1]
    assert done - began < 5.0 and stage.conductor.tally.underruns == 0


def test_a_flush_is_answered_after_the_sound_of_every_word_before_it() -> None:
    stage = Stage()
    stage.say(1, "one two", end=False)
    stage.run(1)
    assert not stage.of(1, Sound)
    stage.tell(Flush(1, 7))
    stage.run(3)
    order = [h for _, h in stage.log if isinstance(h, Sound | Flushed | Words)]
    (flushed,) = [i for i, h in enumerate(order) if isinstance(h, Flushed)]
    assert order[flushed].mark == 7  # type: ignore[union-attr]
    spoken = sum(len(h.pcm) for h in order[:flushed] if isinstance(h, Sound)) / 24_000
    words = [w for h in order[:flushed] if isinstance(h, Words) for w in h.words]
    assert [w.text for w in words] == ["one", "two"] and spoken >= words[-1].stop_s


def test_flushes_are_answered_in_order_also_with_nothing_to_speak() -> None:
    stage = Stage()
    stage.say(1, "", end=False)
    stage.tell(Flush(1, 1), Flush(1, 2))
    stage.run(1)
    assert [f.mark for f in stage.of(1, Flushed)] == [1, 2]


def test_end_implies_flush() -> None:
    stage = Stage()
    stage.say(1, "one", end=False)
    stage.run(1)
    stage.tell(Flush(1, 1), End(1))
    stage.run(4)
    assert [w.text for h in stage.of(1, Words) for w in h.words] == ["one"]
    assert stage.of(1, Flushed) and stage.of(1, Finished)


def test_an_empty_text_finishes_without_sound() -> None:
    stage = Stage()
    stage.say(1, "🙂 … !")
    stage.run(1)
    assert stage.of(1, Finished) and not stage.of(1, Sound)


def test_leading_silence_is_cut_and_word_times_move_with_it() -> None:
    plain, trimmed = Stage(trim=False, silent_frames=3), Stage(trim=True, silent_frames=3)
    for stage in (plain, trimmed):
        stage.say(1, "one two three")
        stage.run(5)
    cut = trimmed.of(1, Finished)[0].silence_s
    assert 0.2 < cut < 0.24
    starts = [[w.start_s for h in s.of(1, Words) for w in h.words] for s in (plain, trimmed)]
    assert starts[1] == pytest.approx([max(0.0, t - cut) for t in starts[0]])
    assert np.count_nonzero(trimmed.sound(1)[:1200]), "sound within the first 50 ms"


def test_closing_a_stream_frees_its_lane_before_the_next_step_and_nothing_follows() -> None:
    stage = Stage(lanes=1)
    stage.say(1, "one two three four five six seven")
    stage.run(0.5)
    stage.tell(Close(1))
    assert not stage.engine.held
    at = len(stage.log)
    stage.say(2, "eight nine ten")
    stage.run(5)
    assert all(h.sid == 2 for _, h in stage.log[at:]) and stage.of(2, Finished)


def test_late_commands_for_a_stream_that_is_gone_do_nothing() -> None:
    stage = Stage()
    stage.say(1, "one two three")
    stage.run(5)
    stage.tell(Close(1), Feed(1, ()), Flush(1, 1), End(1), Hold(1, True))
    assert not stage.of(1, Flushed)


def test_an_unknown_voice_breaks_only_the_stream_that_asked_for_it() -> None:
    stage = Stage()
    stage.say(1, "one two three")
    stage.tell(Open(2, StreamSpec(voices=("nobody",)), 4.0))
    stage.run(5)
    (broken,) = stage.of(2, Broken)
    assert broken.code == "voice_unknown" and "anna, ben" in broken.message
    assert stage.of(1, Finished)


def test_a_failing_step_breaks_the_lanes_in_it_and_frees_them() -> None:
    stage = Stage(fail_seed=13)
    stage.say(13, "one two three")
    stage.run(1)
    assert stage.of(13, Broken)[0].code == "internal" and not stage.engine.held
    stage.say(2, "one two three")
    stage.run(5)
    assert stage.of(2, Finished), "the engine goes on for others"


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38, -1e20])
def test_where_no_silence_can_be_told_from_sound_nothing_leaves(bad: float) -> None:
    stage = Stage(bad_seed=9, bad=bad)
    stage.say(9, "one two three")
    stage.say(2, "one two three")
    stage.run(5)
    assert stage.of(9, Broken) and not stage.of(9, Sound) and stage.of(2, Finished)


def test_a_stream_runs_ahead_no_further_than_its_bound() -> None:
    stage = Stage()
    stage.say(1, " ".join(["word"] * 100), ahead_s=1.0)
    stage.run(5)
    first = next(t for t, h in stage.log if isinstance(h, Sound))
    ahead = len(stage.sound(1)) / 24_000 - (stage.clock.now - first)
    assert 0.8 < ahead <= 1.0 + FRAME_S


def test_a_listener_gets_a_part_of_what_it_has_in_hand_at_a_time_and_never_waits_for_it() -> None:
    stage = Stage()
    stage.say(1, " ".join(["word"] * 60))
    stage.run(30)
    sizes = [s.samples // 1920 for s in stage.of(1, Sound)]
    assert sizes[:4] == [1, 1, 1, 1] and PARCEL_FRAMES in sizes and max(sizes) == PARCEL_FRAMES
    dry_at = 0.0
    for when, happening in stage.log:
        if isinstance(happening, Sound):
            assert not dry_at or when <= dry_at, "the listener ran dry while a parcel was filled"
            had_s = dry_at - when
            dry_at = max(dry_at, when) + happening.samples / 24_000
            kept_s = happening.samples / 24_000 - FRAME_S  # while the last frame was made
            assert kept_s <= PARCEL_PART * (had_s + kept_s) + 0.01 or kept_s <= 0


@pytest.mark.parametrize("others", [0, 9])
def test_a_device_that_rests_wakes_for_a_parcel_that_has_to_go(others: int) -> None:
    """It slept until it was worth a step: a listener may have had less in hand by then than its parcel asks for."""
    stage = Stage(lanes=16)
    for sid in range(1 + others):
        stage.say(sid, " ".join(["word"] * 60), ahead_s=3.0 + 0.1 * sid)
    rests = 0
    while stage.clock.now < 20:
        _, wake_at = stage.conductor.turn()
        kept = [seat for seat in stage.conductor._seats.values() if seat.parcel]
        assert all(seat.send_by > stage.clock.now - 0.03 for seat in kept), "kept for longer than a step"
        if wake_at > stage.clock.now:
            rests += bool(kept)
            assert all(wake_at <= seat.send_by for seat in kept)
            stage.clock.now = min(wake_at, 20)
    assert rests > 20


def test_words_go_with_the_sound_they_belong_to_and_are_told_before_they_are_heard() -> None:
    """Between the frames of a parcel no word leaves alone: each message wakes the network side."""
    stage = Stage()
    stage.say(1, " ".join(["word"] * 60))
    stage.run(30)
    told, heard_s, first = 0, 0.0, None
    for when, happenings in itertools.groupby(stage.log, key=lambda pair: pair[0]):
        kinds = [h for _, h in happenings]
        sounds = [h for h in kinds if isinstance(h, Sound)]
        for sound in sounds:
            first = when if first is None else first
            heard_s += sound.samples / 24_000
        for words in (h for h in kinds if isinstance(h, Words)):
            assert sounds or heard_s < 0.4, "a word left without sound although a parcel was being filled"
            told += len(words.words)
            assert all(first is None or first + w.stop_s >= when for w in words.words), "told after it was heard"
    assert told == 60


def test_no_parcel_is_kept_when_the_text_runs_dry_or_a_flush_is_answered() -> None:
    for close in ((), (Flush(1, 7),)):
        stage = Stage()
        stage.say(1, " ".join(["word"] * 30), end=False)
        stage.tell(*close)
        stage.run(20)
        kinds = [type(h) for _, h in stage.log]
        last = max(n for n, k in enumerate(kinds) if k is Sound)
        assert last < kinds.index(Paused, max(0, last - 1)), "all sound is out before the pause is told"
        assert not close or last < kinds.index(Flushed)
        assert len(stage.sound(1)) == stage.conductor.tally.steps_full * 1920 - 2 * 1920


def test_a_held_stream_costs_no_steps_and_goes_on_when_released() -> None:
    stage = Stage()
    stage.say(1, " ".join(["word"] * 20))
    stage.run(0.2)
    stage.tell(Hold(1, True))
    steps = len(stage.engine.steps)
    stage.run(2)
    assert len(stage.engine.steps) == steps
    stage.tell(Hold(1, False))
    stage.run(6)
    assert stage.of(1, Finished)


@pytest.mark.parametrize("seed", range(5))
def test_nobody_ever_hears_another_whatever_joins_leaves_and_stalls(seed: int) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    stage = Stage(lanes=6, silent_frames=1)
    live: list[int] = []
    sid = 0
    for _ in range(400):
        match rng.choice(["join", "leave", "hold", "free", "run", "run", "flush", "end"]):
            case "join" if len(live) < 6:
                sid += 1
                live.append(sid)
                stage.say(sid, " ".join(["w"] * rng.randrange(0, 30)), end=rng.random() < 0.5)
            case "run":
                stage.run(rng.random() * 0.4)
            case action if live:
                who = rng.choice(live)
                command: Command = {
                    "leave": Close(who), "hold": Hold(who, True), "free": Hold(who, False), "flush": Flush(who, 1)
                }.get(action, End(who))
                stage.tell(command)
        over = {h.sid for _, h in stage.log if isinstance(h, Finished | Broken)}
        live = [s for s in live if s not in over and s in stage.conductor._seats]
    assert sid > 30
    for who in range(1, sid + 1):
        assert ks(stage.sound(who)) <= {planted(who)}, who
    stage.tell(*(Close(s) for s in live))
    assert not stage.engine.held and stage.engine.opened == stage.engine.closed
