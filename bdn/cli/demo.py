"""`bdn demo`: the main job, end to end, on this machine."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

from bdn.cli.console import Bars, table
from bdn.cli.verb import Call
from bdn.config import OriginSettings, ServeSettings
from bdn.demo import TEXT, Demo, Outlet, Story
from bdn.errors import Invalid, Usage
from bdn.receipt import Receipt, Wave
from bdn.rollout import first_error
from bdn.sizes import size_text

EXAMPLES = """
bdn demo
bdn demo --text "Good morning." --json
bdn demo --model ./a-model --no-speech --kill          # one's own directory; one node dies while it pulls
bdn demo --origin s3://bucket/prefix --endpoint http://127.0.0.1:8333
"""
GROUPS = (OriginSettings, ServeSettings)
NODES_MAX = 32  # Each is a process of some 60 MB; beyond that a machine measures its own scheduler.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--work", default=".work/demo", metavar="DIR", help="where receipt and sound go (.work/demo)")
    parser.add_argument("--nodes", type=int, default=4, metavar="N", help="nodes in each wave (4)")
    parser.add_argument("--text", default=TEXT, metavar="TEXT", help="what the nodes say")
    parser.add_argument("--model", default="", metavar="DIR", help="a directory instead of the demo voice")
    parser.add_argument("--no-speech", action="store_true", help="deliver only, start no speech process")
    parser.add_argument("--no-warm", action="store_true", help="leave the second wave out")
    parser.add_argument("--kill", action="store_true", help="end one node with SIGKILL while it pulls")


def run(call: Call) -> int:
    """The receipt is the last thing on stdout. Whatever happens, no process is left."""
    args = call.args
    if not 1 <= args.nodes <= NODES_MAX:
        raise Usage(f"--nodes is from 1 to {NODES_MAX}")
    if args.kill and args.nodes < 2:
        raise Usage("--kill needs --nodes 2 or more: somebody must be left to finish")
    if args.model and not Path(args.model).is_dir():
        raise Invalid(f"there is no directory {args.model}", hint="name one that holds a model")
    story = Story(
        Path(args.work).absolute(), args.nodes, args.text, args.model and str(Path(args.model).absolute()),
        speech=not args.no_speech, warm=not args.no_warm, kill=args.kill, origin=call.settings(OriginSettings),
        origin_bytes_per_s=call.settings(ServeSettings).origin_bytes_per_s,
    )  # fmt: skip
    with call.console.bars() as bars:
        demo = Demo(story, Outlet(call.console.say, lambda label: _bar(bars, label)), call.env)
        receipt = asyncio.run(_interruptible(demo))
    call.console.fact(receipt.json(), text(receipt))
    return 0


async def _interruptible(demo: Demo) -> Receipt:
    """SIGTERM ends the run as Ctrl+C does: children first."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await demo.run()
    except BaseExceptionGroup as group:
        raise first_error(group) from None
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _bar(bars: Bars, label: str) -> Callable[[int, int], None]:
    return bars.add(label).update


def text(r: Receipt) -> str:
    """The receipt for people."""
    lines = [
        f"{r.model['ref']} ({r.model['about']}): {size_text(float(str(r.model['bytes'])))} in {r.model['files']} files",
        "", *_wave_lines("cold", r.cold), *(_wave_lines("warm", r.warm) if r.warm else []), "",
        "seconds: " + ", ".join(f"{k.replace('_', ' ')} {v:.2f}" for k, v in r.phases_s.items()),
    ]  # fmt: skip
    if r.first_audio_s is not None:
        lines.append(f"first audio on the last node {r.first_audio_s:.2f} s after all were asked: {r.wav}")
    return "\n".join([*lines, *r.notes, f"receipt: {r.report_html} and {r.report_json}"])


def _wave_lines(name: str, wave: Wave) -> list[str]:
    tiers = wave.bytes_by_tier
    rows = [(n.name, *(size_text(n.link_bytes(t)) for t in ("origin", "peer", "nvme")), n.state) for n in wave.nodes]
    head = (
        f"{name}: origin sent {size_text(wave.origin_bytes)}, {wave.origin_copies:.2f}x the model; "
        f"peers {size_text(tiers['peer'])}; {len(wave.nodes)} nodes in {wave.seconds:.2f} s"
    )
    return [head, *("  " + line for line in table(("NODE", "ORIGIN", "PEER", "NVME", "STATE"), rows).splitlines())]
