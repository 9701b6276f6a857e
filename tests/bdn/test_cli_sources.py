"""Odd sources, names and targets on the command line: each is refused before anything moves, in one helpful line."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bdn import cli
from bdn.digest import Digest
from bdn.direct import pull_into
from bdn.errors import DiskFull
from bdn.inspection import lay_out
from bdn.manifest import Chunk, Extent, File, Manifest
from bdn.policy import Limits
from bdn.sim.memory import CountingOrigin
from bdn.sim.memory import model as in_memory
from tests.bdn.node import agent
from tests.bdn.test_cli_models import Capture, fails, run

FORMS = "expected hf://org/repo[@revision], s3://bucket/prefix, https://host/file-or-list, or a directory"
RULE = "a bucket's name has 3 to 63 lower-case letters, digits, '.' and '-': s3://bucket/prefix"


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in [n for n in os.environ if n.startswith(("BDN_", "AWS_", "HF_"))]:
        monkeypatch.delenv(name)


@pytest.fixture
def origin(tmp_path: Path) -> str:
    (tmp_path / "voice").mkdir()
    (tmp_path / "voice" / "model.safetensors").write_bytes(os.urandom(3_000_000))
    assert cli.main(["mirror", str(tmp_path / "voice"), "--origin", str(tmp_path / "origin"), "--quiet"]) == 0
    return str(tmp_path / "origin")


@pytest.mark.parametrize("source", ["https://", "hf://", "s3://", "http://"])
def test_a_source_that_is_only_a_scheme_is_told_what_a_source_is(source: str, tmp_path: Path, capsys: Capture) -> None:
    for extra in ([], ["--name", "voice"]):
        code, line = fails(capsys, "mirror", source, *extra, "--origin", str(tmp_path / "o"))
        assert (code, line) == (2, f"{source!r} says only what kind of source it is: {FORMS}")


def test_a_source_without_a_host_or_with_no_bucket_s_name_is_usage(tmp_path: Path, capsys: Capture) -> None:
    o = ["--origin", str(tmp_path / "o")]
    code, line = fails(capsys, "mirror", "https:///list.txt", "--name", "voice", *o)
    assert (code, line) == (2, "'https:///list.txt' names no host: write https://host/file-or-list")
    code, line = fails(capsys, "mirror", "s3://b/p", *o)
    assert (code, line) == (2, "'b' in 's3://b/p' cannot be a bucket: " + RULE)


def test_a_bucket_s_name_that_no_s3_has_is_told_at_once(tmp_path: Path, origin: str, capsys: Capture) -> None:
    for argv in (["ls"], ["pull", "voice", "--to", str(tmp_path / "x")], ["mirror", str(tmp_path / "voice")]):
        code, line = fails(capsys, *argv, "--origin", "s3://b/p")
        assert (code, line) == (1, f"not an S3 origin: 's3://b/p': {RULE}")


def test_an_origin_within_its_own_source_is_refused_unless_its_objects_are_left_out(
    tmp_path: Path, capsys: Capture
) -> None:
    """Each mirror would take what the last one stored for files of the model."""
    voice = tmp_path / "voice"
    voice.mkdir()
    (voice / "a.bin").write_bytes(b"1234")
    for place in (voice, voice / "o"):
        code, line = fails(capsys, "mirror", str(voice), "--origin", str(place))
        said = f"the origin {place} lies in what is mirrored, {voice}: name an origin beside it"
        assert (code, line) == (2, said)
    assert [p.name for p in voice.iterdir()] == ["a.bin"]
    digests = set()
    for _ in range(2):
        assert cli.main(["mirror", str(voice), "--origin", str(voice / "o"), "--allow", "*.bin", "--quiet"]) == 0
        digests.add(capsys.readouterr().out)
    assert len(digests) == 1
    assert cli.main(["mirror", str(voice), "--origin", str(tmp_path / "voice-origin"), "--quiet"]) == 0


def test_a_directory_whose_name_is_none_is_told_which_would_do(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "My Model").mkdir()
    code, line = fails(capsys, "mirror", str(tmp_path / "My Model"), "--origin", str(tmp_path / "o"))
    assert code == 2 and line.endswith("makes no model name: give it one, such as --name my-model")
    code, line = fails(capsys, "mirror", "/", "--origin", str(tmp_path / "o"))
    assert (code, line) == (2, "'/' makes no model name: give it one, such as --name voice")


@pytest.mark.parametrize(
    ("ref", "hint"),
    [("Org/Model", "did you mean org/model?"), ("my voice", "did you mean my-voice?"),
     ("hf://org/model", "that is where a model comes from: `bdn mirror` it"), ("./voice", "that is where a model"),
     ("~/voice", "that is where a model"), ("a/b/c/d/e", "lower-case letters, digits")],
)  # fmt: skip
def test_what_is_no_model_name_gets_a_hint_that_fits(ref: str, hint: str, capsys: Capture) -> None:
    for verb in ("pull", "wait", "verify"):
        code, line = fails(capsys, verb, ref)
        assert code == 2 and line.startswith(f"not a model name: {ref!r}: {hint}"), line


class _Page(BaseHTTPRequestHandler):
    """A log-in page in the place of everything, with status 200."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = b"<html>please log in</html>"
        self.send_response(200)
        self.send_header("content-type", "text/html; charset=utf-8")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Silence."""


@pytest.fixture
def page() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_log_in_page_is_no_hub_no_file_and_no_origin(page: str, tmp_path: Path, capsys: Capture) -> None:
    o = ["--origin", str(tmp_path / "o")]
    code, line = fails(capsys, "mirror", "hf://org/model", *o, "--hf-endpoint", page)
    assert (code, line) == (1, f"{page} answered something that no hub says of hf://org/model: "
                               "it may be a proxy's or a log-in page; is that address a hub?")  # fmt: skip
    code, line = fails(capsys, "mirror", f"{page}/model.safetensors", *o)
    assert (code, line) == (1, f"{page}/model.safetensors is a web page, not that file: "
                               "a log-in or error page, most likely")  # fmt: skip
    assert fails(capsys, "ls", "--origin", page)[0] == 3, "and not: no models"
    assert fails(capsys, "pull", "voice", "--to", str(tmp_path / "x"), "--origin", page)[0] == 3
    assert not (tmp_path / "x").exists() and not (tmp_path / "o" / "tags").exists()


@pytest.mark.parametrize("key", ["tag", "name", "revision"])
def test_an_empty_value_is_refused_in_a_spec_and_on_the_command_line(
    key: str, origin: str, tmp_path: Path, capsys: Capture
) -> None:
    spec = tmp_path / "models.yaml"
    spec.write_text(f"models: [{{source: voice, {key}: ''}}]\n")
    before = Path(origin, "tags.json").read_bytes()
    code, line = fails(capsys, "mirror", "-f", str(spec), "--origin", origin)
    assert code == 2 and line == f"{spec}, model 1: {key} is empty: give it a value, or leave the key out"
    assert fails(capsys, "mirror", str(tmp_path / "voice"), f"--{key}", "", "--origin", origin)[0] == 2
    assert Path(origin, "tags.json").read_bytes() == before


@pytest.mark.parametrize("direct", [True, False])
def test_a_target_that_cannot_be_is_refused_before_anything_moves(
    direct: bool, origin: str, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    with agent(tmp_path / "store", origin):
        way = ["--origin", origin] if direct else ["--store", str(tmp_path / "store")]
        for target, why in (("none/x", "there is no directory"), ("file", "is not a directory")):
            code, line = fails(capsys, "pull", "voice", "--to", str(tmp_path / target), *way)
            assert code == 1 and why in line
        _, out, _ = run(capsys, "status", "--store", str(tmp_path / "store"), "--json")
        assert '"pulls": []' in out, "the agent was not even asked"
        code, line = fails(capsys, "pull", "voice", "--to", str(tmp_path / "full"), *way)
        assert code == 1 and "holds something else" in line
    assert (tmp_path / "full" / "mine").read_text() == "mine" and (tmp_path / "file").read_text() == "mine"


def test_a_pull_cut_off_says_where_it_left_what_came_and_the_next_goes_on(
    origin: str, tmp_path: Path, capsys: Capture
) -> None:
    [chunk, *_] = sorted(p for p in Path(origin, "chunks").rglob("*") if p.is_file())
    body = chunk.read_bytes()
    chunk.write_bytes(bytes(len(body)))
    argv = ["pull", "voice", "--to", str(tmp_path / "out"), "--origin", origin]
    code, _, err = run(capsys, *argv)
    kept = tmp_path / ".out.bdn-pull"
    assert code == 3 and f"what came is kept in {kept}: the same command goes on from there" in err and kept.is_dir()
    chunk.write_bytes(body)
    assert run(capsys, *argv)[0] == 0
    assert not kept.exists(), "and nothing is left beside it"


def test_a_pull_for_which_there_is_no_space_leaves_nothing(tmp_path: Path) -> None:
    digest = Digest.of(b"x")
    chunk_bytes, count = 64 << 20, 1 << 20
    huge = File("x", chunk_bytes * count, 0o644, digest, (Extent(Chunk(digest, chunk_bytes), 0, chunk_bytes),) * count)
    with pytest.raises(DiskFull):
        asyncio.run(
            pull_into(Manifest((huge,)), CountingOrigin({}), tmp_path / "x", limits=Limits(), progress=lambda _: None)
        )
    assert list(tmp_path.iterdir()) == []


def test_a_copy_sweeps_away_what_a_killed_one_has_left_but_not_one_at_work(tmp_path: Path) -> None:
    manifest, _ = in_memory(0)
    dead, busy = tmp_path / ".out.bdn-123", tmp_path / ".out.bdn-124"
    for left in (dead, busy):
        left.mkdir()
        (left / "half").write_text("half")
    hold = (
        "import fcntl, os, sys; d = os.open(sys.argv[1], os.O_RDONLY); fcntl.flock(d, fcntl.LOCK_EX); print('held')\n"
        "sys.stdout.flush(); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", hold, str(busy)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    try:
        (tmp_path / "source").mkdir()
        (tmp_path / "source" / "weights.bin").touch()
        lay_out(manifest, tmp_path / "source", tmp_path / "out")
        assert not dead.exists() and busy.exists() and (tmp_path / "out").is_dir()
    finally:
        holder.communicate()
