"""`tts say`: sound in a file, the same from run to run, and for every mistake one line and its exit code."""

from __future__ import annotations

import io
import json
import resource
import sys
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from runtime import weights
from runtime.cli import main


def test_say_writes_sound_times_and_a_dump_that_agree(
    small_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, times, dump = tmp_path / "a.wav", tmp_path / "a.json", tmp_path / "a.safetensors"
    command = ["say", "Hello big world", "--model", str(small_checkpoint), "--temp", "0", "--json"]
    assert main([*command, "-o", str(out), "--timestamps", str(times), "--dump", str(dump)]) == 0
    facts = json.loads(capsys.readouterr().out)
    with wave.open(str(out)) as file:
        samples = file.getnframes()
        file.setpos(samples - 1)
        assert abs(int.from_bytes(file.readframes(1), "little", signed=True)) <= 33  # it ends without a click
        assert (file.getframerate(), file.getnchannels()) == (24000, 1)
    tensors = weights.read(dump)
    steps, codebooks = tensors["audio_tokens"].shape
    assert 0 <= samples - tensors["pcm"].numel() <= 120  # the last sample is led down to zero within 5 ms
    assert tensors["pcm"].numel() == round(facts["audio_s"] * 24000) == (steps - 18) * 1920
    assert codebooks == 8 and tensors["text_tokens"].shape == (steps,)
    assert (tensors["audio_tokens"][:16] == -1).all() and (tensors["audio_tokens"][18:] >= 0).all()
    words = json.loads(times.read_text())["words"]
    assert [w["text"] for w in words] == ["Hello", "big", "world"]
    assert np.allclose([[w["start_s"], w["stop_s"]] for w in words], tensors["word_times"].numpy())


def test_a_seed_is_a_reading(small_checkpoint: Path, tmp_path: Path) -> None:
    def said(seed: int, name: str) -> bytes:
        out = tmp_path / name
        assert (
            main(["say", "one two three", "-o", str(out), "--model", str(small_checkpoint), "--seed", str(seed)]) == 0
        )
        return out.read_bytes()

    assert said(1, "a.wav") == said(1, "b.wav") != said(2, "c.wav")


def test_speakers_take_turns_in_their_voices(small_checkpoint: Path, tmp_path: Path) -> None:
    """The voices reach the model in the order in which they are named, and a turn is marked with its speaker."""

    def said(text: str, voice: str) -> tuple[list[int], bytes]:
        dump = tmp_path / "x.safetensors"
        command = ["say", text, "--model", str(small_checkpoint), "--temp", "0", "--dump", str(dump)]
        assert main([*command, "--voice", voice]) == 0
        tensors = weights.read(dump)
        return tensors["text_tokens"].tolist(), tensors["pcm"].numpy().tobytes()

    turns = "Who is there? <speaker 2> It is me. <speaker 1> Come in."
    tokens, sound = said(turns, "voice0,voice1")
    card = 513  # the first stream's token, whatever the second stream says beside it
    assert [t % card for t in tokens if t % card in (1, 2)] == [1, 2, 1]
    assert sound != said(turns, "voice0")[1] and sound != said(turns, "voice1,voice0")[1]


def test_bytes_that_are_no_text_on_stdin_are_a_usage_error(
    small_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9 \n"), encoding="utf-8"))
    code = main(["say", "--model", str(small_checkpoint), "-o", str(tmp_path / "x.wav")])
    assert code == 2 and "standard input is not UTF-8 text" in capsys.readouterr().err


def test_text_is_read_from_standard_input(
    small_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("one two\nthree\n"))
    out = tmp_path / "a.srt"
    assert main(["say", "-o", str(tmp_path / "a.pcm"), "--model", str(small_checkpoint), "--timestamps", str(out)]) == 0
    assert "one two three" in " ".join(out.read_text().split())


def test_an_interrupt_leaves_the_earlier_sound_as_it_was(
    small_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def until_control_c() -> Iterator[str]:
        yield "one two three four five six "
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdin", until_control_c())
    out = tmp_path / "k.wav"
    out.write_bytes(b"the good one")
    assert main(["say", "-o", str(out), "--model", str(small_checkpoint)]) == 130
    assert [p.name for p in tmp_path.iterdir()] == ["k.wav"] and out.read_bytes() == b"the good one"


@pytest.mark.parametrize("flag", ["-o", "--dump"])
def test_a_file_that_cannot_be_written_whole_is_not_there_and_is_named(
    small_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    out = tmp_path / ("x.wav" if flag == "-o" else "x.safetensors")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))  # a full disk that needs no disk
    try:
        assert main(["say", "one two", flag, str(out), "--model", str(small_checkpoint)]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(out) in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (["say", "hi"], 2, "nowhere to put the sound"),
        (["say", "hi", "-o", "x.wav", "--temp", "warm"], 2, "--temp is not a number"),
        (["say", "hi", "-o", "x.wav", "--lanes", "0"], 2, "out of bounds"),
        (["say", "hi", "-o", "x.docx"], 2, "docx"),
        (["say", "hi", "-o", "x.wav", "--voice", "nobody"], 2, "voice0.wav"),
        (["say", "hi", "-o", "x.wav", "--cfg", "1.7"], 2, "cfg: must be one of"),
        (["say", "hi", "-o", "x.wav", "--model", "/nowhere"], 2, "there is no directory /nowhere"),
        (["say", "hi", "-o", "x.wav", "--model", "."], 3, "config.json"),
        (["say", "-f", "latin1.txt", "-o", "x.wav"], 2, "latin1.txt is not UTF-8 text"),
        (["say", "hi", "-o", "/nowhere/x.wav"], 1, "/nowhere/x.wav"),
        (["say", "hi", "-o", "x.wav", "--device", "tpu"], 2, "--device is unknown: 'tpu'"),
        (["say", "hi", "-o", "x.wav", "--device", "cuda:x"], 2, "cpu, cuda or cuda:N"),
        (["say", "hi", "-o", "x.wav", "--device", "cuda:99"], 1, "device cuda:99: "),
        (["sing"], 2, "there is no verb"),
        (["say", "--frobnicate"], 2, "frobnicate"),
    ],
)
def test_every_mistake_is_one_line_and_its_exit_code(
    small_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    command: list[str], code: int, words: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "latin1.txt").write_bytes(b"caf\xe9 noir")
    if command[0] == "say" and "--model" not in command:
        command = [*command, "--model", str(small_checkpoint)]
    assert main(command) == code
    line = capsys.readouterr().err.strip()
    assert words in line and "\n" not in line


def test_an_unknown_variable_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TTS_VOICES", "anna")
    assert main(["say", "hi", "-o", "x.wav"]) == 2
    assert "did you mean TTS_VOICE?" in capsys.readouterr().err


SOUND_CARD = '''
class PortAudioError(Exception):
    pass


class OutputStream:
    """Keeps what is played, and what was asked of it, where a test can read it."""

    made = []

    def __init__(self, samplerate, *, channels, dtype):
        if samplerate != 24000:
            raise PortAudioError("Invalid sample rate")
        self.asked, self.blocks, self.calls = (samplerate, channels, dtype), [], []
        OutputStream.made.append(self)

    def start(self):
        self.calls.append("start")

    def write(self, block):
        assert self.calls == ["start"] and block.flags.c_contiguous and block.dtype.name == self.asked[2]
        self.blocks.append(block.copy())

    def stop(self):  # waits until everything written was heard
        self.calls.append("stop")

    def close(self):
        self.calls.append("close")
'''


def test_the_sound_card_is_given_all_of_the_sound_and_left_when_it_was_heard(
    small_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sounddevice.py").write_text(SOUND_CARD)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "sounddevice", raising=False)
    out = tmp_path / "a.wav"
    assert main(["say", "Hello", "--model", str(small_checkpoint), "--play", "-o", str(out), "--temp", "0"]) == 0
    (card,) = sys.modules.pop("sounddevice").OutputStream.made
    assert card.asked == (24000, 1, "float32") and card.calls == ["start", "stop", "close"]
    played = np.concatenate(card.blocks)
    with wave.open(str(out)) as file:
        written = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768
    assert played.shape == (len(written), 1) and np.abs(played).max() <= 1.0
    assert np.abs(played[:, 0] - written).max() < 1e-4


def test_a_sound_card_that_cannot_be_opened_is_one_line(
    small_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sounddevice.py").write_text(SOUND_CARD.replace("!= 24000", "== 24000"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "sounddevice", raising=False)
    assert main(["say", "Hello", "--model", str(small_checkpoint), "--play"]) == 1
    sys.modules.pop("sounddevice")
    assert "the sound card cannot be opened: Invalid sample rate; use -o FILE" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["-o", "--timestamps", "--dump"])
def test_a_place_that_cannot_be_written_is_told_before_the_model_is_looked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    """There is no model: to hear of the place first, it must be looked at first."""
    (tmp_path / "is_one.json").mkdir()
    for place in (tmp_path / "none" / "a.json", tmp_path / "is_one.json"):
        rest = ["-o", str(tmp_path / "fine.wav")] if flag != "-o" else []
        command = ["say", "Hello", flag, str(place), *rest, "--format", "wav", "--model", str(tmp_path / "no-model")]
        assert main(command) == 1
        line = capsys.readouterr().err
        assert str(place) in line and len(line.splitlines()) == 1 and "no-model" not in line
    assert [p.name for p in tmp_path.iterdir()] == ["is_one.json"]
