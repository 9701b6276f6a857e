"""Owns what a verb is: a module of this package with examples, the setting groups it reads, arguments and a `run`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from bdn import config
from bdn.cli.console import Console

Group = TypeVar("Group")


@dataclass(frozen=True)
class Call:
    """One command line, parsed: the verb's arguments, where the settings come from, and where words go."""

    args: argparse.Namespace
    console: Console
    env: Mapping[str, str]
    file: Mapping[str, object]

    def settings(self, group: type[Group]) -> Group:
        return config.load(group, self.args, self.env, self.file)


class Verb(Protocol):
    """The shape of `bdn/cli/<verb>.py`. `run` returns the exit code; typed errors become one line and theirs."""

    EXAMPLES: str
    GROUPS: tuple[type, ...]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, call: Call) -> int: ...
