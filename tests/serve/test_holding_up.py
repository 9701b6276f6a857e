"""What takes long for one stream, coding its sound or reading its text, holds nobody else up."""

from __future__ import annotations

import asyncio
import threading
import time

import numpy as np
import pytest

from runtime.admission import KeyLimits
from runtime.audio import encoder
from runtime.port import StreamSpec
from runtime.serve.hub import PIECE_CHARS, Stream
from runtime.serve.traffic import Finished, Sound
from runtime.serve.wire import Audio, Done, Failed, Setup
from tests.serve.harness import Running, served

BURNT_S = 0.02


class Slow:
    """A coder that works until it is let go."""

    content_type, sample_rate, slow = "audio/slow", 24_000, True

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.threads: set[int] = set()

    def encode(self, frame: np.ndarray) -> bytes:
        self.threads.add(threading.get_ident())
        self.begun.set()
        assert self.go_on.wait(10)
        return b"sound"

    def finish(self) -> bytes:
        return b""

    def final_header(self) -> bytes:
        return b""


class Busy(Slow):
    """A coder that takes a known part of its thread's processor time."""

    def __init__(self, slow: bool) -> None:
        super().__init__()
        self.slow = slow

    def encode(self, frame: np.ndarray) -> bytes:
        until = time.thread_time() + BURNT_S
        while time.thread_time() < until:
            pass
        return b"sound"


def stream_of(at: Running, coder: Slow) -> Stream:
    stream = Stream(at.server.hub, 7, 1, KeyLimits("k"), Setup(None, "", "pcm", StreamSpec()), coder, "native")
    stream.take(Sound(7, [np.zeros(1920, np.float32)]), 0.0)
    return stream


@served()
async def test_the_loop_goes_on_while_a_slow_coder_works(at: Running) -> None:
    coder = Slow()
    stream = stream_of(at, coder)
    stream.take(Finished(7, 0.0, 20), 0.0)
    stream.over = True
    reading = asyncio.create_task(stream.some())
    await at.until(coder.begun.is_set)
    async with at.http.get(at.url + "/livez") as reply:
        assert reply.status == 200 and not reading.done()
    coder.go_on.set()
    outs = await reading
    assert [type(out) for out in outs] == [Audio, Done] and threading.get_ident() not in coder.threads


@served()
async def test_sound_that_was_being_coded_when_its_stream_failed_is_not_given(at: Running) -> None:
    coder = Slow()
    stream = stream_of(at, coder)
    reading = asyncio.create_task(stream.some())
    await at.until(coder.begun.is_set)
    stream.fail("slow_reader", "not read")
    coder.go_on.set()
    outs = await reading
    assert [type(out) for out in outs] == [Failed]
    stream.over = True
    assert await stream.some() == []


@served()
async def test_a_long_text_is_read_in_pieces_between_which_the_loop_serves_others(at: Running) -> None:
    stream = stream_of(at, Slow())
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await stream.say("some words " * 1000)
    counting.cancel()
    assert turns >= 11_000 // PIECE_CHARS


@pytest.mark.parametrize("beside", [False, True])
@served()
async def test_what_coding_costs_is_told_apart_from_the_network(at: Running, beside: bool) -> None:
    network, coding = "tts_network_cpu_seconds_total", "tts_coding_cpu_seconds_total"
    stream = stream_of(at, Busy(slow=beside))
    began_s = time.thread_time()
    at.server.meters.loop_time.note()
    network_s, coding_s = await at.metric(network), await at.metric(coding)
    await stream.some()
    least_s = 0.0 if beside else BURNT_S
    async with at.http.get(at.url + "/metrics") as reply:
        page = await reply.text()
    assert f"{coding} 0.0\n" not in page, "whoever reads the page is told what was spent by then"
    at.server.meters.loop_time.note()
    whole_s = time.thread_time() - began_s
    assert await at.metric(coding) - coding_s >= BURNT_S
    assert 0 < await at.metric(network) - network_s <= whole_s - least_s


def test_what_is_slow_is_what_libav_codes() -> None:
    assert {name for name in ("pcm", "wav", "ulaw_8000", "opus", "mp3", "flac") if encoder(name).slow} == {
        "opus", "mp3", "flac",
    }  # fmt: skip
