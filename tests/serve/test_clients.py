"""The public client packages, unmodified, against the server by base URL alone; skipped by name where not installed.

`gradium`, `openai` and LiveKit's plugin are in the dev extra; `pipecat-ai` is run where it is found.
"""

from __future__ import annotations

import asyncio
import io
import os
import wave
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from runtime.audio import encoder
from tests.serve.fake_engine import FakeEngine
from tests.serve.harness import Running, heard, only, run, served, serving

gradium = pytest.importorskip("gradium", reason="the gradium package is not installed (pip install -e '.[dev]')")
openai = pytest.importorskip("openai", reason="the openai package is not installed (pip install -e '.[dev]')")

TEXT = "one two three four five"
PCM = {"voice_id": "anna", "output_format": "pcm_24000", "json_config": {"seed": 21}}


def client(at: Running) -> gradium.GradiumClient:
    return gradium.GradiumClient(base_url=f"{at.url}/api/", api_key="k")


@served()
async def test_gradium_speaks_a_text_whole(at: Running) -> None:
    result = await client(at).tts(setup=dict(PCM), text=TEXT)
    assert result.sample_rate == 24_000 and result.request_id
    assert heard(result.raw_data) == only(21)
    assert [t.text for t in result.text_with_timestamps] == TEXT.split()
    assert all(t.start_s < t.stop_s for t in result.text_with_timestamps)


