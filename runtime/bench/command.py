"""The verb: builds the load from the command line, runs it, and reports facts with machine and date."""

from __future__ import annotations

import argparse
import asyncio
import datetime
import math
import os
import platform
import re
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

import aiohttp
import uvloop

from runtime.bench.arrivals import PROMPTS, calls, longer
from runtime.bench.clients import CALLS, Target, metrics, metrics_if_there, speak
from runtime.bench.meter import Take, summary
from runtime.bench.soak import soak
from runtime.cli import Call as CommandLine
from runtime.errors import Usage

EXAMPLES = """
tts bench ttfa --url http://127.0.0.1:8089 --count 50
tts bench ttfa --url http://127.0.0.1:8089 --tokens-per-s 30 --connection cold
tts bench load --url http://127.0.0.1:8089 --rate 2 --count 200 --json
tts bench load --url http://127.0.0.1:8089 --rate 30 --count 17 --words 60   # all at once, for as long
tts bench load --url https://api.openai.com --protocol openai --key "$OPENAI_API_KEY" --rate 0.2
tts bench soak --url http://127.0.0.1:8089 --minutes 30
"""
GROUPS: tuple[type, ...] = ()
PAUSE_S = 1.2  # between calls one after another: a connection made before its call has the time it waits for
URL = "http://127.0.0.1:8089"
LOST = {"connection", "closed", "timeout"}  # what a call ends with that nobody answered
SERVER = (
    "tts_model_seconds_total", "tts_plan_seconds_total", "tts_network_cpu_seconds_total",
    "tts_coding_cpu_seconds_total", "tts_audio_seconds_total", "tts_underruns_total", "tts_first_sound_least_seconds",
    "tts_streams_capacity", "process_cpu_seconds_total",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("ttfa", "load", "soak"), help="calls one after another, at random, or chaos")
    parser.add_argument("--url", default=URL, help=f"base URL of the server (default: {URL})")
    parser.add_argument(
        "--protocol", choices=tuple(CALLS), default="gradium", help="how it is spoken to (default: gradium)"
    )
    parser.add_argument("--format", default="", help="16-bit sound, as pcm_24000; empty: what clients ask for")
    parser.add_argument("--key", default="bench", help="API key (default: bench)")
    parser.add_argument("--voice", default="", help="voice; empty lets the server choose")
    parser.add_argument("--count", type=int, default=30, help="calls to make (default: 30)")
    parser.add_argument("--rate", type=float, default=None, help="calls a second (default: load 1; ttfa: in turn)")
    parser.add_argument("--words", type=int, default=0, help="least words of a call's text; 0: the prompts as they are")
    parser.add_argument("--tokens-per-s", type=float, default=0.0, help="text as an LLM sends it; 0: whole at once")
    parser.add_argument("--connection", choices=("warm", "cold"), default="warm", help="made before a call, or in it")
    parser.add_argument("--seed", type=int, default=1, help="of the load; also sent to the server for each call")
    parser.add_argument("--no-seeds", action="store_true", help="send no seeds, for servers that refuse them")
    parser.add_argument("--minutes", type=float, default=1.0, help="length of a soak (default: 1)")
    parser.add_argument("--streams", type=int, default=4, help="calls of a soak at a time (default: 4)")
    parser.add_argument("--pause-s", type=float, default=0.25, help="mean pause between a soak's calls (default: 0.25)")


