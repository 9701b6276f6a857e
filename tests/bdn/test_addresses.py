"""An address or a secret with a typing error is told at once, as one line, and no secret is repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from bdn import cli


@pytest.mark.parametrize(
    "argv",
    [
        ("ls", "--origin", "http://127.0.0.1:99999/x"),
        ("ls", "--origin", "http://["),
        ("ls", "--origin", "http://host:port/"),
        ("ls", "--origin", "s3://bucket/x", "--endpoint", "http://["),
        ("ls", "--origin", "s3://bucket/x", "--endpoint", "http://127.0.0.1:99999"),
        ("mirror", "https://[/x", "--name", "m", "--origin", "./o"),
    ],
)
def test_an_address_that_is_none_is_a_usage_error(
    argv: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main([*argv, "--quiet"]) == 2
    assert "internal error" not in capsys.readouterr().err


def test_an_endpoint_with_a_path_is_refused_rather_than_cut_short(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ls", "--origin", "s3://bucket/x", "--endpoint", "http://127.0.0.1:9/minio", "--quiet"]) == 1
    assert "not an S3 endpoint" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"])
def test_a_key_with_a_line_break_is_told_without_the_key(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "sesame")
    monkeypatch.setenv(name, "open\nsesame")
    assert cli.main(["show", "m", "--origin", "s3://bucket/x", "--endpoint", "http://127.0.0.1:9", "--quiet"]) == 2
    err = capsys.readouterr().err
    assert "line break" in err and "sesame" not in err


def test_a_token_with_a_line_break_is_told_without_the_token(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BDN_ORIGIN_TOKEN", "open\nsesame")
    assert cli.main(["ls", "--origin", "http://127.0.0.1:9", "--quiet"]) == 2
    err = capsys.readouterr().err
    assert "line break" in err and "sesame" not in err
