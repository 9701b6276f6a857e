"""The server: wires engine, hub and protocols together, listens, drains, and ends. All policy is elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import ipaddress
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
from aiohttp import web

from runtime.admission import Admission, capacity
from runtime.audio import encoder
from runtime.config import ServeSettings
from runtime.errors import Usage
from runtime.port import Engine
from runtime.scheduler import Costs
from runtime.serve import moshi
from runtime.serve.catalogue import Catalogue, check_state
from runtime.serve.cloning import Cloner
from runtime.serve.conductor import Conductor
from runtime.serve.device import Device
from runtime.serve.door import Door, bound_send_buffer, errors_spelled, log
from runtime.serve.gradium import GradiumWire
from runtime.serve.gradium_api import GradiumApi
from runtime.serve.hub import EngineFacts, Hub, Refused
from runtime.serve.keys import Keyring, read_keys
from runtime.serve.meters import Meters
from runtime.serve.native import NativeWire
from runtime.serve.socket import Conversation, response
from runtime.serve.speech_http import SpeechHttp
from runtime.serve.traffic import Command, Happening
from runtime.serve.warmup import warm_up
from runtime.serve.wire import Setup, Wire

SWEEP_S = 0.5
# Formats whose first use loads a library: done before ready, so that nobody's first call pays for it.
WARM_FORMATS = ("pcm_48000", "opus", "mp3", "ulaw_8000")
FRONT = """This is a speech server (tts serve).

/openapi.yaml    its HTTP interfaces
/asyncapi.yaml   its WebSockets
/livez /readyz   whether it lives, and takes calls
/metrics         counts and times, for Prometheus

