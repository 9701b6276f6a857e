"""A voice from an uploaded clip: reads the form, decodes the sound, has the engine encode it. One at a time."""

from __future__ import annotations

import asyncio
import io

from aiohttp import BodyPartReader, web

from runtime.audio import Samples, encoder
from runtime.errors import CannotClone, SpecInvalid, SpeechError, Usage
from runtime.serve.catalogue import Catalogue, Voice
from runtime.serve.hub import EngineFacts
from runtime.serve.wire import WireError

CLIP_BYTES_MAX = 16 * 2**20  # fifteen seconds of any format, several times over
CLIP_S_MAX, START_S_MAX = 15.0, 600.0
FIELD_BYTES_MAX = 8_192
MIX_INSTEAD = 'send {"name", "mix": "anna:0.7+ben:0.3"} as JSON to mix the voices there are'


class Cloner:
    """Clips become voices off the event loop and off the device thread; two at once would slow the streams down."""

    def __init__(self, catalogue: Catalogue, facts: EngineFacts) -> None:
        self._catalogue, self._facts = catalogue, facts
        self._one = asyncio.Lock()

    async def clone(self, request: web.Request) -> Voice:
        """The voice of a multipart form: audio_file, name, language, description, start_s. Raises WireError."""
        fields, clip = await _form(request)
        if clip is None:
            raise WireError("invalid", "the form has no audio_file")
        uid = self._catalogue.new_uid()
        async with self._one:
            wav = await asyncio.to_thread(self._make, uid, clip, _start_s(fields))
        try:
            return self._catalogue.add_clone(uid, fields, wav)
        except WireError:
            self._facts.forget(uid)
            raise

    def forget(self, voice: Voice) -> None:
        if voice.cloned:
            self._facts.forget(voice.uid)

    def restore(self) -> None:
        """Has the engine encode the clones of the last run again. Raises Usage where a clip is gone."""
        for voice in self._catalogue.voices(own=False):
            if voice.cloned and (path := self._catalogue.clip(voice.uid)):
                try:
                    self._make(voice.uid, path.read_bytes(), 0.0)
                except (OSError, WireError) as why:
                    raise Usage(f"{path}: {why}", f"restore the file, or take voice {voice.uid} out") from None

    def _make(self, uid: str, clip: bytes, start_s: float) -> bytes:
        """The clip as it is kept. Raises WireError."""
        from runtime.audio_av import read_clip

        rate = self._facts.sample_rate
        try:
            sound = read_clip(io.BytesIO(clip), rate=rate, max_s=start_s + CLIP_S_MAX)[int(start_s * rate) :]
            self._facts.clone(uid, sound)
        except CannotClone as why:
            raise WireError("unsupported", f"voices cannot be cloned here: {why}; {MIX_INSTEAD}") from None
        except SpecInvalid as why:
            raise WireError("invalid", why.why) from None
        except SpeechError as why:
            raise WireError("invalid", str(why)) from None
        return _wav(sound, rate)


async def _form(request: web.Request) -> tuple[dict[str, object], bytes | None]:
    fields: dict[str, object] = {}
    clip = None
    try:
        async for part in await request.multipart():
            if not isinstance(part, BodyPartReader) or part.name is None:
                continue
            if part.name == "audio_file":
                fields["filename"] = (part.filename or "clip")[:200]
                clip = await _bounded(part, CLIP_BYTES_MAX)
            else:
                fields[part.name] = (await _bounded(part, FIELD_BYTES_MAX)).decode("utf-8", "replace")
    except (ValueError, AssertionError) as why:
        raise WireError("malformed", f"not a multipart form: {why}") from None
    return fields, clip


async def _bounded(part: BodyPartReader, limit: int) -> bytes:
    data = bytearray()
    while chunk := await part.read_chunk():
        data += chunk
        if len(data) > limit:
            raise WireError("too_large", f"{part.name} is larger than {limit} bytes")
    return bytes(data)


def _start_s(fields: dict[str, object]) -> float:
    try:
        start_s = float(str(fields.get("start_s") or 0))
    except ValueError:
        start_s = -1.0
    if not 0 <= start_s <= START_S_MAX:
        raise WireError("invalid", f"start_s must be between 0 and {START_S_MAX:g}")
    return start_s


def _wav(sound: Samples, rate: int) -> bytes:
    made = encoder("wav", rate_in=rate)
    body = made.encode(sound) + made.finish()
    head = made.final_header()
    return head + body[len(head) :]
