"""HTTP: probes, metrics, documents that match the code, plain speech, and failures that cannot be taken for success."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from typing import Any

import aiohttp
import pytest
import yaml

from runtime.config import ServeSettings
from runtime.port import Engine, StreamSpec, TextFeed
from runtime.serve.app import Server
from runtime.serve.native import NativeWire
from runtime.serve.wire import Audio, Done, Failed, FlushedOut, PausedOut, Pong, Ready, Word
from tests.serve.fake_engine import FakeEngine
from tests.serve.harness import Running, heard, only, run, served, serving

TEXT = "one two three four five"


async def get(at: Running, path: str) -> tuple[int, str]:
    async with at.http.get(at.url + path) as reply:
        return reply.status, await reply.text()


def test_readiness_comes_only_after_every_shape_of_step_was_run() -> None:
    async def test() -> None:
        engine = FakeEngine(lanes=6)
        async with serving(engine) as at:
            sizes = {(len(lanes), lead) for lanes, lead in engine.steps}
            assert sizes == {(n, lead) for n in (1, 2, 4, 6) for lead in (True, False)}
            assert (await get(at, "/readyz"))[0] == 200 and not engine.held

    run(test)


def test_before_it_is_warm_it_answers_probes_and_refuses_callers_with_a_hint() -> None:
    async def test() -> None:
        loaded = asyncio.Event()
        loop = asyncio.get_running_loop()

        def slow() -> Engine:
            asyncio.run_coroutine_threadsafe(loaded.wait(), loop).result()
            return FakeEngine()

        server = Server(ServeSettings(port=0, keyless=True), slow)
        await server.start()
        async with aiohttp.ClientSession() as http:
            at = Running(server, FakeEngine(), http)
            assert (await get(at, "/livez"))[0] == 200 and (await get(at, "/readyz"))[0] == 503
            async with http.post(at.url + "/v1/tts", json={"text": TEXT}) as reply:
                assert reply.status == 503 and reply.headers["Retry-After"]
                assert (await reply.json())["error"]["code"] == "warming"
            loaded.set()
            await server.warm()
            assert (await get(at, "/readyz"))[0] == 200
        await server.stop()

    run(test)


def test_a_model_that_cannot_load_ends_the_start_with_its_reason() -> None:
    async def test() -> None:
        def broken() -> Engine:
            raise RuntimeError("tensor x is missing")

        server = Server(ServeSettings(port=0, keyless=True), broken)
        await server.start()
        with pytest.raises(RuntimeError, match="tensor x"):
            await server.warm()
        await server.stop()

    run(test)


@served()
async def test_plain_speech_is_the_streams_own_in_every_shape(at: Running) -> None:
    async with at.http.post(at.url + "/v1/tts", json={"text": TEXT, "seed": 31}) as reply:
        assert reply.status == 200 and reply.headers["X-Sample-Rate"] == "24000"
        raw = await reply.read()
        assert heard(raw) == only(31)
    async with at.http.post(at.url + "/v1/tts", json={"text": TEXT, "seed": 31, "timestamps": True}) as reply:
        lines: list[dict[str, Any]] = [json.loads(line) for line in (await reply.text()).splitlines()]
    assert lines[0]["type"] == "ready" and lines[-1]["type"] == "end_of_stream"
    assert b"".join(base64.b64decode(m["audio"]) for m in lines if m["type"] == "audio") == raw
    assert [m["text"] for m in lines if m["type"] == "text"] == TEXT.split()


@served()
async def test_gradiums_post_gives_raw_audio_or_lines_and_its_own_kind_of_failure(at: Running) -> None:
    path, body = at.url + "/api/post/speech/tts", {"text": TEXT, "voice_id": "anna"}
    async with at.http.post(path, json=body | {"only_audio": True}) as reply:
        assert reply.content_type == "audio/wav" and (await reply.read()).startswith(b"RIFF")
    async with at.http.post(path, json=body) as reply:
        assert json.loads((await reply.text()).splitlines()[-1])["type"] == "end_of_stream"
    async with at.http.post(path, json=body | {"voice_id": "nobody"}) as reply:
        assert reply.status == 500 and (await reply.text()).startswith("error from server 1003: unknown voice")


@served()
async def test_an_empty_text_is_a_valid_empty_answer_in_every_format(at: Running) -> None:
    for name in ("wav", "mp3", "opus", "flac", "aac", "pcm"):
        body = {"input": "🙂", "response_format": name}
        async with at.http.post(at.url + "/v1/audio/speech", json=body) as reply:
            assert reply.status == 200, name
            await reply.read()


def test_a_failure_in_the_middle_cuts_the_answer_instead_of_ending_it() -> None:
    class Breaking(FakeEngine):
        def step(self, lanes: Any, *, lead: bool = False) -> Any:
            if any(self.held[n].spec.seed == 13 and self.held[n].step > 9 for n in lanes):
                raise RuntimeError("planted fault")
            return super().step(lanes, lead=lead)

    async def test() -> None:
        async with serving(Breaking()) as at:
            async with at.http.post(at.url + "/v1/tts", json={"text": TEXT * 4, "seed": 13}) as reply:
                assert reply.status == 200
                with pytest.raises(aiohttp.ClientError):
                    await reply.read()
            await at.lanes_free()

    run(test)


def test_a_failure_before_the_first_sound_is_a_status() -> None:
    async def test() -> None:
        body = {"text": TEXT, "seed": 13}
        async with serving(FakeEngine(fail_seed=13)) as at, at.http.post(at.url + "/v1/tts", json=body) as reply:
            assert reply.status == 500 and (await reply.json())["error"]["code"] == "internal"

    run(test)


@served(ahead_http_s=0.5)
async def test_a_caller_that_hangs_up_frees_the_lane(at: Running) -> None:
    reply = await at.http.post(at.url + "/v1/tts", json={"text": TEXT * 50})
    await reply.content.readany()
    reply.close()
    await at.lanes_free()


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"text": 1}', b'{"text":"x","format":"vinyl"}'])
def test_a_body_that_cannot_be_meant_is_a_400_with_a_word(body: bytes) -> None:
    async def test() -> None:
        async with serving() as at, at.http.post(at.url + "/v1/tts", data=body) as reply:
            assert reply.status == 400 and (await reply.json())["error"]["message"]

    run(test)


def test_a_body_that_is_too_large_is_a_413() -> None:
    async def test() -> None:
        large = b"x" * 5000
        async with serving(message_bytes_max=2048) as at, at.http.post(at.url + "/v1/tts", data=large) as reply:
            assert reply.status == 413
            assert (await reply.json())["error"]["message"] == "the body is larger than 2048 bytes"

    run(test)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/tts", {}, "text"), ("/v1/tts", {"text": None}, "text"), ("/v1/tts", {"text": 1}, "text"),
        ("/v1/tts", {"text": "x", "cfg": 9}, "cfg"), ("/v1/tts", {"text": "x", "voice": "nobody"}, "voice"),
        ("/v1/audio/speech", {}, "input"), ("/v1/audio/speech", {"input": None}, "input"),
        ("/v1/audio/speech", {"input": "x" * 5000}, "input"),
        ("/v1/audio/speech", {"input": "x", "response_format": "vinyl"}, "response_format"),
        ("/v1/audio/speech", {"input": "x", "speed": 9}, "speed"), ("/v1/voices", {"name": "m1"}, "mix"),
        ("/api/post/speech/tts", {}, "text"), ("/api/post/speech/tts", {"text": None}, "text"),
        ("/api/tts_streaming", {"voice": "anna"}, "text"),
    ],
)  # fmt: skip
def test_a_field_that_is_missing_or_wrong_is_named(path: str, body: dict[str, object], param: str) -> None:
    async def test() -> None:
        async with serving() as at, at.http.post(at.url + path, json=body) as reply:
            said = await reply.text()
            if path == "/api/post/speech/tts":  # the public service's own spelling: 500 with the close code
                assert said.startswith(f"error from server 1003: {param} ")
            elif path.startswith("/api/"):
                assert param in json.loads(said)["detail"] and reply.status == 400
            else:
                assert json.loads(said)["error"]["param"] == param and reply.status < 500

    run(test)


class Faulty(FakeEngine):
    def text_feed(self, spec: StreamSpec) -> TextFeed:
        if spec.seed == 13:
            raise ZeroDivisionError(spec)
        return super().text_feed(spec)


@pytest.mark.parametrize(
    ("method", "path", "status", "headers"),
    [
        ("DELETE", "/v1/tts", 405, {}), ("PATCH", "/api/voices/", 405, {}), ("GET", "/v1/tts", 400, {}),
        ("GET", "/api/speech/tts", 400, {}), ("GET", "/nothing", 404, {}), ("GET", "/api/nothing", 404, {}),
        ("POST", "/v1/tts", 500, {}), ("POST", "/v1/audio/speech", 500, {}),
        ("POST", "/v1/tts", 400, {"Content-Encoding": "gzip"}),
    ],
)  # fmt: skip
def test_every_failure_is_an_error_of_the_protocol(
    method: str, path: str, status: int, headers: dict[str, str]
) -> None:
    async def test() -> None:
        body = b'{"text": "one", "input": "one", "seed": 13}' if method == "POST" else None
        async with serving(Faulty()) as at, at.http.request(
            method, at.url + path, data=body, headers=headers | {"Content-Type": "application/json"}
        ) as reply:
            error = await reply.json()  # raises for any other content type
            assert reply.status == status
            assert error["detail"] if path.startswith("/api/") else error["error"]["code"]
            assert (status == 405) == ("Allow" in reply.headers)

    run(test)


def test_a_conversation_that_fails_says_so_before_its_close() -> None:
    async def test() -> None:
        async with serving(Faulty()) as at, at.http.ws_connect(f"{at.ws_url}/v1/tts") as ws:
            await ws.send_str('{"type": "start", "seed": 13}')
            assert (await ws.receive_json())["code"] == "internal"
            assert (await ws.receive()).data == 1011
            assert at.server.hub.admission.active == 0

    run(test)


@served()
async def test_a_stream_whose_sound_cannot_be_coded_ends_with_a_word_and_leaves_its_neighbour(at: Running) -> None:
    async with at.http.ws_connect(f"{at.ws_url}/v1/tts") as ws:
        for name in ("bad", "good"):
            await ws.send_json({"type": "start", "id": name, "seed": 4})
            assert (await ws.receive_json())["type"] == "started"
        at.server.hub._streams[1]._encoder = None  # type: ignore[assignment]
        for name in ("bad", "good"):
            await ws.send_json({"type": "text", "id": name, "text": TEXT})
            await ws.send_json({"type": "end", "id": name})
        last: dict[str, str] = {}
        while len(last) < 2:
            message = await ws.receive()
            said = message.json() if message.type is aiohttp.WSMsgType.TEXT else {}
            if said.get("type") in ("error", "done"):
                last[said["id"]] = said.get("code", "done")
        assert last == {"bad": "internal", "good": "done"}


@served()
async def test_a_step_that_hangs_and_an_engine_that_died_make_livez_fail(at: Running) -> None:
    assert (await get(at, "/livez"))[0] == 200
    at.server._device.tally.step_began = 0.0
    assert (await get(at, "/livez"))[0] == 503


@served()
async def test_the_address_alone_says_what_this_is(at: Running) -> None:
    status, page = await get(at, "/")
    assert status == 200 and all(path in page for path in ("/openapi.yaml", "/asyncapi.yaml", "/metrics", "/v1/tts"))


@served()
async def test_metrics_follow_the_conventions_and_count_what_happened(at: Running) -> None:
    async with at.http.post(at.url + "/v1/tts", json={"text": TEXT}) as reply:
        await reply.read()
    status, page = await get(at, "/metrics")
    assert status == 200
    names = set(re.findall(r"^# TYPE (\S+)", page, re.M))
    assert {"tts_streams_capacity", "tts_first_sound_seconds", "process_resident_memory_bytes"} <= names
    assert 'tts_streams_total{outcome="done",protocol="native-http"} 1.0' in page
    assert await at.metric("tts_streams_active") == 0 and await at.metric("tts_first_sound_seconds_count") == 1


@served()
async def test_the_openapi_document_names_exactly_the_paths_there_are(at: Running) -> None:
    status, text = await get(at, "/openapi.yaml")
    assert status == 200
    documented = {
        (method.upper(), path)
        for path, item in yaml.safe_load(text)["paths"].items()
        for method in item
        if method != "parameters"
    }
    sockets = {"/api/speech/tts", "/api/tts_streaming", "/v1/tts"}
    real = set()
    for route in at.server._runner.app.router.routes():
        path = route.resource.canonical if route.resource else ""
        if route.method == "HEAD" or (route.method == "GET" and path in sockets):
            continue
        real.add((route.method, path + "/" if path in ("/api/voices", "/api/pronunciations") else path))
    assert documented == real


def test_the_asyncapi_document_describes_every_message_we_send() -> None:
    async def test() -> None:
        async with serving() as at:
            document = yaml.safe_load((await get(at, "/asyncapi.yaml"))[1])
        messages = document["channels"]["native"]["messages"]
        wire = NativeWire()
        for out in (
            Ready("a", 1, "q", 24_000, "audio/pcm", "anna"), Word("a", 1, "x", 0.0, 0.1), PausedOut("a"),
            FlushedOut("a", 1), Done("a", 1, 1.0), Failed("a", "internal", "x", 1.0), Pong("t"),
        ):  # fmt: skip
            fields = json.loads(wire.render(out))
            schema = messages[fields["type"]]["payload"]
            assert set(fields) <= set(schema["properties"]) and set(schema["required"]) <= set(fields)
        assert isinstance(wire.render(Audio("a", 1, b"", 0, 0)), bytes) and "audio" in messages

    run(test)


@served()
async def test_pronunciations_are_applied_to_what_is_said(at: Running) -> None:
    rules = {"name": "p", "rules": [{"original": "New York", "rewrite": "noo york"}]}
    async with at.http.post(at.url + "/api/pronunciations/", json=rules) as reply:
        assert reply.status == 201
        uid = (await reply.json())["uid"]
    body = {"text": "in New York now", "pronunciation": uid, "timestamps": True}
    async with at.http.post(at.url + "/v1/tts", json=body) as reply:
        lines = [json.loads(line) for line in (await reply.text()).splitlines()]
    assert [m["text"] for m in lines if m["type"] == "text"] == ["in", "New York", "now"], "shown as written"
    async with at.http.post(at.url + "/v1/tts", json={"text": "x", "pronunciation": "no"}) as reply:
        assert reply.status == 400
    async with at.http.delete(f"{at.url}/api/pronunciations/{uid}") as reply:
        assert reply.status == 204
    assert json.loads((await get(at, "/api/pronunciations/"))[1]) == []
