"""Verbs on real models: what they print, and for each bad input one line that says what, where and what next."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bdn import cli
from tests.bdn.node import agent
from tests.hub import Hub, Repository, running

FILES = {"config.json": b'{"a":1}', "model.safetensors": os.urandom(300_000), "sub/vocab.txt": b"v" * 999}
Run = tuple[int, str, str]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    root = tmp_path / "a-model"
    for path, body in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(body)
    return root


@pytest.fixture
def origin(tmp_path: Path, model: Path) -> str:
    assert cli.main(["mirror", str(model), "--origin", str(tmp_path / "origin"), "--quiet"]) == 0
    return str(tmp_path / "origin")


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No agent, credentials or settings of the machine that runs the tests."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in [n for n in os.environ if n.startswith(("BDN_", "AWS_", "HF_"))]:
        monkeypatch.delenv(name)


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> Run:
    capsys.readouterr()
    code = cli.main(argv)
    out, err = capsys.readouterr()
    return code, out, err


def fails(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    """Exit code and the one line; the command must fail, print nothing else on stderr, and no fact."""
    code, out, err = run(capsys, *argv, "--quiet")
    assert code != 0 and err.count("\n") == 1 and out == "", (code, out, err)
    assert err.startswith(f"bdn {argv[0]}: ")
    return code, err.removeprefix(f"bdn {argv[0]}: ").rstrip("\n")


Capture = pytest.CaptureFixture[str]


def test_a_second_mirror_of_the_same_directory_stores_nothing(model: Path, tmp_path: Path, capsys: Capture) -> None:
    argv = ["mirror", str(model), "--origin", str(tmp_path / "o"), "--json", "--quiet"]
    _, first, _ = run(capsys, *argv)
    _, second, _ = run(capsys, *argv)
    one, two = json.loads(first), json.loads(second)
    assert one["bytes_uploaded"] == sum(map(len, FILES.values())) and two["bytes_uploaded"] == 0
    assert one["digest"] == two["digest"] and one["ref"] == "a-model:latest" and not two["tag_moved"]


def test_ls_show_and_diff_tell_what_is_at_the_origin(model: Path, origin: str, capsys: Capture) -> None:
    (model / "config.json").write_bytes(b'{"a":2}')
    (model / "new.txt").write_bytes(b"new")
    assert cli.main(["mirror", str(model), "--origin", origin, "--tag", "next", "--quiet"]) == 0
    _, out, _ = run(capsys, "ls", "--origin", origin, "--json")
    assert [(m["name"], m["tag"]) for m in json.loads(out)] == [("a-model", "latest"), ("a-model", "next")]
    _, out, _ = run(capsys, "show", "a-model", "--origin", origin, "--json")
    shown = json.loads(out)
    assert {f["path"] for f in shown["files"]} == set(FILES) and shown["provenance"]["source"] == "dir:a-model"
    _, out, _ = run(capsys, "diff", "a-model", "a-model:next", "--origin", origin, "--json")
    change = json.loads(out)
    assert (change["added"], change["removed"], change["changed"]) == (["new.txt"], [], ["config.json"])
    assert 0 < change["moved_bytes"] <= change["new_bytes"]
    code, out, _ = run(capsys, "diff", "a-model", "a-model:next", "--origin", origin)
    assert code == 0 and "~ config.json" in out and "+ new.txt" in out


def test_pull_makes_a_directory_and_says_where_bytes_came_from(origin: str, tmp_path: Path, capsys: Capture) -> None:
    argv = ["pull", "a-model", "--to", str(tmp_path / "out"), "--origin", origin, "--json", "--quiet"]
    _, out, _ = run(capsys, *argv)
    fact = json.loads(out)
    assert fact["bytes_by_tier"] == {"origin": fact["bytes"]} and fact["digest"].startswith("b3:")
    assert fact["seconds"] >= 0
    for path, body in FILES.items():
        assert (tmp_path / "out" / path).read_bytes() == body
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a-model", "origin", "out"], "nothing is left beside it"
    _, out, _ = run(capsys, *argv)
    assert json.loads(out)["bytes_by_tier"] == {"nvme": fact["bytes"]}, "asked again, nothing moves"


def test_pull_through_an_agent_gives_a_directory_of_one_s_own(origin: str, tmp_path: Path, capsys: Capture) -> None:
    with agent(tmp_path / "store", origin) as node:
        at = ["--store", str(tmp_path / "store"), "--json", "--quiet"]
        _, out, _ = run(capsys, "pull", "a-model", "--to", str(tmp_path / "out"), *at)
        fact = json.loads(out)
        assert fact["path"] == str(tmp_path / "out") and fact["bytes_by_tier"] == {"origin": fact["bytes"]}
        (tmp_path / "out" / "config.json").write_bytes(b"edited")
        code, out, _ = run(capsys, "verify", "a-model", *at)
        assert code == 0 and json.loads(out)["ok"], "an edit there does not reach the store"
        code, out, _ = run(capsys, "status", *at)
        assert json.loads(out)["models"][0]["path"] and json.loads(out)["port"] == node.port
        code, out, _ = run(capsys, "wait", "a-model", "--store", str(tmp_path / "store"), "--quiet")
        assert code == 0 and Path(out.strip(), "config.json").is_file()


def test_names_outlive_the_agent_and_damage_is_found_after_it(origin: str, tmp_path: Path, capsys: Capture) -> None:
    at = ["--store", str(tmp_path / "store")]
    with agent(tmp_path / "store", origin):
        assert run(capsys, "pull", "a-model", *at, "--quiet")[0] == 0
    with agent(tmp_path / "store"):
        assert run(capsys, "verify", "a-model", *at)[0] == 0
        _, out, _ = run(capsys, "status", *at)
        assert "a-model:latest" in out and "incomplete" not in out
        weights = next((tmp_path / "store" / "models").glob("*/model.safetensors"))
        with open(weights, "r+b") as file:
            file.write(b"\0flipped\0")
        code, line = fails(capsys, "verify", "a-model", *at)
        assert code == 3 and "went bad on disk, with bytes of config.json, model.safetensors, sub/vocab.txt" in line
        _, out, _ = run(capsys, "status", *at)
        assert "incomplete" in out and "pulling" not in out, "nothing pulls it"
    with agent(tmp_path / "store"):
        code, line = fails(capsys, "verify", "a-model", *at)
        assert code == 3 and "incomplete" in line and "bdn pull" in line


def test_a_name_is_the_model_pulled_last_under_it_and_a_torn_file_costs_only_names(
    model: Path, origin: str, tmp_path: Path, capsys: Capture
) -> None:
    at = ["--store", str(tmp_path / "store"), "--json", "--quiet"]
    with agent(tmp_path / "store", origin):
        _, old, _ = run(capsys, "pull", "a-model", *at)
        (model / "config.json").write_bytes(b"{}")
        assert cli.main(["mirror", str(model), "--origin", origin, "--quiet"]) == 0
        _, new, _ = run(capsys, "pull", "a-model", *at)
        assert json.loads(old)["digest"] != json.loads(new)["digest"]
    with agent(tmp_path / "store"):
        assert json.loads(run(capsys, "verify", "a-model", *at)[1])["digest"] == json.loads(new)["digest"]
        names = {m["digest"]: m["names"] for m in json.loads(run(capsys, "status", *at)[1])["models"]}
        assert names == {json.loads(old)["digest"]: [], json.loads(new)["digest"]: ["a-model:latest"]}
    for kept in (tmp_path / "store" / "state").glob("*/names.json"):
        kept.write_bytes(b'["a-mo')
    with agent(tmp_path / "store"):
        assert run(capsys, "verify", "a-model", *at)[0] == 1
        assert run(capsys, "verify", json.loads(new)["digest"], *at)[0] == 0


def test_run_becomes_the_command_with_the_model_s_directory(origin: str, tmp_path: Path) -> None:
    show = "import os,sys; print(open(sys.argv[1]+'/config.json').read(), os.environ['BDN_MODEL_DIR']==sys.argv[1])"
    with agent(tmp_path / "store", origin):
        base = [sys.executable, "-m", "bdn", "run", "a-model", "--store", str(tmp_path / "store"), "--quiet", "--"]
        done = subprocess.run([*base, sys.executable, "-c", show, "{}"], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, '{"a":1} True\n'), done.stderr
        done = subprocess.run([*base, sys.executable, "-c", "raise SystemExit(7)"], capture_output=True, text=True)
        assert done.returncode == 7


def test_verify_finds_every_kind_of_difference(origin: str, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    assert cli.main(["pull", "a-model", "--to", str(out), "--origin", origin, "--quiet"]) == 0
    assert run(capsys, "verify", "a-model", "--dir", str(out), "--origin", origin)[0] == 0
    (out / "config.json").write_bytes(b'{"a":9}')
    (out / "sub" / "vocab.txt").unlink()
    (out / "extra").write_bytes(b"")
    code, line = fails(capsys, "verify", "a-model", "--dir", str(out), "--origin", origin)
    assert code == 3
    assert "1 missing (sub/vocab.txt); 1 changed (config.json); 1 extra (extra)" in line


def test_a_spec_mirrors_a_list_of_models(model: Path, tmp_path: Path, capsys: Capture) -> None:
    spec = tmp_path / "models.yaml"
    one, two = "{source: a-model, name: one}", "{source: a-model, name: two, allow: ['*.json']}"
    spec.write_text(f"models: [{one}, {two}]\n")
    code, out, _ = run(capsys, "mirror", "-f", str(spec), "--origin", str(tmp_path / "o"), "--json", "--quiet")
    assert code == 0 and [(m["ref"], m["files"]) for m in json.loads(out)] == [("one:latest", 3), ("two:latest", 1)]
    spec.write_text("models:\n  - source: a-model\n    alow: ['*.json']\n")
    code, line = fails(capsys, "mirror", "-f", str(spec), "--origin", str(tmp_path / "o"))
    assert code == 2 and "did you mean allow?" in line


def test_the_shipped_spec_is_one(tmp_path: Path) -> None:
    from bdn.specs import read_specs

    specs = read_specs(Path(__file__).resolve().parents[2] / "manifests" / "models.yaml")
    assert [s.name for s in specs] == ["kyutai/tts-1.6b-en_fr", "kyutai/tts-0.75b-en-public", "kyutai/tts-voices"]


# Bad input, each one line and its exit code.


def test_an_unknown_source_and_a_missing_directory(tmp_path: Path, capsys: Capture) -> None:
    o = str(tmp_path / "o")
    code, line = fails(capsys, "mirror", "ftp://host/x", "--origin", o)
    assert (code, line) == (2, "unknown source 'ftp://host/x': expected hf://org/repo[@revision], "
                               "s3://bucket/prefix, https://host/file-or-list, or a directory")  # fmt: skip
    code, line = fails(capsys, "mirror", str(tmp_path / "no"), "--origin", o)
    assert code == 1 and line.startswith(f"there is no directory {tmp_path}/no: ")
    no = str(tmp_path / "no")
    for argv in (["verify", "a", "--dir", no, "--origin", o], ["demo", "--model", no]):
        code, line = fails(capsys, *argv)
        assert code == 1 and line.startswith(f"there is no directory {tmp_path}/no: "), "the same for every verb"


def test_a_pattern_that_matches_nothing_lists_what_is_there(model: Path, tmp_path: Path, capsys: Capture) -> None:
    code, line = fails(capsys, "mirror", str(model), "--origin", str(tmp_path / "o"), "--allow", "*.gguf")
    assert code == 2
    assert line == ("--allow '*.gguf' matches no file of dir:a-model: there are config.json, model.safetensors, "
                    "sub/vocab.txt")  # fmt: skip


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running(Hub({"org/model": Repository({"a" * 40: FILES}, {"main": "a" * 40})}, tokens={"good"})) as hub:
        yield hub


def test_the_hub_s_refusals(hub: Hub, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    rest = ["--origin", str(tmp_path / "o"), "--hf-endpoint", hub.url]
    code, line = fails(capsys, "mirror", "hf://org/model@nope", *rest)
    assert (code, line) == (1, "hf://org/model has no revision 'nope': name a branch, tag or commit")
    code, line = fails(capsys, "mirror", "hf://org/absent", *rest)
    assert code == 1 and "does not exist or is private, and no token is set" in line
    hub.repositories["org/model"].gated = True
    code, line = fails(capsys, "mirror", "hf://org/model", *rest)
    assert code == 1 and line == f"hf://org/model is gated: ask for access at {hub.url}/org/model, then set HF_TOKEN"
    hub.repositories["org/model"].gated = False
    hub.repositories["org/model"].private = True
    monkeypatch.setenv("HF_TOKEN", "expired")
    code, line = fails(capsys, "mirror", "hf://org/model", *rest)
    assert code == 1
    assert line == "the hub refused the token for hf://org/model: it is wrong or has expired: renew HF_TOKEN"
    code, line = fails(capsys, "mirror", "hf://org/model", "--origin", str(tmp_path / "o"), "--hf-endpoint",
                       "http://127.0.0.1:9")  # fmt: skip
    assert code == 4 and "unreachable" in line
    assert not (tmp_path / "o" / "tags").exists(), "nothing is half-published"


def test_a_hub_model_comes_through_mirror_and_pull(hub: Hub, tmp_path: Path, capsys: Capture) -> None:
    o = str(tmp_path / "o")
    argv = ["mirror", "hf://org/model", "--origin", o, "--hf-endpoint", hub.url, "--json", "--quiet"]
    for expected in (sum(map(len, FILES.values())), 0):
        _, out, _ = run(capsys, *argv)
        assert json.loads(out)["bytes_uploaded"] == expected
    assert json.loads(out)["remembered"], "the same commit is not even read again"
    assert cli.main(["pull", "org/model", "--origin", o, "--to", str(tmp_path / "out"), "--quiet"]) == 0
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == FILES["model.safetensors"]


def test_an_unreadable_file_stops_the_mirror_before_it_begins(model: Path, tmp_path: Path) -> None:
    (model / "config.json").chmod(0)
    drop = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    argv = [*drop, sys.executable, "-m", "bdn", "mirror", str(model), "--origin", str(tmp_path / "o"), "--quiet"]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == f"bdn mirror: cannot read {model}/config.json: permission denied: check its owner and mode\n"


def test_a_corrupt_chunk_at_the_origin_is_exit_code_3_and_leaves_no_directory(
    origin: str, tmp_path: Path, capsys: Capture
) -> None:
    for path in (tmp_path / "origin" / "chunks").rglob("*"):
        if path.is_file():
            path.write_bytes(bytes(path.stat().st_size))
    code, line = fails(capsys, "pull", "a-model", "--to", str(tmp_path / "out"), "--origin", origin)
    assert code == 3 and "with digest b3:" in line and "`bdn mirror --verify` the model" in line
    assert not (tmp_path / "out").exists()


def test_mirroring_again_repairs_a_damaged_chunk(model: Path, origin: str, tmp_path: Path, capsys: Capture) -> None:
    largest = max((p for p in Path(origin, "chunks").rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    body = bytearray(largest.read_bytes())
    body[1000] ^= 1
    body[1001] ^= 1
    largest.write_bytes(body)
    _, out, _ = run(capsys, "mirror", str(model), "--origin", origin, "--json", "--quiet")
    assert json.loads(out)["bytes_uploaded"] == len(body), "that chunk, and no other"
    assert cli.main(["pull", "a-model", "--to", str(tmp_path / "out"), "--origin", origin, "--quiet"]) == 0
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == FILES["model.safetensors"]


@pytest.mark.parametrize("content", [b"", b"[]", b"x" * 5000])
def test_a_damaged_tag_hides_no_other_and_mirroring_again_repairs_it(
    content: bytes, model: Path, origin: str, tmp_path: Path, capsys: Capture
) -> None:
    to = ["--origin", origin, "--quiet"]
    assert cli.main(["mirror", str(model), "--tag", "prod", *to]) == 0
    whole = run(capsys, "ls", *to)
    index = Path(origin, "tags.json").read_bytes()
    Path(origin, "tags", "a-model", "prod").write_bytes(content)
    code, out, err = run(capsys, "ls", *to)
    assert code == 3 and "latest" in out and "prod" not in out
    assert err.count("\n") == 1 and "damaged: a-model:prod" in err
    code, out, _ = run(capsys, "ls", "--json", *to)
    models, error = map(json.loads, out.splitlines())
    assert code == 3 and [m["tag"] for m in models] == ["latest"] and error["exit_code"] == 3
    assert fails(capsys, "pull", "a-model:prod", "--to", str(tmp_path / "out"), "--origin", origin)[0] == 3
    assert run(capsys, "mirror", str(model), "--tag", "next", *to)[0] == 0, "another tag is not in its way"
    Path(origin, "tags", "a-model", "next").unlink()
    assert run(capsys, "mirror", str(model), "--tag", "prod", *to)[0] == 0
    assert run(capsys, "ls", *to) == whole and Path(origin, "tags.json").read_bytes() == index


@pytest.mark.parametrize("ref", ["../etc/passwd", "a/../../b", "a:..", "a:b/..", "..", "a@b3:12"])
def test_a_name_with_dots_is_refused_everywhere(ref: str, tmp_path: Path, capsys: Capture) -> None:
    for argv in (["pull", ref], ["wait", ref], ["show", ref, "--origin", str(tmp_path)]):
        code, line = fails(capsys, *argv)
        assert code == 2 and line.startswith("not a "), line
    assert fails(capsys, "mirror", str(tmp_path), "--origin", str(tmp_path / "o"), "--name", ref)[0] == 2


def test_no_agent_no_origin_bad_port_and_an_unknown_setting(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = str(tmp_path / "store")
    for verb in (["pull", "a"], ["wait", "a"], ["status"], ["verify", "a"]):
        code, line = fails(capsys, *verb, "--store", store)
        assert code == 4
        assert line == f"the agent is not running ({store}/agent.sock): start it with `bdn agent`, or name its --socket"
    assert fails(capsys, "ls")[1] == "no origin: name it with --origin URL or BDN_ORIGIN"
    assert fails(capsys, "agent", "--port", "99999") == (2, "--port is out of bounds: 99999: allowed: 0 to 65535 port")
    assert fails(capsys, "agent", "--peers", "b=nowhere", "--store", store)[1].startswith("not a node: 'b=nowhere'")
    monkeypatch.setenv("BDN_ORIGN", "x")
    assert fails(capsys, "ls")[1] == "unknown setting BDN_ORIGN in the environment: did you mean BDN_ORIGIN?"


@pytest.mark.parametrize("seconds", ["-1", "nan", "inf"])
def test_a_timeout_that_is_none_is_usage_whether_an_agent_runs_or_not(seconds: str, capsys: Capture) -> None:
    for verb in ("pull", "wait"):
        code, line = fails(capsys, verb, "a", f"--timeout-s={seconds}")
        assert code == 2 and line.startswith(f"--timeout-s is out of bounds: {seconds}")


def test_an_empty_tag_is_refused_and_moves_nothing(model: Path, tmp_path: Path, capsys: Capture) -> None:
    code, line = fails(capsys, "mirror", str(model), "--origin", str(tmp_path / "o"), "--tag", "")
    assert code == 2 and line.startswith("not a tag: ''") and not (tmp_path / "o").exists()


def test_a_directory_that_holds_something_else_is_left_alone(origin: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    code, line = fails(capsys, "pull", "a-model", "--to", str(tmp_path / "out"), "--origin", origin)
    assert code == 1 and "holds something else" in line
    assert (tmp_path / "out" / "mine.txt").read_text() == "mine"


def test_errors_are_facts_too_with_json(tmp_path: Path, capsys: Capture) -> None:
    code, out, _ = run(capsys, "status", "--store", str(tmp_path), "--json")
    assert code == 4 and json.loads(out)["exit_code"] == 4 and "not running" in json.loads(out)["error"]
