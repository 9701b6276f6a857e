"""The verb: builds the load from the command line, runs it, and reports facts with machine and date."""

from __future__ import annotations

import argparse
import asyncio
import datetime
import os
import platform
import time

import aiohttp
import uvloop

from runtime.bench.arrivals import PROMPTS, calls, longer
from runtime.bench.clients import Target, metrics, speak
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
URL = "http://127.0.0.1:8089"
SERVER = (
    "tts_model_seconds_total", "tts_plan_seconds_total", "tts_network_cpu_seconds_total", "tts_audio_seconds_total",
    "tts_underruns_total",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("ttfa", "load", "soak"), help="calls one after another, at random, or chaos")
    parser.add_argument("--url", default=URL, help=f"base URL of the server (default: {URL})")
    parser.add_argument(
        "--protocol", choices=("gradium", "openai"), default="gradium", help="how it is spoken to (default: gradium)"
    )
    parser.add_argument("--key", default="bench", help="API key (default: bench)")
    parser.add_argument("--voice", default="", help="voice; empty lets the server choose")
    parser.add_argument("--count", type=int, default=30, help="calls to make (default: 30)")
    parser.add_argument("--rate", type=float, default=0.0, help="calls a second (default: ttfa 0.5, load 1)")
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
    whole, times = min(args.count, args.streams), min(args.minutes, args.pause_s)
    if whole < 1 or times <= 0 or min(args.rate, args.tokens_per_s, args.words) < 0:
        raise Usage("--count, --rate, --words, --tokens-per-s, --minutes, --streams and --pause-s must be positive")
    if args.protocol == "openai" and (args.tokens_per_s or args.what == "soak"):
        raise Usage("the OpenAI protocol takes a text whole", "use --protocol gradium")
    target = Target(
        args.url, args.protocol, args.key, args.voice, args.connection == "warm", args.tokens_per_s, not args.no_seeds
    )
    if args.what == "soak":
        facts = uvloop.run(
            soak(
                target, minutes=args.minutes, streams=args.streams, seed=args.seed, say=line.say, pause_s=args.pause_s
            )
        )
    else:
        facts = uvloop.run(_measure(args, target))
    facts = {
        "bench": args.what, "url": args.url, "protocol": args.protocol, "connection": args.connection,
        "text": f"{args.tokens_per_s:g} tokens/s" if args.tokens_per_s else "whole", "seed": args.seed,
        **facts, "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }  # fmt: skip
    line.fact(facts, _for_people(facts))
    if args.what != "soak" and not facts["heard"]:
        line.say(f"tts bench: no call was heard ({_flat(facts['errors'])}): does a server answer at {args.url}?")
    return 0 if facts.get("passed", True) and (facts.get("heard") or args.what == "soak") else 1


async def _measure(args: argparse.Namespace, target: Target) -> dict[str, object]:
    alone = args.what == "ttfa"
    rate = args.rate or (0.5 if alone else 1.0)
    prompts = longer(PROMPTS, args.words)
    plan = calls(args.count, rate=rate, seed=args.seed, even=alone, prompts=prompts)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
        before = await metrics(session, target, SERVER)
        start = time.monotonic() + 1.0
        takes: list[Take] = await asyncio.gather(*(speak(session, target, call, start) for call in plan))
        after = await metrics(session, target, SERVER)
    return {"rate": rate, **summary(takes), "server": _server(before, after)}


def _server(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """What the run cost the server, from its own metrics; empty for a server without them."""
    spent = {name: after[name] - before.get(name, 0.0) for name in after}
    model_s = spent.get("tts_model_seconds_total", 0.0)
    if not model_s:
        return {}
    plan_s, network_s = spent["tts_plan_seconds_total"], spent["tts_network_cpu_seconds_total"]
    return {
        "model_s": round(model_s, 3), "plan_over_model": round(plan_s / model_s, 4),
        "network_over_model": round(network_s / model_s, 4),
        "busy_s_per_audio_s": round((model_s + plan_s) / max(0.001, spent["tts_audio_seconds_total"]), 5),
        "underruns": spent["tts_underruns_total"],
    }  # fmt: skip


def _for_people(facts: dict[str, object]) -> str:
    return "\n".join(f"{name:24} {_flat(value)}" for name, value in facts.items())


def _flat(value: object) -> str:
    """Words for a value; a dash where nothing was measured."""
    if isinstance(value, dict):
        return "  ".join(f"{k} {_flat(v)}" for k, v in value.items()) or "–"
    return "–" if value is None else str(value)
