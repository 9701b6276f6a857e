"""Owns the frame of the `tts` command: finding the verb, parsing, and turning every failure into one line and a code.

Exit codes: 0 done, 1 failed, 2 usage, 3 integrity, 4 unavailable, 130 interrupted. A verb is a module with EXAMPLES,
GROUPS of settings, `add_arguments` and `run`; only the one that is called is imported.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol, TypeVar, cast

from runtime import config
from runtime.errors import SpeechError, Usage
from runtime.shortage import shortage

INTERRUPTED = 130
# What makes a verb need less memory.
LESS = {
    "serve": "fewer --lanes need less, and so does --dtype int8",
    "say": "--dtype int8 needs less",
}
Group = TypeVar("Group")
# Every verb: its module, and the line that `tts --help` shows for it.
VERBS: dict[str, tuple[str, str]] = {
    "serve": ("runtime.serving", "serve speech over HTTP and WebSocket"),
    "say": ("runtime.say", "speak a text to a file, a pipe or the sound card"),
    "bench": ("runtime.bench.command", "measure a speech server: time to first sound, load, soak"),
    "make-checkpoint": ("runtime.make_checkpoint", "write a random checkpoint in the published layout"),
}


@dataclass(frozen=True)
class Call:
    """One command line, parsed: the verb's arguments and where the settings come from."""

    args: argparse.Namespace
    env: Mapping[str, str]
    file: Mapping[str, object]

    def settings(self, group: type[Group]) -> Group:
        return config.load(group, self.args, self.env, self.file)

    def fact(self, value: Mapping[str, object], text: str) -> None:
        """The command's result on stdout, as JSON or for people; on stderr where stdout carries sound."""
        out = sys.stderr if getattr(self.args, "output", None) == "-" else sys.stdout
        print(json.dumps(value, ensure_ascii=False, default=str) if self.args.json else text, file=out, flush=True)

    def say(self, words: str) -> None:
        if not self.args.quiet:
            print(words, file=sys.stderr, flush=True)


class Verb(Protocol):
    """The shape of a verb's module. `run` returns the exit code; typed errors become one line and theirs."""

    EXAMPLES: str
    GROUPS: tuple[type, ...]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, call: Call) -> int: ...


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Usage(message, f"see `{self.prog} --help`")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code and never raises for what a person can cause."""
    args = list(sys.argv[1:] if argv is None else argv)
    verb = args[0] if args and not args[0].startswith("-") else ""
    try:
        return _dispatch(args, verb)
    except SpeechError as why:
        return _failed(args, verb, str(why), why.exit_code)
    except KeyboardInterrupt:
        return _failed(args, verb, "interrupted", INTERRUPTED)
    except SystemExit as done:  # argparse's, after --help
        return int(done.code or 0)
    except BrokenPipeError:
        # The reader (`| head`) has gone. Point stdout elsewhere, or the interpreter complains while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as why:
        if "--debug" in args and not isinstance(why, OSError):
            raise
        if (short := shortage(why, LESS.get(verb, ""))) is not None:
            return _failed(args, verb, str(short), short.exit_code)
        if isinstance(why, OSError):
            where = f" ({why.filename})" if why.filename else ""
            return _failed(args, verb, f"{why.strerror or why}{where}", 1)
        line = f"internal error: {type(why).__name__}: {why}: run it again with --debug and report it"
        return _failed(args, verb, line, 1)


def _failed(args: Sequence[str], verb: str, line: str, exit_code: int) -> int:
    # A file name or a remote's words may be part of the line: one line it must stay, and no terminal escape may pass.
    clean = "".join(c if c.isprintable() else " " for c in line).strip()
    print(f"tts {verb}: {clean}" if verb.replace("-", "").isalpha() else f"tts: {clean}", file=sys.stderr, flush=True)
    if "--json" in args:
        print(json.dumps({"error": clean, "exit_code": exit_code}, ensure_ascii=False), flush=True)
    return exit_code


def _dispatch(args: list[str], verb: str) -> int:
    env = config.environment()
    if not verb:
        _top_parser().parse_args(args or ["--help"])
        return 0
    if verb not in VERBS:
        raise Usage(f"there is no verb {verb[:40]!r}", f"there are: {', '.join(VERBS)}")
    module = cast(Verb, importlib.import_module(VERBS[verb][0]))
    parsed = build_parser(verb, module).parse_args(args[1:])
    config.check_environment(env)
    return module.run(Call(parsed, env, config.read_file(parsed, env)))


def build_parser(verb: str, module: Verb) -> argparse.ArgumentParser:
    """The verb's whole command line: its own arguments, what every verb takes, and its settings."""
    examples = "examples:\n" + "\n".join(f"  {line}" for line in module.EXAMPLES.strip().splitlines())
    parser = _Parser(
        prog=f"tts {verb}", description=f"{VERBS[verb][1]}.\n\n{examples}", allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    module.add_arguments(parser)
    every = parser.add_argument_group("every verb takes")
    every.add_argument("--json", action="store_true", help="facts as one JSON document on stdout")
    every.add_argument("--quiet", action="store_true", help="no words and no progress on stderr")
    every.add_argument("--config", metavar="FILE", help="YAML file of settings (TTS_CONFIG)")
    every.add_argument("--debug", action="store_true", help="show the traceback of an internal error")
    config.add_flags(parser, *module.GROUPS)
    return parser


def _top_parser() -> argparse.ArgumentParser:
    from runtime import VERSION

    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {name.ljust(width)}  {about}" for name, (_, about) in VERBS.items())
    parser = _Parser(
        prog="tts", usage="tts VERB [options]", formatter_class=argparse.RawDescriptionHelpFormatter,
        description=f"Streaming speech from checkpoints in the published layout.\n\nverbs:\n{verbs}",
        epilog="`tts VERB --help` shows examples and settings. Exit codes: 0 done, 1 failed, 2 usage, 3 integrity, "
        "4 unavailable, 130 interrupted.",
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"tts {VERSION}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
