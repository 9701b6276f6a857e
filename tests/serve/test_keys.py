"""Keys: hashes in a file, the same door for every protocol, limits by key, keyless only on loopback."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.admission import Priority
from runtime.config import ServeSettings
from runtime.errors import Usage
from runtime.serve.app import Server
from runtime.serve.keys import Keyring, presented, read_keys
from tests.serve.fake_engine import FakeEngine
from tests.serve.harness import run, serving, sha

SECRET = "sk-a-long-random-key"


def key_file(tmp_path: Path, extra: str = "") -> Path:
    path = tmp_path / "keys.yaml"
    path.write_text(f"keys:\n- name: a\n  sha256: {sha(SECRET)}\n{extra}")
    return path


def test_a_key_file_is_read_with_its_limits(tmp_path: Path) -> None:
    (key,) = read_keys(key_file(tmp_path, "  streams_max: 2\n  starts_per_minute: 60\n  priority: high\n"))
    assert (key.limits.streams_max, key.limits.starts_per_minute, key.limits.priority) == (2, 60, Priority.HIGH)


@pytest.mark.parametrize(
    "text",
    ["", "keys: []", "keys: [1]", "keys:\n- name: a\n  sha256: abc", "keys:\n- sha256: " + "0" * 64,
     "keys:\n- {name: a, sha256: " + "0" * 64 + ", secret: x}", ":", "keys:\n- {name: a, sha256: " + "0" * 64
     + ", streams_max: -1}", "keys:\n- {name: a, sha256: " + "0" * 64 + ", priority: vip}"],
)  # fmt: skip
def test_a_broken_key_file_is_one_line_and_never_an_open_door(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(text)
    with pytest.raises(Usage, match=r"keys\.yaml"):
        read_keys(path)


def test_only_the_right_key_is_somebody(tmp_path: Path) -> None:
    ring = Keyring(read_keys(key_file(tmp_path)))
    assert ring.who(SECRET) and not any(map(ring.who, [None, "", SECRET + " ", SECRET.upper(), sha(SECRET)]))


def test_a_token_stands_in_for_the_key_until_it_expires_and_cannot_be_altered(tmp_path: Path) -> None:
    ring = Keyring(read_keys(key_file(tmp_path)))
    limits = ring.who(SECRET)
    assert limits
    token, expires = ring.token(limits, 1000.0)
    assert ring.by_token(token, 1001.0) == limits
    assert ring.by_token(token, expires + 1) is None
    assert ring.by_token("62" + token[2:], 1001.0) is None and ring.by_token("", 1001.0) is None
    for forged in ("é", token + "ü", token + "\ud800", f"{token.rpartition('.')[0]}.ß"):
        assert ring.by_token(forged, 1001.0) is None


def test_the_key_is_found_where_each_protocol_puts_it() -> None:
    for headers in ({"x-api-key": "k"}, {"kyutai-api-key": "k"}, {"authorization": "Bearer k"}):
        assert presented(headers) == "k"
    assert presented({"authorization": "Basic k"}) is None


@pytest.mark.parametrize("settings", [{}, {"keyless": True, "host": "0.0.0.0"}, {"keyless": True, "keys": "x"}])
def test_no_door_stands_open_by_accident(settings: dict[str, object]) -> None:
    with pytest.raises(Usage):
        Server(ServeSettings(**settings), FakeEngine)  # type: ignore[arg-type]


def test_every_path_but_the_probes_asks_for_a_key(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(keys=str(key_file(tmp_path)), metrics_open=False) as at:
            open_paths = {"/", "/livez", "/readyz", "/openapi.yaml", "/asyncapi.yaml"}
            for route in at.server._runner.app.router.routes():
                path = route.resource.canonical if route.resource else ""
                if route.method == "HEAD" or path in open_paths:
                    continue
                url = at.url + path.replace("{uid}", "x")
                async with at.http.request(route.method, url, json={}) as reply:
                    assert reply.status == 401, (route.method, path)
                async with at.http.request(route.method, url, json={}, headers={"x-api-key": SECRET}) as reply:
                    assert reply.status != 401, (route.method, path)

    run(test)


def test_a_token_opens_a_socket(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(keys=str(key_file(tmp_path))) as at:
            async with at.http.get(f"{at.url}/api/api-keys/token", headers={"x-api-key": SECRET}) as reply:
                token = (await reply.json())["token"]
            ws = await at.http.ws_connect(f"{at.ws_url}/api/speech/tts?token={token}")
            await ws.close()

    run(test)


def test_a_keys_own_limit_is_a_429_with_a_hint(tmp_path: Path) -> None:
    async def test() -> None:
        path = key_file(tmp_path, "  starts_per_minute: 1\n")
        async with serving(keys=str(path)) as at:
            headers = {"authorization": f"Bearer {SECRET}"}
            body = {"input": "", "response_format": "pcm"}
            async with at.http.post(f"{at.url}/v1/audio/speech", json=body, headers=headers) as reply:
                assert reply.status == 200
            async with at.http.post(f"{at.url}/v1/audio/speech", json=body, headers=headers) as reply:
                assert reply.status == 429 and int(reply.headers["Retry-After"]) > 0
                assert (await reply.json())["error"]["code"] == "key_rate"

    run(test)


def test_keys_are_read_again_without_a_restart(tmp_path: Path) -> None:
    async def test() -> None:
        path = key_file(tmp_path)
        async with serving(keys=str(path)) as at:
            path.write_text(f"keys:\n- name: b\n  sha256: {sha('other')}\n")
            at.server.reload_keys()
            for key, status in ((SECRET, 401), ("other", 200)):
                async with at.http.get(f"{at.url}/v1/voices", headers={"x-api-key": key}) as reply:
                    assert reply.status == status
            path.write_text("broken")
            with pytest.raises(Usage):
                at.server.reload_keys()
            async with at.http.get(f"{at.url}/v1/voices", headers={"x-api-key": "other"}) as reply:
                assert reply.status == 200

    run(test)
