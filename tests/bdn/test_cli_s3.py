"""Verbs against a real S3 server: as origin and as source, and what a wrong bucket or key looks like."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bdn import cli
from tests.bdn.test_cli_models import FILES, Capture, fails, run
from tests.servers import ADMIN, BUCKET, READER, S3Service


@pytest.fixture(autouse=True)
def _own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in [n for n in os.environ if n.startswith(("BDN_", "AWS_", "HF_"))]:
        monkeypatch.delenv(name)
    keys(monkeypatch, ADMIN)
    monkeypatch.setenv("AWS_REGION", "us-east-1")


def keys(monkeypatch: pytest.MonkeyPatch, pair: tuple[str, str]) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", pair[0])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", pair[1])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    root = tmp_path / "a-model"
    for path, body in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(body)
    return root


def test_a_bucket_is_an_origin(model: Path, tmp_path: Path, s3: S3Service, capsys: Capture) -> None:
    at = ["--origin", s3.place(), "--endpoint", s3.endpoint, "--quiet"]
    for expected in (sum(map(len, FILES.values())), 0):
        _, out, _ = run(capsys, "mirror", str(model), *at, "--json")
        assert json.loads(out)["bytes_uploaded"] == expected
    _, out, _ = run(capsys, "ls", *at, "--json")
    assert [m["name"] for m in json.loads(out)] == ["a-model"]
    assert cli.main(["pull", "a-model", "--to", str(tmp_path / "out"), *at]) == 0
    for path, body in FILES.items():
        assert (tmp_path / "out" / path).read_bytes() == body


def test_a_bucket_is_a_source(tmp_path: Path, s3: S3Service, capsys: Capture) -> None:
    place = s3.place()
    prefix = place.removeprefix(f"s3://{BUCKET}/")
    for path, body in FILES.items():
        s3.client().put_object(Bucket=BUCKET, Key=f"{prefix}/{path}", Body=body)
    argv = ["mirror", place, "--name", "from-s3", "--origin", str(tmp_path / "o"), "--source-endpoint", s3.endpoint]
    for expected in (sum(map(len, FILES.values())), 0):
        _, out, _ = run(capsys, *argv, "--json", "--quiet")
        assert json.loads(out)["bytes_uploaded"] == expected
    assert json.loads(out)["remembered"], "the same objects are not even read again"
    code, line = fails(capsys, "mirror", f"{place}/nothing", "--name", "x", *argv[4:])
    assert code == 1 and "is empty" in line


def test_a_wrong_bucket_and_wrong_keys_are_told_apart(
    model: Path, tmp_path: Path, s3: S3Service, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = ["--endpoint", s3.endpoint, "--origin"]
    source = ["--origin", str(tmp_path / "o"), "--source-endpoint", s3.endpoint]
    code, line = fails(capsys, "mirror", str(model), *origin, "s3://no-such-bucket/x")
    assert code == 1 and "bucket" in line and "no-such-bucket" in line
    code, line = fails(capsys, "mirror", "s3://no-such-bucket/x", *source)
    assert code == 1 and line.startswith("there is no bucket 'no-such-bucket'")
    keys(monkeypatch, READER)
    code, line = fails(capsys, "mirror", str(model), *origin, s3.place())
    assert code == 1, "who may only read cannot mirror"
    keys(monkeypatch, (ADMIN[0], "wrong"))
    code, line = fails(capsys, "mirror", f"s3://{BUCKET}/x", *source)
    assert code == 1 and "refused the credentials" in line
    code, line = fails(capsys, "ls", *origin, s3.place())
    assert code == 1 and "AWS_SECRET_ACCESS_KEY" in line
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    code, line = fails(capsys, "mirror", f"s3://{BUCKET}/x", *source)
    assert code == 1 and line.startswith("no credentials for")
    code, line = fails(capsys, "mirror", f"s3://{BUCKET}/x", "--origin", str(tmp_path / "o"), "--source-endpoint",
                       "not a url")  # fmt: skip
    assert code == 1 and "not a url" in line


def test_mirroring_with_verify_repairs_a_chunk_that_was_overwritten_in_the_bucket(
    model: Path, tmp_path: Path, s3: S3Service, capsys: Capture
) -> None:
    place = s3.place()
    at = ["--origin", place, "--endpoint", s3.endpoint, "--quiet"]
    run(capsys, "mirror", str(model), *at)
    client, prefix = s3.client(), place.removeprefix(f"s3://{BUCKET}/")
    chunks = client.list_objects_v2(Bucket=BUCKET, Prefix=f"{prefix}/chunks/")["Contents"]
    victim = chunks[0]
    client.put_object(Bucket=BUCKET, Key=victim["Key"], Body=bytes(victim["Size"]))
    _, out, _ = run(capsys, "mirror", str(model), *at, "--json")
    assert json.loads(out)["bytes_uploaded"] == 0, "by length it looks whole"
    code, line = fails(capsys, "pull", "a-model", "--to", str(tmp_path / "damaged"), *at)
    assert code == 3, line
    _, out, _ = run(capsys, "mirror", str(model), *at, "--json", "--verify")
    assert json.loads(out)["bytes_uploaded"] == victim["Size"]
    assert cli.main(["pull", "a-model", "--to", str(tmp_path / "out"), *at]) == 0
    for path, body in FILES.items():
        assert (tmp_path / "out" / path).read_bytes() == body