def run(line: CommandLine) -> int:
    args = line.args
    check_numbers(args)
    check_url(args.url)
    if args.protocol == "openai" and args.tokens_per_s:
        raise Usage("the OpenAI protocol takes a text whole", "use --protocol gradium")
    if args.format and (args.protocol == "openai" or not re.fullmatch(r"pcm(_\d+)?", args.format)):
        raise Usage(f"--format {args.format} cannot be measured", "such as pcm_24000, on a WebSocket")
    if args.protocol != "gradium" and args.what == "soak":
        raise Usage("a soak speaks Gradium's protocol", "use --protocol gradium")
    target = Target(
        args.url, args.protocol, args.key, args.voice, args.connection == "warm", args.tokens_per_s, not args.no_seeds,
        args.format,
    )  # fmt: skip
    if args.what == "soak":
        facts = uvloop.run(
            soak(
                target, minutes=args.minutes, streams=args.streams, seed=args.seed, say=line.say, pause_s=args.pause_s
            )
        )
    else:
        facts = uvloop.run(measure(args, target))
    facts = {
        "bench": args.what, "url": args.url, "protocol": args.protocol, "format": args.format or None,
        "connection": args.connection,
        "text": f"{args.tokens_per_s:g} tokens/s" if args.tokens_per_s else "whole", "seed": args.seed,
        **facts, "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }  # fmt: skip
    line.fact(facts, _for_people(facts))
    if args.what != "soak" and not facts["heard"]:
        line.say(f"tts bench: no call was heard ({_flat(facts['errors'])}): does a server answer at {args.url}?")
    elif not facts["server_answers"]:
        line.say(f"tts bench: the server at {args.url} has gone; the figures are of what came before")
    return exit_code(facts)


def check_numbers(args: argparse.Namespace) -> None:
    """Raises Usage for a number that cannot be meant."""
    for name in ("count", "rate", "minutes", "streams", "pause_s"):
        value = getattr(args, name)
        if value is not None and not 0 < value < math.inf:
            raise Usage(f"--{name.replace('_', '-')} must be positive, is {value:g}")
    for name in ("words", "tokens_per_s"):
        if not 0 <= getattr(args, name) < math.inf:
            raise Usage(f"--{name.replace('_', '-')} must not be negative, is {getattr(args, name):g}")


def check_url(text: str) -> None:
    """Raises Usage for what no server can be reached by."""
    try:
        parts = urlsplit(text)
        fit = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        fit = False
    if not fit or any(c.isspace() for c in text):
        raise Usage(f"--url {text} is no URL of a server", f"such as {URL}")


def exit_code(facts: Mapping[str, object]) -> int:
    """0 for a run that says something of the server: it was heard, and was there to the end. Refusals are answers."""
    if "passed" in facts:
        return 0 if facts["passed"] else 1
    errors = facts["errors"]
    assert isinstance(errors, dict)
    return 0 if facts["heard"] and facts["server_answers"] and not LOST & errors.keys() else 1


async def measure(args: argparse.Namespace, target: Target) -> dict[str, object]:
    alone = args.what == "ttfa"
    rate = (0.0 if alone else 1.0) if args.rate is None else args.rate
    prompts = longer(PROMPTS, args.words)
    plan = calls(args.count, rate=rate or 1.0, seed=args.seed, even=alone, prompts=prompts)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
        before = await metrics(session, target, SERVER)
        start = time.monotonic() + 1.0
        if rate:
            takes: list[Take] = await asyncio.gather(*(speak(session, target, call, start) for call in plan))
        else:
            takes = [await speak(session, target, call, time.monotonic() + PAUSE_S - call.due_s) for call in plan]
        after = await metrics_if_there(session, target, SERVER)
    return {
        "rate": rate or None, **summary(takes), "server": _server(before, after or {}),
        "server_answers": after is not None,
    }  # fmt: skip


def _server(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """What the run cost the server, from its own metrics; empty for a server without them."""
    spent = {name: after[name] - before.get(name, 0.0) for name in after}
    model_s = spent.get("tts_model_seconds_total", 0.0)
    if not model_s:
        return {}
    plan_s, network_s = spent["tts_plan_seconds_total"], spent["tts_network_cpu_seconds_total"]
    coding_s = spent.get("tts_coding_cpu_seconds_total", 0.0)
    audio_s = max(0.001, spent["tts_audio_seconds_total"])
    return {
        "model_s": round(model_s, 3), "plan_over_model": round(plan_s / model_s, 4),
        "network_over_model": round(network_s / model_s, 4), "coding_over_model": round(coding_s / model_s, 4),
        "plan_ms_per_audio_s": round(plan_s / audio_s * 1e3, 4),
        "network_ms_per_audio_s": round(network_s / audio_s * 1e3, 4),
        "coding_ms_per_audio_s": round(coding_s / audio_s * 1e3, 4),
        "busy_s_per_audio_s": round((model_s + plan_s) / audio_s, 5),
        "cpu_s_per_audio_s": round(spent.get("process_cpu_seconds_total", 0.0) / audio_s, 5),
        "capacity": after.get("tts_streams_capacity", 0.0),
        "underruns": spent["tts_underruns_total"],
        "first_sound_least_ms": round(after.get("tts_first_sound_least_seconds", 0.0) * 1e3, 2),
    }  # fmt: skip


def _for_people(facts: dict[str, object]) -> str:
    return "\n".join(f"{name:24} {_flat(value)}" for name, value in facts.items())


def _flat(value: object) -> str:
    """Words for a value; a dash where nothing was measured."""
    if isinstance(value, dict):
        return "  ".join(f"{k} {_flat(v)}" for k, v in value.items()) or "–"
    return "–" if value is None else str(value)
