"""The bench measures what it says: silence is no sound, waiting starts when a call is due, chaos is seen."""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path

import aiohttp
import numpy as np
import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.bench.arrivals import PROMPTS, Call, calls, longer, pieces, words
from runtime.bench.clients import Target, speak
from runtime.bench.command import exit_code, measure
from runtime.bench.meter import Take, heard, playout, summary
from runtime.bench.soak import alike, foreign, soak
from runtime.cli import main
from runtime.port import FrameOut
from tests.serve.fake_engine import FakeEngine
from tests.serve.harness import Running, run, serving, sha

RATE = 24_000


def tone(seconds: float) -> np.ndarray:
    return np.sin(np.arange(round(seconds * RATE)) * 0.2).astype(np.float32)


def silence(seconds: float) -> np.ndarray:
    return np.zeros(round(seconds * RATE), np.float32)


def take(*chunks: tuple[float, np.ndarray], due: float = 10.0) -> Take:
    return Take(due=due, began=due, chunks=list(chunks))


def test_leading_silence_counts_as_waiting() -> None:
    quick = heard(take((10.1, tone(0.5))))
    padded = heard(take((10.1, np.concatenate([silence(0.3), tone(0.5)]))))
    assert quick and padded
    assert quick.first_byte_s == padded.first_byte_s == pytest.approx(0.1)
    assert quick.first_sound_s == pytest.approx(0.1, abs=0.01)
    assert padded.first_sound_s == pytest.approx(0.4, abs=0.01)


def test_a_voiced_sample_is_not_heard_before_its_chunk_arrives() -> None:
    result = heard(take((10.1, silence(0.1)), (10.9, tone(0.5))))
    assert result and result.first_sound_s == pytest.approx(0.9, abs=0.01)


def test_a_run_without_audible_sound_is_a_failed_run() -> None:
    silent = take((10.1, silence(1.0)))
    assert heard(silent) is None and heard(take()) is None
    assert summary([silent])["errors"] == {"silent": 1}


def test_waiting_starts_when_the_call_was_due_not_when_it_was_sent() -> None:
    late = take((11.0, tone(0.5)))
    late.began = 10.9
    result = heard(late)
    assert result and result.first_sound_s == pytest.approx(1.0, abs=0.01)
    assert result.late_start_s == pytest.approx(0.9)


def test_underruns_are_what_a_player_that_starts_at_once_would_miss() -> None:
    assert playout(take((10.0, tone(0.08)), (10.05, tone(0.08)), (10.15, tone(0.08)))) == (0, 0.0)
    count, missing = playout(take((10.0, tone(0.08)), (10.5, tone(0.08))))
    assert count == 1 and missing == pytest.approx(0.42)


def test_the_summary_has_all_its_figures_and_the_same_keys_for_nothing() -> None:
    full = summary([take((10.1 + n / 100, tone(0.5))) for n in range(10)])
    assert set(full) == set(summary([]))
    nothing = summary([])["first_sound_ms"]
    assert isinstance(nothing, dict) and set(nothing.values()) == {None}, "nothing measured is no time of 0 ms"
    spread = full["first_sound_ms"]
    assert isinstance(spread, dict)
    assert spread["p50"] == pytest.approx(145, abs=6) and spread["iqr"] == pytest.approx(45, abs=1)


def test_the_same_seed_gives_the_same_load() -> None:
    assert calls(20, rate=2.0, seed=5) == calls(20, rate=2.0, seed=5) != calls(20, rate=2.0, seed=6)
    mean = calls(2000, rate=2.0, seed=1)[-1].due_s / 2000
    assert mean == pytest.approx(0.5, rel=0.1)


def test_longer_texts_are_made_of_the_same_prompts() -> None:
    made = longer(PROMPTS, 40)
    assert all(len(t.split()) >= 40 and t.startswith(p) for t, p in zip(made, PROMPTS, strict=True))
    assert longer(PROMPTS, 0) == PROMPTS


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(PROMPTS), st.integers(0, 99), st.floats(1, 100))
def test_text_in_pieces_is_the_same_text(text: str, seed: int, tokens_per_s: float) -> None:
    cut = pieces(text, tokens_per_s, seed)
    assert "".join(p for _, p in cut) == text
    assert " ".join(p for _, p in words(cut)) == text
    assert [t for t, _ in cut] == sorted(t for t, _ in cut)


