"""Owns the command line's frame: finding the verb, parsing, and turning every failure into one line and an exit code.

Exit codes: 0 done, 1 failed, 2 usage, 3 integrity, 4 unavailable, 130 interrupted. Each verb is a module of this
package; only the one that is called is imported, so that `bdn wait` in a container starts quickly.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn, cast

from bdn import config
from bdn.cli.console import Console
from bdn.cli.verb import Call, Verb
from bdn.errors import BdnError, Usage
from bdn.shortage import shortage

INTERRUPTED = 130
# What makes a verb need less memory.
LESS = {
    "mirror": "a smaller --mirror-window-bytes needs less",
    "agent": "a smaller --in-flight-bytes needs less",
}
# Every verb and the one line that `bdn --help` shows for it.
VERBS = {
    "demo": "the whole job on this machine: mirror, four nodes, one copy from the origin, first audio, a receipt",
    "mirror": "read a model from its source once and store it at the origin, in chunks under a manifest",
    "origin": "serve a mirrored directory over HTTP",
    "agent": "run this node: its store, its peers, its pulls",
    "pull": "bring a model onto this node, or into a directory",
    "wait": "return when the local agent has the model, verified",
    "run": "wait for the model, then become the given command",
    "status": "what the local agent holds, pulls and has moved",
    "ls": "models at the origin",
    "show": "one model's files, size and provenance",
    "diff": "what changed between two models, and what moving from one to the other costs",
    "simulate": "a rollout on simulated machines by this very code, against the other ways to do it",
    "verify": "read every byte of a model on disk again and compare it with its manifest",
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Usage(message, hint=f"see `{self.prog} --help`")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code and never raises for what a person can cause."""
    args = list(sys.argv[1:] if argv is None else argv)
    verb = args[0] if args and not args[0].startswith("-") else ""
    console = Console()
    try:
        return _dispatch(args, verb, console)
    except BdnError as why:
        return console.error(verb, str(why), why.exit_code)
    except KeyboardInterrupt:
        return console.error(verb, "interrupted", INTERRUPTED)
    except SystemExit as done:  # argparse's, after --help and --version
        return int(done.code or 0)
    except BrokenPipeError:
        # The reader (`| head`) has gone. Point stdout elsewhere, or the interpreter complains while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as why:
        if "--debug" in args and not isinstance(why, OSError):
            raise
        if (short := shortage(why, LESS.get(verb, ""))) is not None:
            return console.error(verb, str(short), short.exit_code)
        if isinstance(why, OSError):
            where = f" ({why.filename})" if why.filename else ""
            return console.error(verb, f"{why.strerror or why}{where}", 1)
        line = f"internal error: {type(why).__name__}: {why}: run it again with --debug and report it"
        return console.error(verb, line, 1)


def _dispatch(args: list[str], verb: str, console: Console) -> int:
    env = config.environment()
    if not verb:
        _top_parser().parse_args(args or ["--help"])
        return 0
    if verb not in VERBS:
        raise Usage(f"there is no verb {verb[:40]!r}", hint=f"there are: {', '.join(VERBS)}")
    module = cast(Verb, importlib.import_module(f"bdn.cli.{verb}"))
    parser = build_parser(verb, module)
    own, command = _split(args[1:]) if verb == "run" else (args[1:], [])
    parsed = parser.parse_args(own)
    parsed.command = command
    console.as_json, console.quiet = parsed.json, parsed.quiet
    config.check_environment(env)
    return module.run(Call(parsed, console, env, config.read_file(parsed, env)))


def _split(args: list[str]) -> tuple[list[str], list[str]]:
    """What stands before and after the first `--`: argparse's own way lets the command's flags become ours."""
    at = args.index("--") if "--" in args else len(args)
    return args[:at], args[at + 1 :]


def build_parser(verb: str, module: Verb) -> argparse.ArgumentParser:
    """The verb's whole command line: its own arguments, what every verb takes, and its settings."""
    examples = "examples:\n" + "\n".join(f"  {line}" for line in module.EXAMPLES.strip().splitlines())
    parser = _Parser(
        prog=f"bdn {verb}", description=f"{VERBS[verb]}.\n\n{examples}", allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    module.add_arguments(parser)
    every = parser.add_argument_group("every verb takes")
    every.add_argument("--json", action="store_true", help="facts as one JSON document on stdout")
    every.add_argument("--quiet", action="store_true", help="no words and no progress on stderr")
    every.add_argument("--config", metavar="FILE", help="YAML file of settings (BDN_CONFIG)")
    every.add_argument("--debug", action="store_true", help="show the traceback of an internal error")
    config.add_flags(parser, *module.GROUPS)
    return parser


def _top_parser() -> argparse.ArgumentParser:
    from bdn import VERSION

    width = max(map(len, VERBS), default=0)
    verbs = "\n".join(f"  {name.ljust(width)}  {about}" for name, about in VERBS.items())
    parser = _Parser(
        prog="bdn", usage="bdn VERB [options]", formatter_class=argparse.RawDescriptionHelpFormatter,
        description=f"Model weights on every node before the container starts.\n\nverbs:\n{verbs}",
        epilog="`bdn VERB --help` shows examples and settings. Exit codes: 0 done, 1 failed, 2 usage, 3 integrity, "
        "4 unavailable, 130 interrupted.",
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"bdn {VERSION}")
    return parser
