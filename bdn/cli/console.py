"""Owns what a person sees: facts on stdout (text, or one JSON document with --json), words and progress on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TextIO

from rich.console import Console as Terminal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from bdn.sizes import size_text

LOG_STEP = 0.25  # Without a terminal a transfer writes a line each quarter: enough to see it live, few enough to log.


class Bar(Protocol):
    """One transfer's progress, in bytes."""

    def update(self, done: int, total: int) -> None: ...


class Bars(Protocol):
    """Several transfers shown together."""

    def add(self, label: str) -> Bar: ...


@dataclass
class Console:
    """One command's outlets. `quiet` silences words and progress, never facts and never errors."""

    as_json: bool = False
    quiet: bool = False
    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)

    def fact(self, value: object, text: str | None = None) -> None:
        """The command's result: `value` as JSON, or `text` (by default one `key: value` line each) for people."""
        if self.as_json:
            line = json.dumps(value, ensure_ascii=False, default=str)
        elif text is not None:
            line = text
        elif isinstance(value, Mapping):
            line = "\n".join(f"{k}: {v}" for k, v in value.items())
        else:
            line = str(value)
        print(line, file=self.out, flush=True)

    def say(self, words: str) -> None:
        if not self.quiet:
            print(words, file=self.err, flush=True)

    def error(self, verb: str, line: str, exit_code: int) -> int:
        """One line on stderr, with --json an object on stdout too. Returns the exit code."""
        # A remote's words may be part of the line: one line it must stay, and no terminal escape may pass.
        clean = "".join(c if c.isprintable() else " " for c in line).strip()
        name = f"bdn {verb}" if verb.isalpha() else "bdn"
        print(f"{name}: {clean}", file=self.err, flush=True)
        if self.as_json:
            print(json.dumps({"error": clean, "exit_code": exit_code}, ensure_ascii=False), file=self.out, flush=True)
        return exit_code

    @contextmanager
    def bars(self) -> Iterator[Bars]:
        """Progress bars on a terminal, quarter-by-quarter lines elsewhere, nothing when quiet."""
        if self.quiet:
            yield _Silent()
        elif not self.err.isatty():
            yield _Lines(self)
        else:
            columns = (
                TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
                TimeRemainingColumn(),
            )  # fmt: skip
            with Progress(*columns, console=Terminal(file=self.err), transient=False) as progress:
                yield _Rich(progress)


class _Silent:
    def add(self, label: str) -> Bar:
        return self

    def update(self, done: int, total: int) -> None:
        pass


@dataclass
class _Lines:
    console: Console

    def add(self, label: str) -> Bar:
        return _Line(self.console, label)


@dataclass
class _Line:
    console: Console
    label: str
    said: float = -1.0

    def update(self, done: int, total: int) -> None:
        part = done / total if total else 1.0
        if part >= self.said + LOG_STEP or (part >= 1.0 > self.said):
            self.said = part
            self.console.say(f"{self.label}: {part:.0%} of {size_text(total)}")


@dataclass
class _Rich:
    progress: Progress

    def add(self, label: str) -> Bar:
        return _RichBar(self.progress, self.progress.add_task(label, total=None))


@dataclass
class _RichBar:
    progress: Progress
    task: TaskID

    def update(self, done: int, total: int) -> None:
        self.progress.update(self.task, completed=done, total=total)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns aligned by their widest cell; numbers to the right. Plain text, so that it pipes and greps."""
    cells = [[str(c) for c in row] for row in (head, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    right = [bool(rows) and all(isinstance(row[i], int | float) for row in rows) for i in range(len(head))]
    lines = []
    for row in cells:
        padded = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)