def target(at: Running, **more: object) -> Target:
    usual = {"protocol": "gradium", "key": "k", "voice": "", "warm": True, "tokens_per_s": 0.0}
    return Target(at.url, **(usual | more))  # type: ignore[arg-type]


@pytest.mark.parametrize("protocol", ["gradium", "openai", "native"])
@pytest.mark.parametrize("warm", [True, False])
def test_a_call_is_measured_over_each_protocol(protocol: str, warm: bool) -> None:
    async def test() -> None:
        async with serving() as at:
            now = time.monotonic()
            taken = await speak(at.http, target(at, protocol=protocol, warm=warm), Call(0.0, PROMPTS[0], 1), now)
            assert not taken.error
            result = heard(taken)
            assert result and result.audio_s > 0.5 and 0 < result.first_sound_s < 10

    run(test)


@pytest.mark.parametrize("protocol", ["gradium", "native"])
def test_the_sound_is_asked_for_at_the_rate_that_was_named(protocol: str) -> None:
    async def test() -> None:
        async with serving() as at:
            now, call = time.monotonic(), Call(0.0, PROMPTS[0], 1)
            for rate in (24_000, 48_000):
                asked = target(at, protocol=protocol, audio_format=f"pcm_{rate}")
                taken = await speak(at.http, asked, call, now)
                result = heard(taken)
                assert taken.rate == rate and result and 0.5 < result.audio_s < 10

    run(test)


def test_text_as_an_llm_sends_it_is_spoken_whole() -> None:
    async def test() -> None:
        async with serving() as at:
            now = time.monotonic()
            taken = await speak(at.http, target(at, tokens_per_s=200.0), Call(0.0, PROMPTS[0], 1), now)
            whole = await speak(at.http, target(at), Call(0.0, PROMPTS[0], 1), now)
            assert sum(len(p) for _, p in taken.chunks) == sum(len(p) for _, p in whole.chunks)

    run(test)


