"""What the device thread hands over, and when: at once what cannot wait, and with it all that came before."""

from __future__ import annotations

import math

import numpy as np

from runtime.port import StreamSpec
from runtime.scheduler import Costs
from runtime.serve.conductor import COMFORT_S, Conductor
from runtime.serve.device import EASE_S, Outgoing
from runtime.serve.traffic import Close, End, Feed, Happening, Open, Sound, Words
from runtime.step_cost import StepCost
from tests.serve.fake_engine import FakeEngine, SimClock

PCM = np.zeros(1920, np.float32)


def test_sound_for_who_has_enough_waits_and_goes_with_what_cannot() -> None:
    outgoing = Outgoing()
    easy, words, urgent = Sound(1, [PCM], at_ease=True), Words(1, (), at_ease=True), Sound(2, [PCM])
    outgoing.add([easy, words], 10.0)
    assert outgoing.due(10.0) == []
    outgoing.add([urgent], 10.01)
    assert outgoing.due(10.01) == [easy, words, urgent]
    assert outgoing.due(99.0) == [], "once"


def test_what_may_wait_waits_no_longer_than_its_bound_whatever_comes_after_it() -> None:
    outgoing, now = Outgoing(), 0.0
    while not outgoing.due(now):
        outgoing.add([Sound(1, [PCM], at_ease=True)], now)
        now += 0.01
    assert EASE_S <= now <= EASE_S + 0.02


def test_the_parts_of_a_sound_are_heard_in_order_and_without_a_seam() -> None:
    whole = np.arange(4000, dtype=np.float32)
    assert np.array_equal(Sound(1, [whole[:1920], whole[1920:3840], whole[3840:]]).pcm, whole)
    assert np.array_equal(Sound(1, [whole]).pcm, whole) and Sound(1, [whole, whole]).samples == 8000


def test_a_device_that_rests_wakes_for_what_it_kept_back() -> None:
    outgoing = Outgoing()
    assert outgoing.due_at == math.inf, "nothing is kept"
    outgoing.add([Words(1, (), at_ease=True)], 7.0)
    assert outgoing.due_at == 7.0 + EASE_S and len(outgoing.due(outgoing.due_at)) == 1
    assert outgoing.due_at == math.inf


def test_only_sound_of_streams_well_ahead_may_wait() -> None:
    """Whatever else a stream has to say, and all sound of one whose listener has little in hand, is urgent."""
    clock = SimClock()
    engine = FakeEngine(lanes=4, clock=clock, full_fixed_s=0.004, full_lane_s=0.002)
    conductor = Conductor(engine, Costs(StepCost(0.004, 0.002), StepCost(0.001, 0.0006)), clock)
    for sid in (1, 2, 3):
        feed = engine.text_feed(StreamSpec())
        entries = (*feed.push("word " * 80), *feed.end())
        conductor.obey([Open(sid, StreamSpec(seed=sid), 4.0), Feed(sid, entries), End(sid)])
    hand_from: dict[int, float] = {}
    eased, closed = 0, False
    while conductor.seated:
        if clock.now > 8.0 and not closed:
            closed = True
            conductor.obey([Close(3)])
        happenings, wake_at = conductor.turn()
        for happening in happenings:
            eased += note(happening, clock.now, hand_from)
        clock.now = max(clock.now, min(wake_at, clock.now + 0.1)) if wake_at else clock.now
    assert eased > 20


def note(happening: Happening, now: float, dry_at: dict[int, float]) -> bool:
    """Checks one happening against its listener's hand; whether it may wait."""
    if isinstance(happening, Sound):
        before = max(now, dry_at.get(happening.sid, now))
        dry_at[happening.sid] = before + len(happening.pcm) / 24_000
        assert not happening.at_ease or dry_at[happening.sid] - now >= COMFORT_S
        return happening.at_ease
    return isinstance(happening, Words) and happening.at_ease
