"""What the documents say is what the server does: each request that openapi.yaml describes is made, right and wrong.

The documented examples come from the schemas themselves: every enumerated value, both ends of every bound, and for
each field a value of the wrong type. Nothing may answer 500, nor with a status that the document does not name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import ormsgpack
import pytest
import yaml

from runtime.serve.gradium import GradiumWire
from runtime.serve.moshi import MoshiWire
from runtime.serve.native import NativeWire
from runtime.serve.wire import CLOSE_CODES, Audio, Done, Failed, Pong, Ready, Wire, Word
from tests.serve.document_shapes import ASYNCAPI, OPENAPI, RESPONSE, SCHEMA
from tests.serve.harness import Running, run, served, serving

ROOT = Path(__file__).parents[2]
DOCUMENT = yaml.safe_load((ROOT / "runtime/serve/openapi.yaml").read_text(encoding="utf-8"))
ASYNC = yaml.safe_load((ROOT / "runtime/serve/asyncapi.yaml").read_text(encoding="utf-8"))
# What a schema cannot say: names that exist, and a text of some words.
KNOWN = {"text": "one two three", "input": "one two three", "voice": "anna", "mix": "anna:0.7+ben:0.3"}
NOT_STRINGS = (7, ["x"])
OUT = (
    Ready("a", 1, "q", 24_000, "audio/pcm", "anna"), Audio("a", 1, b"\0" * 8, 0, 1), Word("a", 1, "x", 0, 1),
    Done("a", 1, 1.0), Done("a", 1, 1.0, True), Failed("a", "internal", "x", 1.0), Pong("t"),
)  # fmt: skip


@pytest.mark.parametrize(("document", "shape"), [(DOCUMENT, OPENAPI), (ASYNC, ASYNCAPI)], ids=["openapi", "asyncapi"])
def test_a_document_says_only_what_its_standard_knows(document: dict[str, Any], shape: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(shape)
    errors = list(jsonschema.Draft202012Validator(shape).iter_errors(document))
    assert not errors, [f"{'/'.join(map(str, e.absolute_path))}: {e.message[:200]}" for e in errors]
    for ref in re.findall(r"'\$ref': '(#[^']*)'", str(document)):
        found: Any = document
        for part in ref.removeprefix("#/").split("/"):
            found = found[part]


def test_a_description_that_a_comma_splits_is_found() -> None:
    split = yaml.safe_load("{description: Requests, characters and seconds}")
    shape = {"$defs": {"schema": SCHEMA}, **RESPONSE}
    assert list(jsonschema.Draft202012Validator(shape).iter_errors(split))


@pytest.mark.parametrize(("channel", "wire"), [("gradium", GradiumWire()), ("moshi", MoshiWire()),
                                                ("moshi", MoshiWire("opus"))])  # fmt: skip
def test_every_message_of_the_other_protocols_is_documented(channel: str, wire: Wire) -> None:
    payloads = [m["payload"] for m in ASYNC["channels"][channel]["messages"].values()]
    for out in OUT:
        frame = wire.render(out)
        if frame is None:
            continue
        fields = json.loads(frame) if isinstance(frame, str) else ormsgpack.unpackb(frame)
        fit = [
            p for p in payloads if p.get("properties", {}).get("type", {}).get("const") == fields["type"]
            and set(p["required"]) <= set(fields) <= set(p["properties"])
        ]  # fmt: skip
        assert fit, fields


@pytest.mark.parametrize(("channel", "wire"), [("gradium", GradiumWire()), ("native", NativeWire()),
                                                ("moshi", MoshiWire())])  # fmt: skip
def test_every_message_that_is_documented_is_taken(channel: str, wire: Wire) -> None:
    for ref in ASYNC["operations"][f"{channel}_say"]["messages"]:
        name = ref["$ref"].rpartition("/")[2]
        payload = ASYNC["channels"][channel]["messages"][name]["payload"]
        if payload["type"] != "object":
            continue
        message = {k: payload["properties"][k].get("const", "words") for k in payload["required"]}
        assert wire.parse(ormsgpack.packb(message) if channel == "moshi" else json.dumps(message)), name


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        found: Any = DOCUMENT
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        schema = found
    return schema


def right(name: str, schema: dict[str, Any]) -> Iterator[Any]:
    """Values that the schema allows."""
    schema = resolved(schema)
    if name in KNOWN:
        yield KNOWN[name]
    elif "enum" in schema:
        yield from schema["enum"]
    elif schema.get("type") in ("number", "integer"):
        yield from {schema.get("minimum", 0), schema.get("maximum", 1)}
    elif schema.get("type") == "boolean":
        yield from (True, False)
    elif schema.get("type") == "array":
        yield [dict.fromkeys(resolved(schema["items"]).get("required", ()), "word")]


def wrong(schema: dict[str, Any]) -> Iterator[Any]:
    """Values that it does not allow."""
    schema = resolved(schema)
    kind = schema.get("type")
    if "enum" in schema:
        yield "vinyl"
    elif kind == "string":
        yield from NOT_STRINGS
    elif kind in ("number", "integer"):
        yield "seven"
        yield from (schema[end] + sign for end, sign in (("minimum", -1), ("maximum", 1)) if end in schema)
    elif kind == "boolean":
        yield "yes"
    elif kind == "array":
        yield from ("x", [])


def bodies(schema: dict[str, Any]) -> Iterator[tuple[dict[str, Any], bool]]:
    """Bodies and whether they are right: all that is required, and one field more or one field wrong at a time."""
    schema = resolved(schema)
    fields: dict[str, Any] = schema["properties"]
    base = {name: next(right(name, fields[name])) for name in fields if name in schema.get("required", ())}
    base |= {"text": KNOWN["text"]} if "text" in fields else {}
    yield base, True
    for name in schema.get("required", ()):
        yield {k: v for k, v in base.items() if k != name}, False
    for name, field in fields.items():
        yield from ((base | {name: value}, True) for value in right(name, field))
        yield from ((base | {name: value}, False) for value in wrong(field))


def operations() -> list[tuple[str, str]]:
    found = []
    for path, item in DOCUMENT["paths"].items():
        for method, operation in item.items():
            content = operation.get("requestBody", {}).get("content", {}) if method != "parameters" else {}
            if "application/json" in content:
                found.append((method, path))
    return found


async def status_of(at: Running, method: str, path: str, body: object) -> tuple[int, str]:
    async with at.http.request(method, at.url + path, json=body) as reply:
        return reply.status, (await reply.read()).decode("utf-8", "replace")[:500]


@pytest.mark.parametrize(("method", "path"), operations())
def test_every_documented_body_is_taken_and_every_other_refused_as_documented(method: str, path: str) -> None:
    operation = DOCUMENT["paths"][path][method]
    answers = operation["responses"]
    good = {int(code) for code in answers if code.isdigit() and code.startswith("2")}

    async def test() -> None:
        async with serving() as at:
            for body, is_right in bodies(operation["requestBody"]["content"]["application/json"]["schema"]):
                status, said = await status_of(at, method, path, body)
                if is_right:
                    assert status in good, (body, status, said)
                    continue
                assert 400 <= status < 500 or (status == 500 and "500" in answers), (body, status, said)
                if "default" in answers:
                    error = json.loads(said)
                    assert "error" in error or {"detail", "code"} <= set(error), said

    run(test)


@served()
async def test_every_documented_get_answers_as_documented(at: Running) -> None:
    for path, item in DOCUMENT["paths"].items():
        if "get" in item and "{uid}" not in path:
            status, said = await status_of(at, "get", path, None)
            assert str(status) in item["get"]["responses"], (path, status, said)


def test_our_sockets_messages_are_taken_as_the_asyncapi_document_describes_them() -> None:
    async def test() -> None:
        messages = ASYNC["channels"]["native"]["messages"]
        async with serving() as at:
            ws = await at.http.ws_connect(f"{at.ws_url}/v1/tts")
            await ws.send_str(json.dumps({"type": "start", "id": "a"}))
            for kind in ("text", "flush", "ping", "cancel"):
                required = messages[kind]["payload"].get("required", [])
                message = {"type": kind, "id": "a", "text": "one two", "mark": 1, "token": "t"}
                sent = {k: v for k, v in message.items() if k in required or k in ("type", "id", "text")}
                await ws.send_str(json.dumps(sent))
            seen = set()
            while "done" not in seen:
                frame = await ws.receive()
                seen.add("audio" if isinstance(frame.data, bytes) else json.loads(frame.data)["type"])
            assert "error" not in seen and seen <= set(messages), seen

    run(test)


def test_the_metrics_listed_are_those_emitted() -> None:
    listed = set(re.findall(r"^\| `(tts_\w+)`", (ROOT / "README.md").read_text(encoding="utf-8"), re.M))

    async def test() -> None:
        async with serving() as at:
            async with at.http.post(at.url + "/v1/tts", json={"text": "one two three"}) as reply:
                await reply.read()
            async with at.http.get(at.url + "/metrics") as reply:
                page = await reply.text()
        emitted = {name for name in re.findall(r"^# TYPE (tts_\S+)", page, re.M) if not name.endswith("_created")}
        assert {n.removesuffix("_total") for n in emitted} == {n.removesuffix("_total") for n in listed}

    run(test)


def test_every_word_for_a_failure_is_documented_with_its_close_code() -> None:
    said = (ROOT / "runtime/serve/asyncapi.yaml").read_text(encoding="utf-8")
    assert not [word for word in CLOSE_CODES if word not in said]
