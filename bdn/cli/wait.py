"""`bdn wait`: for an init container or a script."""

from __future__ import annotations

import argparse

from bdn.cli.local import add_wait_arguments, obtain
from bdn.cli.verb import Call
from bdn.config import ClientSettings

EXAMPLES = """
bdn wait kyutai/tts-1.6b-en_fr
bdn wait voice:prod --timeout-s 600 --agent-wait-s 60
"""
GROUPS = (ClientSettings,)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_wait_arguments(parser)


def run(call: Call) -> int:
    """Prints the model's directory. The agent is asked for the model, so nobody else has to."""
    ready = obtain(call)
    call.console.fact(ready, str(ready["path"]))
    return 0
