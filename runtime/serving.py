"""`tts serve`: the edge that puts a model behind the server and turns signals into draining; torch comes in here."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
import time
from collections.abc import Coroutine

import uvloop

from runtime.cli import Call
from runtime.config import ModelSettings, ServeSettings, SpeechSettings
from runtime.errors import SpeechError
from runtime.port import Engine
from runtime.serve.app import Server

EXAMPLES = """
tts serve --model MODEL --keyless true
tts serve --model MODEL --keys keys.yaml --host 0.0.0.0 --port 8089 --lanes 32
TTS_MODEL=MODEL TTS_KEYLESS=true tts serve --voice-aliases 'support=anna'
"""
GROUPS = (ModelSettings, ServeSettings, SpeechSettings)
# Containers made before the youngest are looked through. Streams leave few cycles behind, and 700 are made in a frame.
YOUNG_MAX = 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Everything is a setting."""


def run(call: Call) -> int:
    model, settings, speech = call.settings(ModelSettings), call.settings(ServeSettings), call.settings(SpeechSettings)

    def make_engine() -> Engine:
        from runtime.checkpoint import start  # torch takes a second to import: probes are answered meanwhile

        engine = start(model)
        leave_to_live()
        return engine

    server = Server(settings, make_engine, default_voice=speech.voice)
    return uvloop.run(serve_until_signal(server, call))


def leave_to_live() -> None:
    """Takes what there is by now out of the garbage collector's sight: it lives as long as the process.

    A full collection looked at 190,000 objects, most of them PyTorch's, and stopped every thread for 40 ms.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_MAX)


async def serve_until_signal(server: Server, call: Call) -> int:
    """Serves until SIGTERM or SIGINT, drains, and ends; a second signal cuts the drain short."""
    began = time.monotonic()
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: _reload(server, call))
    try:
        await server.start()
    except OSError as why:
        where = f"{server.settings.host}:{server.settings.port}"
        reason = os.strerror(why.errno) if why.errno and why.errno > 0 else why.strerror or str(why)
        raise SpeechError(f"cannot listen on {where}: {reason}; see --port and --host") from None
    call.say(f"listening on http://{server.settings.host}:{server.port}, warming up")
    try:
        if await _unless(stopping, server.warm()):
            costs = server.costs
            assert costs
            facts = {
                "url": f"http://{server.settings.host}:{server.port}",
                "capacity": server.admission.capacity,
                "ready_s": round(time.monotonic() - began, 3),
                "step_fixed_ms": round(costs.full.fixed_s * 1e3, 3),
                "step_lane_ms": round(costs.full.lane_s * 1e3, 3),
                "lead_fixed_ms": round(costs.lead.fixed_s * 1e3, 3),
                "lead_lane_ms": round(costs.lead.lane_s * 1e3, 3),
            }
            call.fact(facts, f"ready after {facts['ready_s']} s: {facts['capacity']} streams at {facts['url']}")
            await stopping.wait()
        stopping.clear()
        call.say(f"draining: {server.admission.active} streams; again to stop at once")
        await _unless(stopping, server.drain())
    finally:
        await server.stop()
    return 0


async def _unless(event: asyncio.Event, work: Coroutine[object, object, object]) -> bool:
    """Whether the work was done before the event. Raises what the work raised."""
    task = asyncio.create_task(work)
    waiter = asyncio.create_task(event.wait())
    await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
    if task.done():
        task.result()
        return True
    task.cancel()
    return False


def _reload(server: Server, call: Call) -> None:
    try:
        server.reload_keys()
        call.say("keys read again")
    except SpeechError as why:
        call.say(f"keys not changed: {why}")
