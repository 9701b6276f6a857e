"""The `tts` command as people type it: switches, sizes with units, its version, and what it refuses."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from runtime import VERSION, cli, config
from runtime.config import ServeSettings
from runtime.errors import Usage


def load(*argv: str) -> ServeSettings:
    parser = argparse.ArgumentParser()
    config.add_flags(parser, ServeSettings)
    return config.load(ServeSettings, parser.parse_args(argv), {}, {})


def test_a_switch_needs_no_word_and_takes_one() -> None:
    assert load("--keyless").keyless and load("--keyless", "true").keyless
    assert not load("--keyless", "false").keyless and not load().keyless
    assert not load("--trim-silence", "no", "--keyless").trim_silence


def test_a_switch_with_another_word_is_refused_naming_it() -> None:
    with pytest.raises(Usage, match=r"--keyless is not true or false: 'perhaps'"):
        load("--keyless", "perhaps")


def test_sizes_are_written_with_units_or_as_bytes() -> None:
    assert load("--message-bytes-max", "64KiB").message_bytes_max == 64 << 10
    assert load("--message-bytes-max", "65536").message_bytes_max == 64 << 10
    with pytest.raises(Usage, match="--message-bytes-max is not a whole number: '64 parsecs'"):
        load("--message-bytes-max", "64 parsecs")


def test_the_command_tells_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"tts {VERSION}\n"


def test_a_random_checkpoint_never_overwrites_one_that_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert cli.main(["make-checkpoint", str(tmp_path)]) == 2
    assert "holds a checkpoint already" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]
