"""Two who write one file at a time: each has a temporary of its own, whatever process ids the machine gives out."""

from __future__ import annotations

from pathlib import Path

from runtime.whole_file import whole_file


def test_two_who_write_the_same_file_do_not_write_into_each_other(tmp_path: Path) -> None:
    """Containers that share a disk have the same process ids; the second found the first one's bytes gone."""
    name = tmp_path / "sound.wav"
    with whole_file(str(name)) as slow:
        slow.write(b"slow, and long")
        slow.flush()
        with whole_file(str(name)) as quick:
            quick.write(b"quick")
        assert name.read_bytes() == b"quick"
    assert name.read_bytes() == b"slow, and long"
    assert [p.name for p in tmp_path.iterdir()] == ["sound.wav"]