POST /v1/tts {"text": "Hello there."} speaks; the interfaces take an API key as x-api-key or Authorization: Bearer.
"""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class _Parts:
    """What exists once the engine is warm."""

    hub: Hub
    speech: SpeechHttp
    gradium: GradiumApi
    catalogue: Catalogue


class Server:
    """`make_engine` runs on the device thread. `default_voice` is for clients that name none."""

    def __init__(
        self,
        settings: ServeSettings,
        make_engine: Callable[[], Engine],
        *,
        default_voice: str = "",
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        _check_keyless(settings)
        if settings.state:
            check_state(Path(settings.state))
        self.settings, self._make_engine, self._default_voice, self._clock = settings, make_engine, default_voice, clock
        self._door = Door(self._keyring(), wall_clock)
        self._device = Device(self._conduct, clock=clock, deliver=self._deliver, ready=self._is_ready)
        self.meters = Meters(lambda: self._device.tally)
        self.admission = Admission(capacity=0, reserve=settings.reserve)
        self._engine: Engine | None = None
        self.costs: Costs | None = None
        self._parts: _Parts | None = None
        self._warm: asyncio.Future[None] | None = None
        self._conversations: dict[Conversation, None] = {}
        self._runner = web.AppRunner(
            self._app(), handle_signals=False, access_log=None, handler_cancellation=True, shutdown_timeout=1.0,
            logger=log(),
        )
        self._sweeper: asyncio.Task[None] | None = None
        self.port = 0

    async def start(self) -> None:
        """Listens at once, so that probes get an answer; `warm` says when callers do."""
        self._warm = asyncio.get_running_loop().create_future()
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.settings.host, self.settings.port, backlog=1024)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self._device.start()
        self._sweeper = asyncio.create_task(self._sweep())

    async def warm(self) -> None:
        """Returns when the first caller will be served as fast as the hundredth; raises what prevented it."""
        assert self._warm
        await asyncio.shield(self._warm)

    async def drain(self) -> bool:
        """Lets nobody in any more and waits for the streams there are. False: some were cut at the limit."""
        self.admission.draining = True
        self.meters.ready.set(0)
        if self._parts is None:
            return True
        hub = self._parts.hub
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_s or 0.001):
                await hub.empty.wait()
            return True
        hub.fail_all("draining", "the server is shutting down")
        return False

    async def stop(self) -> None:
        """Says goodbye on every socket and ends the thread."""
        goodbyes = [c.goodbye("draining", "the server is shutting down") for c in self._conversations]
        await asyncio.gather(*goodbyes, return_exceptions=True)
        if self._sweeper:
            self._sweeper.cancel()
        await self._runner.cleanup()
        await self._device.stop()

    def reload_keys(self) -> None:
        """Reads the key file again. A broken file changes nothing and raises Usage."""
        self._door.keyring = self._keyring()

    @property
    def hub(self) -> Hub:
        return self._ready_parts().hub

    def _keyring(self) -> Keyring:
        keys = read_keys(Path(self.settings.keys)) if self.settings.keys else ()
        return Keyring(keys, keyless=self.settings.keyless)

    def _conduct(self) -> Conductor:
        """On the device thread: load, warm up, and only then be ready."""
        self._engine = engine = self._make_engine()
        self.costs = warm_up(engine, self._clock)
        return Conductor(engine, self.costs, self._clock, trim=self.settings.trim_silence)

    def _is_ready(self, failure: BaseException | None) -> None:
        assert self._warm
        if failure is None:
            try:
                self._open_for_callers()
            except BaseException as why:
                failure = why
        if not self._warm.done():
            if failure is None:
                self._warm.set_result(None)
            else:
                self._warm.set_exception(failure)
        elif failure is not None and self._parts:
            self.admission.warm = False
            self.meters.ready.set(0)
            self._parts.hub.fail_all("internal", f"the engine stopped: {type(failure).__name__}")

    def _open_for_callers(self) -> None:
        engine, costs = self._engine, self.costs
        assert engine and costs
        self._set_capacity(costs)
        catalogue = Catalogue(
            engine.voices, default=self._default_voice, aliases=self.settings.voice_aliases,
            state=Path(self.settings.state) if self.settings.state else None,
        )  # fmt: skip
        facts = EngineFacts(
            engine.sample_rate, engine.frame_samples, engine.voices, engine.text_feed, engine.clone, engine.forget
        )
        hub = Hub(self.settings, facts, catalogue, self.admission, self.meters, self._send, self._clock)
        for name in WARM_FORMATS:
            warmed = encoder(name, rate_in=engine.sample_rate)
            warmed.encode(np.zeros(engine.frame_samples, np.float32))
            warmed.finish()
        cloner = Cloner(catalogue, facts)
        cloner.restore()
        gradium = GradiumApi(catalogue, cloner, self._door, self.meters)
        self._parts = _Parts(hub, SpeechHttp(hub, self._door), gradium, catalogue)
        self.admission.warm = True
        self.meters.ready.set(0 if self.admission.draining else 1)

    def _set_capacity(self, costs: Costs) -> None:
        """As many streams as fit by these costs and the length that streams have, or as many as the setting says."""
        assert self._engine
        self.costs = costs
        lanes, settings, gate = self._engine.lanes, self.settings, self.admission
        delay, first = self._engine.delay_steps, self._engine.first_frame_step
        gate.capacity = min(settings.streams_max, lanes) if settings.streams_max else capacity(
            costs.full, frame_s=costs.frame_s, load_max=settings.load_max, lanes=lanes,
            joining_s=costs.joining_s(delay, first, gate.stream_s),
        )  # fmt: skip
        self.meters.capacity.set(gate.capacity)
        self.meters.least.set(costs.first_sound_s(delay, first))

    def _send(self, *commands: Command) -> None:
        self._device.send(*commands)

    def _deliver(self, happenings: list[Happening]) -> None:
        if self._parts:
            self._parts.hub.deliver(happenings)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self.meters.loop_time.note()
            if self._parts:
                self._parts.hub.sweep()
                if costs := self._device.costs:
                    self._set_capacity(costs)

    def _app(self) -> web.Application:
        app = web.Application(
            middlewares=[errors_spelled], client_max_size=self.settings.message_bytes_max
        )
        app.add_routes([
            web.get("/", self._front),
            web.get("/livez", self._livez), web.get("/readyz", self._readyz), web.get("/metrics", self._metrics),
            web.get("/openapi.yaml", self._document), web.get("/asyncapi.yaml", self._document),
            web.get("/api/speech/tts", self._gradium_socket),
            web.get("/v1/tts", self._native_socket),
            web.get("/api/tts_streaming", self._moshi_socket),
            web.get("/api/modules_info", self._modules), web.get("/api/build_info", self._modules),
            web.post("/api/post/speech/tts", self._later(lambda p: p.speech.gradium)),
            web.post("/v1/audio/speech", self._later(lambda p: p.speech.openai)),
            web.post("/v1/tts", self._later(lambda p: p.speech.native)),
            web.post("/api/tts_streaming", self._later(lambda p: p.speech.moshi)),
            web.get("/v1/voices", self._voices), web.get("/v1/audio/voices", self._voices),
            web.get("/v1/models", self._models),
        ])  # fmt: skip
        for route in GradiumApi.paths():
            app.router.add_route(route.method, route.path, self._later(_gradium_method(route.name)))
        return app

    def _ready_parts(self) -> _Parts:
        if self._parts is None:
            raise Refused("warming", "the server is still warming up", 2.0, None)
        return self._parts

    def _later(self, pick: Callable[[_Parts], Handler]) -> Handler:
        async def handler(request: web.Request) -> web.StreamResponse:
            self._door.enter(request)
            return await pick(self._ready_parts())(request)

        return handler

    async def _socket(self, request: web.Request, wire: Wire, first: Setup | None = None) -> web.StreamResponse:
        key = self._door.enter(request)
        hub = self._ready_parts().hub
        if len(self._conversations) >= self.settings.sockets_max:
            raise Refused("at_capacity", f"{len(self._conversations)} sockets are open", 1.0, None)
        ws = response(hub, wire)
        await ws.prepare(request)
        bound_send_buffer(request)
        conversation = Conversation(hub, wire, key, ws, request)
        self._conversations[conversation] = None
        self.meters.sockets.set(len(self._conversations))
        try:
            await conversation.run(first)
        finally:
            del self._conversations[conversation]
            self.meters.sockets.set(len(self._conversations))
        return ws

    async def _gradium_socket(self, request: web.Request) -> web.StreamResponse:
        return await self._socket(request, GradiumWire())

    async def _native_socket(self, request: web.Request) -> web.StreamResponse:
        return await self._socket(request, NativeWire())

    async def _moshi_socket(self, request: web.Request) -> web.StreamResponse:
        setup, wire = moshi.setup_of(request.query)
        return await self._socket(request, wire, setup)

    async def _front(self, request: web.Request) -> web.Response:
        """For whoever opens the address in a browser: what this is, and where to look."""
        return web.Response(text=FRONT)

    async def _livez(self, request: web.Request) -> web.Response:
        stuck = self._device.stuck(self.settings.stuck_s)
        return web.json_response({"live": not stuck}, status=503 if stuck else 200)

    async def _readyz(self, request: web.Request) -> web.Response:
        gate = self.admission
        ready = gate.warm and not gate.draining
        body = {
            "ready": ready, "warm": gate.warm, "draining": gate.draining, "active": gate.active,
            "capacity": gate.capacity,
        }  # fmt: skip
        return web.json_response(body, status=200 if ready else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        if not self.settings.metrics_open:
            self._door.enter(request)
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self.meters.page(), headers=headers)

    async def _document(self, request: web.Request) -> web.Response:
        text = (resources.files("runtime.serve") / request.path.lstrip("/")).read_text(encoding="utf-8")
        return web.Response(text=text, content_type="application/yaml")

    async def _voices(self, request: web.Request) -> web.Response:
        self._door.enter(request)
        catalogue = self._ready_parts().catalogue
        voices = [dataclasses.asdict(v) for v in catalogue.voices()]
        return _json({"voices": voices, "default": catalogue.default})

    async def _models(self, request: web.Request) -> web.Response:
        self._door.enter(request)
        rows = [{"id": name, "object": "model", "created": 0, "owned_by": "local"} for name in ("default", "tts-1")]
        return _json({"object": "list", "data": rows})

    async def _modules(self, request: web.Request) -> web.Response:
        self._door.enter(request)
        gate = self.admission
        return _json([{"type": "tts_py", "used_slots": gate.active, "total_slots": gate.capacity}])


def _gradium_method(name: str) -> Callable[[_Parts], Handler]:
    def pick(parts: _Parts) -> Handler:
        method: Handler = getattr(parts.gradium, name)
        return method

    return pick


def _json(value: object) -> web.Response:
    return web.Response(text=json.dumps(value, ensure_ascii=False), content_type="application/json")


def _check_keyless(settings: ServeSettings) -> None:
    if settings.keyless:
        if settings.keys:
            raise Usage("both keys and keyless are set", "choose one")
        if not _is_loopback(settings.host):
            raise Usage(f"keyless is only for loopback addresses, not {settings.host}", "give --keys FILE")
    elif not settings.keys:
        raise Usage("no API keys", "give --keys FILE, or --keyless true on a loopback address")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