@pytest.mark.parametrize("protocol", ["gradium", "openai", "native"])
def test_a_refusal_is_told_by_its_own_word(protocol: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text(f"keys:\n- name: a\n  sha256: {sha('k')}\n")

    async def test() -> None:
        async with serving(FakeEngine(lanes=1), keys=str(keys)) as at:
            ws = await at.http.ws_connect(f"{at.ws_url}/api/speech/tts", headers={"x-api-key": "k"})
            await ws.send_str('{"type":"setup"}')
            await ws.receive()
            now = time.monotonic()
            taken = await speak(at.http, target(at, protocol=protocol), Call(0.0, PROMPTS[0], 1), now)
            assert taken.error == "at_capacity"
            taken = await speak(at.http, target(at, protocol=protocol, key="no"), Call(0.0, PROMPTS[0], 1), now)
            assert taken.error in {"connection", "unauthorized"}

    run(test)


def test_a_server_that_is_not_there_is_an_error_and_not_a_crash() -> None:
    async def test() -> None:
        async with aiohttp.ClientSession() as http:
            nobody = Target("http://127.0.0.1:9", "gradium", "k", "", True, 0.0)
            taken = await speak(http, nobody, Call(0.0, PROMPTS[0], 1), 0.0)
            assert taken.error == "connection"

    run(test)


def quiet(words: str) -> None:
    """Takes the progress words of a soak."""


class Leaky(FakeEngine):
    """Now and then gives one stream the frame of another, past or present: the fault that a soak must find."""

    def __init__(self, lanes: int) -> None:
        super().__init__(lanes=lanes)
        self._seeds: list[int] = []  # Of the streams so far, the newest last.
        self._frames = 0  # Of all streams together: a leak that came at the same step each time would pass for right.

    def _advance(self, lane: int) -> FrameOut:
        frame, mine = super()._advance(lane), self.held[lane].spec.seed
        others = [seed for seed in self._seeds if seed != mine]
        self._seeds = [*others, mine]
        self._frames += 1
        if frame.pcm is not None and others and self._frames % 7 == 0:
            frame.pcm[:] = self._pcm(others[-1], 0)
        return frame


def test_a_fork_by_rounding_is_told_from_the_sound_of_another() -> None:
    rng = np.random.default_rng(3)
    mine, other, new = (rng.integers(-9000, 9000, 40_000).astype("<i2") for _ in range(3))

    def after(start: np.ndarray, rest: np.ndarray) -> bytes:
        return np.concatenate([start[:20_000], rest]).astype("<i2").tobytes()

    own, others = mine.tobytes(), [other.tobytes()]
    assert alike(own, (mine + 3).astype("<i2").tobytes()) and not alike(own, own[:-2])
    assert not foreign(after(mine, new[20_000:]), own, others), "a sound that nobody else has: a fork"
    assert foreign(after(mine, other[7_001:27_001]), own, others), "another's sound"
    assert foreign(after(mine, mine[5_000:25_000]), own, others), "its own sound from another place"


def test_a_soak_passes_on_a_good_server_and_finds_wrong_sound_on_a_bad_one() -> None:
    async def test() -> None:
        for engine, good, minutes in ((FakeEngine(lanes=4), True, 0.3), (Leaky(lanes=4), False, 1.0)):
            async with serving(engine, stall_s=30.0) as at:
                facts = await soak(target(at), minutes=minutes, streams=6, seed=3, say=quiet)
                assert facts["passed"] is good, facts
                assert facts["lanes_leaked"] == 0
                outcomes = facts["outcomes"]
                assert isinstance(outcomes, dict) and "garbage:closed_without_a_word" not in outcomes

    uvloop.run(test())  # the loop that the command uses: its sockets differ from asyncio's


def test_a_server_that_goes_leaves_the_figures_of_what_was_heard() -> None:
    async def test() -> None:
        async with serving() as at:
            args = argparse.Namespace(what="load", rate=20.0, words=0, count=30, seed=1)
            run_of_it = asyncio.create_task(measure(args, target(at)))
            while not await at.metric("tts_streams_total", protocol="gradium", outcome="done"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await at.server.stop()
            facts = await run_of_it
            assert facts["n"] == 30 and 0 < facts["heard"] < 30 and facts["errors"]["connection"]  # type: ignore
            assert facts["server_answers"] is False and exit_code(facts) == 1

    run(test)


def test_a_server_that_goes_ends_a_soak_with_its_counts() -> None:
    async def test() -> None:
        async with serving() as at:
            soaking = asyncio.create_task(soak(target(at), minutes=0.2, streams=2, seed=3, say=quiet))
            while not await at.metric("tts_streams_total", protocol="gradium", outcome="done"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await at.server.stop()
            facts = await soaking
            assert facts["acts"] and facts["server_answers"] is False and exit_code(facts) == 1

    uvloop.run(test())


@pytest.mark.parametrize(
    ("errors", "code"), [({}, 0), ({"at_capacity": 3}, 0), ({"closed": 1}, 1), ({"timeout": 1, "silent": 1}, 1)]
)
def test_refusals_are_answers_and_lost_calls_are_not(errors: dict[str, int], code: int) -> None:
    assert exit_code({"heard": 5, "errors": errors, "server_answers": True}) == code
    assert exit_code({"heard": 5, "errors": errors, "server_answers": False}) == 1
    assert exit_code({"heard": 0, "errors": errors, "server_answers": True}) == 1


@pytest.mark.parametrize(
    "wrong",
    ["--url nonsense", "--url localhost:18089", "--url http://", "--url http://a:b", "--url http://a:99999999",
     "--url ftp://a", "--url ws://a", "--rate 0", "--rate nan", "--rate -1", "--count 0", "--pause-s 0", "--words -1",
     "--minutes inf", "--tokens-per-s -1", "--streams 0", "--format mp3", "--format pcm_24000 --protocol openai"],
)  # fmt: skip
@pytest.mark.parametrize("what", ["ttfa", "load", "soak"])
def test_what_cannot_be_meant_is_a_usage_line(what: str, wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", what, *wrong.split()]) == 2
    assert wrong.split()[0] in capsys.readouterr().err
