"""The rest of Gradium's REST API: voices, pronunciations, usage, tokens. Thin: the catalogue decides."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass

from aiohttp import web

from runtime.serve.catalogue import Catalogue
from runtime.serve.cloning import Cloner
from runtime.serve.door import Door, body_object
from runtime.serve.meters import Meters
from runtime.serve.wire import WireError

DESIGN = "voices cannot be designed from a description here; GET /api/voices/ lists those there are"


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(
        status=status, text=json.dumps(value, ensure_ascii=False), content_type="application/json"
    )


def _gone() -> web.Response:
    # The public client reads a JSON body from every answer; with this type an empty one is None, not an error.
    return web.Response(status=204, content_type="application/json")


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str
    name: str


class GradiumApi:
    def __init__(self, catalogue: Catalogue, cloner: Cloner, door: Door, meters: Meters) -> None:
        self._catalogue, self._cloner, self._door, self._meters = catalogue, cloner, door, meters

    @staticmethod
    def paths() -> list[Route]:
        """Every path and the name of its method here; the server binds them once the catalogue exists."""
        out = [
            Route("POST", "/api/voices/from-embedding", "no_design"),
            Route("POST", "/api/voice-generator/generate", "no_design"),
            Route("GET", "/api/voice-generator/embeddings", "no_design"),
            Route("GET", "/api/usages/credits", "credits"),
            Route("GET", "/api/usages/summary", "summary"),
            Route("GET", "/api/api-keys/token", "token"),
        ]
        out += [Route("POST", "/v1/voices", "make_voice"), Route("DELETE", "/v1/voices/{uid}", "delete_voice")]
        for kind, base in (("voice", "/api/voices"), ("rules", "/api/pronunciations")):
            for path in (base, base + "/"):
                out += [Route("GET", path, f"list_{kind}"), Route("POST", path, f"make_{kind}")]
            one = base + "/{uid}"
            out += [Route("GET", one, f"get_{kind}"), Route("PUT", one, f"update_{kind}")]
            out.append(Route("DELETE", one, f"delete_{kind}"))
        return out

    async def list_voice(self, request: web.Request) -> web.Response:
        """All voices, our own among them whatever include_catalog says: without them nobody could start."""
        self._door.enter(request)
        voices = [v.public() for v in self._catalogue.voices()]
        skip, limit = (_count(request, name) for name in ("skip", "limit"))
        return _json(voices[skip : skip + limit if limit else None])

    async def get_voice(self, request: web.Request) -> web.Response:
        self._door.enter(request)
        return _json(self._catalogue.voice(request.match_info["uid"]).public())

    async def make_voice(self, request: web.Request) -> web.Response:
        self._door.enter(request)
        if request.content_type.startswith("multipart/"):
            voice = await self._cloner.clone(request)
        else:
            voice = self._catalogue.make_voice(await body_object(request))
        return _json({"uid": voice.uid, "error": None, "was_updated": False}, 201)

    async def update_voice(self, request: web.Request) -> web.Response:
        self._door.enter(request)
        return _json(self._catalogue.update_voice(request.match_info["uid"], await body_object(request)).public())

    async def delete_voice(self, request: web.Request) -> web.Response:
        self._door.enter(request)
        voice = self._catalogue.voice(request.match_info["uid"])
        self._catalogue.delete_voice(voice.uid)
        self._cloner.forget(voice)
        return _gone()

    async def no_design(self, request: web.Request) -> web.Response:
        self._door.enter(request)
        raise WireError("unsupported", DESIGN)

    async def list_rules(self, request: web.Request) -> web.Response:
        self._door.enter(request)
        return _json([p.public() for p in self._catalogue.pronunciations()])

    async def get_rules(self, request: web.Request) -> web.Response:
        self._door.enter(request)
        return _json(self._catalogue.pronunciation(request.match_info["uid"]).public())

    async def make_rules(self, request: web.Request) -> web.Response:
        self._door.enter(request)
        return _json(self._catalogue.put_pronunciation(await body_object(request)).public(), 201)

    async def update_rules(self, request: web.Request) -> web.Response:
        self._door.enter(request)
        uid = request.match_info["uid"]
        return _json(self._catalogue.put_pronunciation(await body_object(request), uid).public())

    async def delete_rules(self, request: web.Request) -> web.Response:
        self._door.enter(request)
        self._catalogue.delete_pronunciation(request.match_info["uid"])
        return _gone()

    async def credits(self, request: web.Request) -> web.Response:
        """There is no billing: nothing is ever used up."""
        self._door.enter(request)
        return _json({"remaining_credits": None, "allocated_credits": None, "billing_period": None, "unlimited": True})

    async def summary(self, request: web.Request) -> web.Response:
        """What was served since the start, over all keys."""
        self._door.enter(request)
        totals: Counter[str] = Counter()
        for family in self._meters.registry.collect():
            for sample in family.samples:
                if sample.name.endswith("_total"):
                    totals[sample.name] += sample.value  # type: ignore[assignment]
        return _json({
            "total_requests": int(totals["tts_streams_total"]),
            "tts": {
                "requests": int(totals["tts_streams_total"]),
                "characters": int(totals["tts_text_characters_total"]),
                "audio_s": round(totals["tts_audio_seconds_total"], 3),
            },
        })  # fmt: skip

    async def token(self, request: web.Request) -> web.Response:
        token, expires = self._door.token(request)
        return _json({"token": token, "expires_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(expires))})


def _count(request: web.Request, name: str) -> int:
    value = request.query.get(name, "0")
    if not value.isascii() or not value.isdigit() or len(value) > 9:
        raise WireError("invalid", f"{name} must be a whole number from 0")
    return int(value)
