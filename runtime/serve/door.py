"""Who comes in: the same check for every protocol, and the same refusal spelled as each protocol's clients read it."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import socket
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError

from runtime.admission import KeyLimits
from runtime.serve import openai
from runtime.serve.hub import Refused
from runtime.serve.keys import Keyring, presented
from runtime.serve.wire import WireError, close_code, json_object

# The kernel's own send buffer grows to megabytes, half a minute of sound that nobody listens to; this is one second.
SEND_BUFFER_BYTES = 128 * 1024

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def log() -> logging.Logger:
    """Where aiohttp reports, but for what is nobody's fault here: no HTTP (answered with 400), and hanging up."""
    found = logging.getLogger(__name__)
    found.addFilter(_is_ours)
    return found


def _is_ours(record: logging.LogRecord) -> bool:
    theirs = HttpProcessingError | RequestPayloadError | ConnectionError
    return not (record.exc_info and isinstance(record.exc_info[1], theirs))


class Door:
    def __init__(self, keyring: Keyring, wall_clock: Callable[[], float]) -> None:
        self.keyring, self._wall_clock = keyring, wall_clock

    def enter(self, request: web.Request) -> KeyLimits:
        """The caller's key. Raises WireError; says no more than that there is none."""
        key = self.keyring.who(presented(request.headers) or request.query.get("auth_id"))
        if key is None and (token := request.query.get("token")):
            with contextlib.suppress(ValueError):
                key = self.keyring.by_token(token, self._wall_clock())
        if key is None:
            raise WireError("unauthorized", "no valid API key")
        return key

    def token(self, request: web.Request) -> tuple[str, float]:
        return self.keyring.token(self.enter(request), self._wall_clock())


async def body_object(request: web.Request) -> dict[str, object]:
    """The JSON object of the body. Raises WireError."""
    try:
        return json_object(await request.read())
    except RequestPayloadError as why:
        raise WireError("malformed", f"the body cannot be read: {why}") from None


def bound_send_buffer(request: web.Request) -> None:
    raw = request.transport.get_extra_info("socket") if request.transport else None
    if raw is not None:
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)


@web.middleware
async def errors_spelled(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every failure before the first byte becomes an answer in the words of the protocol that was called."""
    try:
        return await handler(request)
    except WireError as why:
        return _spelled(request.path, why)
    except web.HTTPRequestEntityTooLarge:
        limit = request.client_max_size
        return _spelled(request.path, WireError("too_large", f"the body is larger than {limit} bytes"))
    except web.HTTPNotFound:
        return _spelled(request.path, WireError("not_found", f"there is nothing at {request.path[:200]}"))
    except web.HTTPMethodNotAllowed as why:
        there = ", ".join(sorted(why.allowed_methods))
        said = f"{why.method} is not for this path; there are: {there}"
        answer = _spelled(request.path, WireError("wrong_method", said))
        answer.headers["Allow"] = there
        return answer
    except web.HTTPBadRequest as why:  # aiohttp's, of a WebSocket's handshake
        said = " ".join((why.text or why.reason).split())
        return _spelled(request.path, WireError("malformed", f"this path is a WebSocket: {said}"))
    except (HttpProcessingError, web.RequestPayloadError) as why:
        return _spelled(request.path, WireError("malformed", f"the body cannot be read: {' '.join(str(why).split())}"))
    except (ConnectionError, web.HTTPException):
        raise
    except Exception as why:
        if request.writer.output_size:  # a status is out already: aiohttp cuts the connection
            raise
        log().exception("%s %s failed", request.method, request.path)
        return _spelled(request.path, WireError("internal", f"the server failed: {type(why).__name__}"))


def _spelled(path: str, why: WireError) -> web.Response:
    status, message = openai.status_of(why.code), str(why)
    headers = {}
    if isinstance(why, Refused):
        headers["Retry-After"] = str(max(1, math.ceil(why.retry_after_s)))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if path == "/api/post/speech/tts" and status not in (401, 429, 503):
        # What the public service answers, and its clients show.
        text = f"error from server {close_code(why.code)}: {message}"
        return web.Response(status=500, text=text, headers=headers)
    if path.startswith("/api/"):
        body: dict[str, object] = {"detail": message, "code": why.code}
    else:
        body = openai.error_body(why.code, message, why.param)
    return web.Response(
        status=status, text=json.dumps(body, ensure_ascii=False), content_type="application/json", headers=headers
    )
