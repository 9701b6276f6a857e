"""`bdn run`: hold a command back until its model is here, then become it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import NoReturn

from bdn.cli.local import add_wait_arguments, obtain
from bdn.cli.verb import Call
from bdn.config import ClientSettings
from bdn.errors import Invalid, Usage

EXAMPLES = """
bdn run voice -- tts say "Hello." --model {} -o hello.wav
bdn run kyutai/tts-1.6b-en_fr -- python serve.py      # reads BDN_MODEL_DIR
"""
GROUPS = (ClientSettings,)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_wait_arguments(parser)
    parser.usage = "bdn run REF [options] -- CMD…"
    parser.epilog = "{} in an argument of CMD and BDN_MODEL_DIR in its environment are the model's directory."


def run(call: Call) -> int:
    """Never returns on success: signals, exit code and standard streams are then the command's own."""
    if not call.args.command:
        raise Usage("no command", hint="write it after --, as in `bdn run REF -- tts say …`")
    ready = obtain(call)
    become(call.args.command, str(ready["path"]))


def become(command: Sequence[str], directory: str) -> NoReturn:
    """Replace this process. Raises Invalid when there is no such program."""
    words = [word.replace("{}", directory) for word in command]
    try:
        os.execvpe(words[0], words, {**os.environ, "BDN_MODEL_DIR": directory})
    except OSError as why:
        raise Invalid(f"cannot run {words[0]}: {why.strerror}", hint="check the command after --") from None