@served()
async def test_gradium_reads_a_wav_whose_header_it_can_open(at: Running) -> None:
    result = await client(at).tts(setup={"voice_id": "anna"}, text=TEXT)
    with wave.open(io.BytesIO(result.raw_data)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (48_000, 1, 2)


def test_gradium_streams_words_as_they_are_yielded_with_a_flush_among_them() -> None:
    async def words() -> AsyncIterator[str]:
        for word in ["hello", "there", "<flush>", "bye"]:
            yield word
            await asyncio.sleep(0)

    async def test() -> None:
        async with serving() as at:
            stream = await client(at).tts_stream(setup=dict(PCM), text=words())
            audio = b"".join([chunk async for chunk in stream.iter_bytes()])
            assert heard(audio) == only(21)
            assert [t.text for t in stream._text_with_timestamps] == ["hello", "there", "bye"]

    run(test)


@served()
async def test_gradium_gets_an_empty_result_for_an_empty_text(at: Running) -> None:
    for text in ("", "🙂"):
        assert (await client(at).tts(setup=dict(PCM), text=text)).raw_data == b""


def test_gradium_raises_instead_of_giving_a_short_result() -> None:
    """A close without an error message would be a short result to this client: here it never is."""

    async def test() -> None:
        async with serving(FakeEngine(lanes=1, fail_seed=13)) as at:
            with pytest.raises(Exception, match=r"the model failed: .*\(1011\)"):
                await client(at).tts(setup=PCM | {"json_config": {"seed": 13}}, text=TEXT)
            with pytest.raises(Exception, match="there are: anna, ben"):
                await client(at).tts(setup=PCM | {"voice_id": "nobody"}, text=TEXT)
            async with client(at).tts_realtime(**PCM, wait_for_ready_on_start=True):
                with pytest.raises(Exception, match="at capacity"):
                    await client(at).tts(setup=dict(PCM), text=TEXT)

    run(test)


@served()
async def test_gradium_multiplexes_in_real_time(at: Running) -> None:
    setup = PCM | {"client_req_id": "a", "close_ws_on_eos": False}
    async with client(at).tts_realtime(**setup, wait_for_ready_on_start=True) as tts:
        await tts.send_setup(setup | {"client_req_id": "b", "json_config": {"seed": 22}})
        for req_id in ("a", "b"):
            await tts.send_text(TEXT, req_id)
            await tts.send_eos(req_id)
        sound: dict[str, bytes] = {"a": b"", "b": b""}
        ends = 0
        while ends < 2:
            message = await tts.recv()
            ends += message["type"] == "end_of_stream"
            if message["type"] == "audio":
                sound[message["client_req_id"]] += message["audio"]
        assert heard(sound["a"]) == only(21) and heard(sound["b"]) == only(22)


@served()
async def test_gradium_manages_voices_and_reads_its_usage(at: Running) -> None:
    it = client(at)
    assert {v["uid"] for v in await it.voice_list()} == {"anna", "ben"}
    made = await it.post("voices/", json={"name": "duo", "mix": "anna:0.5+ben:0.5"})
    assert (await it.voice_get(made["uid"]))["name"] == "duo"
    updated = await it.voice_update(made["uid"], name="trio")
    assert updated["name"] == "trio"
    assert (await it.tts(setup=PCM | {"voice_id": made["uid"]}, text=TEXT)).raw_data
    await it.voice_delete(made["uid"])
    assert len(await it.voice_list()) == 2
    assert (await it.credits())["unlimited"] is True
    assert (await it.usage_summary())["tts"]["characters"] == len(TEXT) + 1
    with pytest.raises(Exception, match="cannot be designed"):
        await it.voice_generate("a deep voice", language="en")


def clip_of(directory: Path, seconds: float = 1.0) -> Path:
    made = encoder("wav")
    data = made.encode(np.full(round(seconds * 24_000), 0.1, np.float32)) + made.finish()
    path = directory / "Grandma.wav"
    path.write_bytes(data)
    return path


def test_gradium_clones_a_voice_and_speaks_with_it(tmp_path: Path) -> None:
    async def test() -> None:
        engine = FakeEngine(can_clone=True)
        async with serving(engine, state=str(tmp_path / "state.json")) as at:
            it = client(at)
            made = await it.voice_create(clip_of(tmp_path), language="en", name="Grandma", start_s=0.25)
            assert engine.clones == {made["uid"]: pytest.approx(0.75)}
            shown = await it.voice_get(made["uid"])
            assert (shown["name"], shown["filename"], shown["is_catalog"]) == ("Grandma", "Grandma.wav", False)
            for name in (made["uid"], "Grandma"):
                assert (await it.tts(setup=PCM | {"voice_id": name}, text=TEXT)).raw_data
        again = FakeEngine(can_clone=True)
        async with serving(again, state=str(tmp_path / "state.json")) as at:
            assert again.clones == {made["uid"]: pytest.approx(0.75)}, "the clip is kept and encoded at the next start"
            await client(at).voice_delete(made["uid"])
            assert not again.clones

    run(test)
    assert not list(tmp_path.glob("state.json.*")), "its clip is gone too"


@served()
async def test_gradium_hears_why_a_voice_cannot_be_cloned(at: Running, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="cannot be cloned here: this engine is a fake"):
        await client(at).voice_create(clip_of(tmp_path), language="en")
    (tmp_path / "bad.wav").write_bytes(b"<html>")
    with pytest.raises(Exception, match="cannot read the clip"):
        await client(at).voice_create(tmp_path / "bad.wav", language="en")
    assert len(await client(at).voice_list()) == 2


@served()
async def test_gradiums_rewrite_rules_and_pronunciations_are_applied_to_what_is_said(at: Running) -> None:
    it = client(at)
    made = await it.post(
        "pronunciations/", json={"name": "p", "rules": [{"original": "SQL", "rewrite": "sequel one two"}]}
    )
    said = {
        what: await it.tts(setup=PCM | setup, text="SQL $5.50")
        for what, setup in {
            "plain": {},
            "rules": {"json_config": {"rewrite_rules": "en"}},
            "both": {"json_config": {"rewrite_rules": "en"}, "pronunciation_id": made["uid"]},
        }.items()
    }
    shown = [[word.text for word in result.text_with_timestamps] for result in said.values()]
    assert shown == [["SQL", "$5.50"]] * 3, "words are told as they were written"
    length = {what: len(result.raw_data) for what, result in said.items()}
    assert length["plain"] < length["rules"] < length["both"], "what is read out is longer"
    with pytest.raises(Exception, match="max_padding_per_token is not known here"):
        await it.tts(setup=PCM | {"json_config": {"max_padding_per_token": 2}}, text="x")


def ask(at: Running) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{at.url}/v1", api_key="k", max_retries=0)


def test_openai_streams_every_format() -> None:
    magic = {"mp3": (b"\xff", b"ID3"), "opus": (b"OggS",), "aac": (b"\xff\xf1",), "flac": (b"fLaC",), "wav": (b"RIFF",)}

    async def test() -> None:
        async with serving() as at, ask(at) as it:
            for name, starts in magic.items():
                reply = await it.audio.speech.create(model="tts-1", voice="alloy", input=TEXT, response_format=name)
                assert reply.content.startswith(starts), name
            reply = await it.audio.speech.create(model="tts-1", voice="nova", input=TEXT, response_format="pcm")
            assert len(reply.content) % 2 == 0 and len(reply.content) > 24_000
            assert "audio/pcm" in reply.response.headers["content-type"]

    run(test)


def test_openai_reads_sse_events_to_the_usage() -> None:
    async def test() -> None:
        async with serving() as at, ask(at) as it:
            create = it.audio.speech.with_streaming_response.create
            async with create(
                model="gpt-4o-mini-tts", voice="coral", input=TEXT, response_format="pcm", stream_format="sse"
            ) as reply:
                assert reply.headers["content-type"].startswith("text/event-stream")
                lines = [line async for line in reply.iter_lines() if line]
            assert "speech.audio.delta" in lines[0] and "speech.audio.done" in lines[-1]

    run(test)


def test_openai_sees_the_cause_of_each_refusal() -> None:
    async def test() -> None:
        async with serving(FakeEngine(lanes=1)) as at, ask(at) as it:
            with pytest.raises(openai.BadRequestError, match="anna, ben"):
                await it.audio.speech.create(model="tts-1", voice="nobody", input=TEXT)
            with pytest.raises(openai.APIStatusError, match="4096"):
                await it.audio.speech.create(model="tts-1", voice="alloy", input="x" * 5000)
            async with client(at).tts_realtime(**PCM, wait_for_ready_on_start=True):
                with pytest.raises(openai.InternalServerError, match="at capacity") as refused:
                    await it.audio.speech.create(model="tts-1", voice="alloy", input=TEXT)
                assert refused.value.status_code == 503 and refused.value.response.headers["retry-after"]

    run(test)


def test_livekit_streams_and_synthesises() -> None:
    plugin = pytest.importorskip("livekit.plugins.gradium", reason="livekit-plugins-gradium is not installed")

    async def test() -> None:
        async with serving() as at:
            tts = plugin.TTS(
                api_key="k", model_endpoint=f"{at.ws_url}/api/speech/tts", voice_id="anna", http_session=at.http
            )
            stream = tts.stream()
            for piece in ["Hello ", "big ", "wor", "ld. ", "Bye."]:
                stream.push_text(piece)
            stream.end_input()
            streamed = sum([event.frame.samples_per_channel async for event in stream])
            assert 0.5 < streamed / 48_000 < 3
            whole = sum([event.frame.samples_per_channel async for event in tts.synthesize("one two three")])
            assert 0.3 < whole / 48_000 < 3
            await tts.aclose()

    run(test)


def test_livekits_own_default_voice_is_served() -> None:
    plugin = pytest.importorskip("livekit.plugins.gradium", reason="livekit-plugins-gradium is not installed")

    async def test() -> None:
        async with serving() as at:
            tts = plugin.TTS(api_key="k", model_endpoint=f"{at.ws_url}/api/speech/tts", http_session=at.http)
            assert [event async for event in tts.synthesize("one two three")]
            await tts.aclose()

    run(test)


@pytest.mark.slow
def test_pipecat_speaks_two_turns_on_one_socket() -> None:
    """In a process of its own: pipecat pins other versions. PIPECAT_PYTHON names a Python that has it."""
    python = os.environ.get("PIPECAT_PYTHON")
    if not python:
        pytest.skip("PIPECAT_PYTHON does not name a Python with pipecat-ai")

    async def test() -> None:
        async with serving() as at:
            process = await asyncio.create_subprocess_exec(
                python, str(Path(__file__).parent / "pipecat_client.py"), f"{at.ws_url}/api/speech/tts",
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            out, _ = await process.communicate()
            assert out.decode().splitlines()[-1] == "hello big world second one | 2"

    run(test)
