"""The command line's frame: help, one line for each failure, and the exit codes that scripts rely on."""

from __future__ import annotations

import importlib

import pytest

from bdn import cli, errors
from bdn.digest import Digest

D = Digest.of(b"")


def test_help_lists_every_verb_and_every_verb_is_a_module(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    for verb, about in cli.VERBS.items():
        assert verb in out and about in out
        module = importlib.import_module(f"bdn.cli.{verb}")
        assert cli.main([verb, "--help"]) == 0
        assert module.EXAMPLES.strip().splitlines()[0] in capsys.readouterr().out


def test_no_arguments_show_the_help_and_version_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    assert "bdn VERB" in capsys.readouterr().out
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("bdn ")


@pytest.mark.parametrize("argv", [["nonsense"], ["--nonsense"], ["nonsense\n\x1b[31m"]])
def test_a_wrong_command_line_is_one_line_and_exit_code_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "\x1b" not in err


def test_a_full_disk_is_told_in_sizes_one_can_read_and_for_any_place() -> None:
    line = str(errors.DiskFull("/x", 1_500_000, 512))
    hint = "free space there, or choose another place; what was verified stays"
    assert line == f"not enough space: 1.50 MB needed, 512 B free (/x): {hint}"
    assert "2.00 GB needed, 1.00 kB free" in str(errors.DiskFull("/x", 2 * 10**9, 1000))


def test_the_exit_codes_of_the_error_tree() -> None:
    codes = {
        errors.Usage("x"): 2, errors.Invalid("x"): 1, errors.Missing("x"): 1, errors.Down("x"): 4,
        errors.Corrupt("x"): 3, errors.ChunkCorrupt(D, source="a", got=D): 3, errors.SourceDown("a", "x"): 4,
        errors.DiskFull("/x", 2, 1): 1,
    }  # fmt: skip
    assert [e.exit_code for e in codes] == list(codes.values())
