"""What a machine does not give a speech command is one line, however PyTorch words it."""

from __future__ import annotations

import errno
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from runtime.shortage import shortage


def test_what_pytorch_says_of_memory_is_understood() -> None:
    with pytest.raises(RuntimeError) as why:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert str(shortage(why.value)).startswith("not enough memory")
    full = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has …")
    assert str(shortage(full, "fewer --lanes need less")).startswith("the GPU has not enough memory: end something")


@pytest.mark.parametrize(("why", "said"), [
    (MemoryError(), "not enough memory"), (RuntimeError("can't start new thread"), "no more threads can be started"),
    (OSError(errno.EMFILE, "Too many open files"), "too many files and connections are open (`ulimit -n` is "),
    (ExceptionGroup("several", [ValueError(), MemoryError()]), "not enough memory"),
], ids=str)  # fmt: skip
def test_each_kind_is_one_line(why: BaseException, said: str) -> None:
    assert str(shortage(why)).startswith(said)


@pytest.mark.parametrize("why", [
    RuntimeError("mat1 and mat2 shapes cannot be multiplied"), ValueError("out of memory"), OSError(errno.EIO, "no"),
], ids=str)  # fmt: skip
def test_nothing_else_is_taken_for_a_shortage(why: BaseException) -> None:
    assert shortage(why) is None


def test_a_command_whose_libraries_do_not_fit_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "runtime.cli", "say", "hello", "--model", str(tmp_path), "-o", str(tmp_path / "x.wav")],
        capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (300_000 << 10, 300_000 << 10)),
    )  # fmt: skip
    line = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and line.startswith("tts say: not enough memory (`ulimit -v` is 300000: 307 MB): raise")
