"""All streams on the event loop's side: opening, text in, sound out, limits, and the end. Owns the admission counts.

A Stream is what a connection holds: it takes text and gives Outbound messages. Its outbox is bounded: a reader that
does not keep up makes its lane wait, and is shed when its sound gets too old. Whatever arrives for a stream that has
been dropped is dropped here, so after a cancel nothing follows.
"""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from runtime.admission import Admission, KeyLimits
from runtime.audio import NO_SOUND, StreamEncoder, encoder, is_sound
from runtime.config import ServeSettings
from runtime.errors import NameUnknown, SpeechError
from runtime.port import Entry, Pcm, StreamSpec, TextFeed
from runtime.serve.catalogue import Catalogue
from runtime.serve.meters import Meters
from runtime.serve.pieces import joined
from runtime.serve.traffic import (
    Broken,
    Close,
    Command,
    End,
    Feed,
    Finished,
    Flush,
    Flushed,
    Happening,
    Hold,
    Open,
    Paused,
    Sound,
    Words,
)
from runtime.serve.wire import Audio, Done, Failed, FlushedOut, Outbound, PausedOut, Ready, Setup, WireError, Word

# Text that is read out at a time: 0.2 ms of work, 1.5 where it is all numbers.
PIECE_CHARS = 256


class Sender(Protocol):
    def __call__(self, *commands: Command) -> None: ...


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the loop may know of the engine; all of it is safe from any thread."""

    sample_rate: int
    frame_samples: int
    voices: tuple[str, ...]
    text_feed: Callable[[StreamSpec], TextFeed]
    clone: Callable[[str, Pcm], None]
    forget: Callable[[str], None]


class Refused(WireError):
    """Not let in; `retry_after_s` says when to come back."""

    def __init__(self, code: str, message: str, retry_after_s: float, req_id: str | None) -> None:
        super().__init__(code, message, req_id)
        self.retry_after_s = retry_after_s


class Stream:
    """One utterance, or one turn of a call. Made by Hub.open; used by one connection."""

    def __init__(
        self, hub: Hub, sid: int, number: int, key: KeyLimits, setup: Setup, encode: StreamEncoder, protocol: str
    ) -> None:
        self._hub, self.sid, self.number, self.key, self.setup = hub, sid, number, key, setup
        self.request_id = secrets.token_hex(8)
        self.protocol = protocol
        self.feed: TextFeed = hub.facts.text_feed(setup.spec)
        self._encoder = encode
        self.opened_at = hub.clock()
        self.text_at: float | None = None  # when the first text came
        self.active_at = self.opened_at  # when text last came or sound was last made; idle streams are ended by it
        self.on_stall: Callable[[], None] | None = None  # how the connection is told that its reader was given up
        self.ended = self.over = self.sounding = self.held = self._dropped = False
        self.chars = 0
        self._half = ""
        self.sent_s = 0.0
        self._queued_s = 0.0
        self._coded_from_s = 0.0
        self._inbox: deque[tuple[float, Happening]] = deque()
        self._out: list[Outbound] = []
        self._news: asyncio.Future[None] | None = None  # what `some` waits for

    @property
    def ready(self) -> Ready:
        return Ready(
            self.setup.req_id, self.number, self.request_id, self._encoder.sample_rate, self._encoder.content_type,
            "+".join(self.setup.spec.voices),
        )  # fmt: skip

    @property
    def made_s(self) -> float:
        """Seconds of sound so far. A stream that runs ahead holds its lane for less; crowded ones hold it as long."""
        return self.sent_s + self._queued_s

    @property
    def oldest_s(self) -> float:
        """When the oldest sound that nobody took was made; inf if all is taken."""
        return self._inbox[0][0] if self._inbox else float("inf")

    async def say(self, text: str) -> None:
        """More text. A long one goes in pieces, between which the loop serves others: a page of numbers takes 12 ms."""
        if self.ended:
            raise WireError("invalid", "text after the end of the stream", self.setup.req_id)
        self.chars += len(text)
        if self.chars > self._hub.settings.text_chars_max:
            raise WireError(
                "too_large", f"more than {self._hub.settings.text_chars_max} characters in one stream",
                self.setup.req_id,
            )  # fmt: skip
        self._hub.meters.text_chars.inc(len(text))
        text, self._half = joined(self._half, text)
        for start in range(0, len(text), PIECE_CHARS):
            if start:
                await asyncio.sleep(0)
            self._give(self.feed.push(text[start : start + PIECE_CHARS]))

    def flush(self, mark: int) -> None:
        if self.ended:
            raise WireError("invalid", "flush after the end of the stream", self.setup.req_id)
        self._give(self.feed.flush())
        self._hub.send(Flush(self.sid, mark, self._hub.clock()))

    def end(self) -> None:
        """No more text; twice is once. Implies a flush of all that came."""
        if self.ended:
            return
        self.ended = True
        self._give(self.feed.end())
        self._hub.send(End(self.sid, self._hub.clock()))

    def cancel(self) -> None:
        """Frees the lane before its next step; nothing that was made for the stream leaves after this."""
        self._end_now("cancelled")

    def fail(self, code: str, message: str, retry_after_s: float | None = None) -> None:
        """Ends the stream for a reason that the client is told; sound not yet taken is dropped."""
        self._end_now(code)
        self._out.append(Failed(self.setup.req_id, code, message, retry_after_s))

    def _end_now(self, outcome: str) -> None:
        self._dropped = True
        self._hub.drop(self, outcome)
        self._hub.all_read(self)
        self._inbox.clear()
        self._out.clear()
        self._wake()

    def take(self, happening: Happening, now: float) -> None:
        """Called by the hub, in order."""
        self._inbox.append((now, happening))
        if isinstance(happening, Sound):
            self._queued_s += happening.samples / self._hub.facts.sample_rate
            if self._queued_s > self._hub.settings.outbox_s and not self.held:
                self.held = True
                self._hub.send(Hold(self.sid, True))
        self.active_at = now
        self._wake()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def some(self) -> list[Outbound]:
        """The next messages for the client, with one piece of sound at most; none when all was given.

        One piece: what a slow reader has not taken stays here, where its age is watched. Done or Failed come last.
        """
        while not self._out:
            if self._inbox:
                await self._spell_one_sound()
            elif self.over:
                return []
            else:
                self._news = asyncio.get_running_loop().create_future()
                await self._news
        outs, self._out = self._out, []
        if isinstance(outs[-1], Done | Failed):
            self._hub.all_read(self)
        return outs

    async def _spell_one_sound(self) -> None:
        """All that has happened up to the second piece of sound."""
        sounds = 0
        while self._inbox:
            happening = self._inbox[0][1]
            if isinstance(happening, Sound):
                sounds += 1
                if sounds > 1:
                    return
                self._inbox.popleft()
                pcm = self._fetched(happening)
                if is_sound(pcm):
                    self._put_audio(await self._beside(pcm) if self._encoder.slow else self._coded(pcm))
                else:
                    self.fail("internal", NO_SOUND)
                continue
            self._inbox.popleft()
            if isinstance(happening, Finished):
                self._put_audio(await self._beside() if self._encoder.slow else self._coded())
            self._spell(happening)

    def _give(self, entries: Sequence[Entry]) -> None:
        self.active_at = self._hub.clock()
        if not entries:
            return
        if self.text_at is None:
            self.text_at = self.active_at
        self._hub.send(Feed(self.sid, entries, self.active_at))

    def _fetched(self, sound: Sound) -> Pcm:
        """The samples, and a reader who has caught up is not waited for any longer."""
        pcm = sound.pcm
        seconds = len(pcm) / self._hub.facts.sample_rate
        self._queued_s -= seconds
        if self.held and self._queued_s < self._hub.settings.outbox_s / 2:
            self.held = False
            self._hub.send(Hold(self.sid, False))
        self.sent_s += seconds
        return pcm

    def _spell(self, happening: Happening) -> None:
        """All but sound, which has to be coded."""
        req_id = self.setup.req_id
        match happening:
            case Words(words=words):
                self._out += [Word(req_id, self.number, w.text, w.start_s, w.stop_s) for w in words]
            case Paused():
                self._out.append(PausedOut(req_id))
            case Flushed(mark=mark):
                self._out.append(FlushedOut(req_id, mark))
            case Finished():
                self._put(Done(req_id, self.number, self.sent_s))
            case Broken(code=code, message=message):
                self._out.append(Failed(req_id, code, message))

    def _coded(self, pcm: Pcm | None = None) -> bytes:
        """The sound in the stream's format; None: what the coder still holds back."""
        data, cpu_s = _timed(self._encoder, pcm)
        self._hub.meters.loop_time.coded(cpu_s, beside=False)
        return data

    async def _beside(self, pcm: Pcm | None = None) -> bytes:
        """The same beside the loop: at a millisecond a frame, some dozen of its streams would hold all others up."""
        data, cpu_s = await asyncio.to_thread(_timed, self._encoder, pcm)
        self._hub.meters.loop_time.coded(cpu_s, beside=True)
        return data

    def _put_audio(self, data: bytes) -> None:
        """A coder may hold sound back; what it gives then covers all since it last gave."""
        if data:
            self._put(Audio(self.setup.req_id, self.number, data, self._coded_from_s, self.sent_s))
            self._coded_from_s = self.sent_s

    def _put(self, out: Outbound) -> None:
        """Unless the stream was dropped while its sound was coded: then the last word has been said."""
        if not self._dropped:
            self._out.append(out)


def _timed(coder: StreamEncoder, pcm: Pcm | None) -> tuple[bytes, float]:
    """The bytes, and the processor seconds they took in this thread."""
    began = time.thread_time()
    data = coder.finish() if pcm is None else coder.encode(pcm)
    return data, time.thread_time() - began


class Hub:
    def __init__(
        self,
        settings: ServeSettings,
        facts: EngineFacts,
        catalogue: Catalogue,
        admission: Admission,
        meters: Meters,
        send: Sender,
        clock: Callable[[], float],
    ) -> None:
        self.settings, self.facts, self.catalogue, self.admission = settings, facts, catalogue, admission
        self.meters, self.send, self.clock = meters, send, clock
        self._streams: dict[int, Stream] = {}  # those that hold a lane
        self._unread: dict[int, Stream] = {}  # those whose lane is free but whose sound was not all taken
        self._sids = 0
        self.empty = asyncio.Event()
        self.empty.set()

    def open(self, setup: Setup, key: KeyLimits, *, number: int, protocol: str, http: bool = False) -> Stream:
        """A stream that may be fed at once. Raises Refused, or WireError for what the client asked wrongly."""
        try:
            voices = self.catalogue.resolve(setup.voice)
            encode = encoder(setup.audio_format, rate_in=self.facts.sample_rate)
            rules = self.catalogue.rules(setup.pronunciation_id)
        except NameUnknown as why:
            code, param = ("voice_unknown", "voice") if why.kind == "voice" else ("invalid", None)
            raise WireError(code, str(why), setup.req_id, param) from None
        refusal = self.admission.ask(key, self.clock(), setup.priority)
        if refusal:
            self.meters.refused.labels(refusal.code).inc()
            raise Refused(refusal.code, refusal.message, refusal.retry_after_s, setup.req_id)
        setup = dataclasses.replace(setup, spec=dataclasses.replace(setup.spec, voices=voices, pronunciations=rules))
        self._sids += 1
        try:
            stream = Stream(self, self._sids, number, key, setup, encode, protocol)
        except Exception as why:
            self.admission.release(key, 0.0, spoke=False)
            if isinstance(why, SpeechError):
                raise WireError("invalid", str(why), setup.req_id) from None
            raise
        self._streams[stream.sid] = stream
        self.empty.clear()
        self.meters.active.set(self.admission.active)
        ahead_s = self.settings.ahead_http_s if http else self.settings.ahead_s
        rank = key.priority if setup.priority is None else min(key.priority, setup.priority)
        self.send(Open(stream.sid, setup.spec, ahead_s, int(rank)))
        return stream

    def deliver(self, happenings: list[Happening]) -> None:
        """Hands out what the device did; called on the loop."""
        now, samples = self.clock(), 0
        for happening in happenings:
            stream = self._streams.get(happening.sid)
            if stream is None:
                continue  # cancelled meanwhile
            if isinstance(happening, Sound):
                samples += happening.samples
                if not stream.sounding:
                    stream.sounding = True
                    self.meters.first_sound.observe(now - (stream.text_at or stream.opened_at))
            stream.take(happening, now)
            if isinstance(happening, Finished):
                self.meters.silence.observe(happening.silence_s)
                self._forget(stream, "done")
            elif isinstance(happening, Broken):
                self._forget(stream, happening.code)
        self.meters.audio_s.inc(samples / self.facts.sample_rate)

    def drop(self, stream: Stream, outcome: str) -> None:
        """Ends a stream from the loop's side; twice is once."""
        if stream.sid in self._streams:
            self.send(Close(stream.sid))
            self._forget(stream, outcome)

    def all_read(self, stream: Stream) -> None:
        self._unread.pop(stream.sid, None)
        self._note_empty()

    def sweep(self) -> None:
        """Ends streams that wait too long, live too long, or are not read. Called about once a second."""
        now, limits = self.clock(), self.settings
        for stream in (*self._streams.values(), *self._unread.values()):
            if now - stream.oldest_s > limits.stall_s:
                stream.fail("slow_reader", f"sound waited {limits.stall_s:g} s without being read")
                self.meters.shed.inc()
                if stream.on_stall:
                    stream.on_stall()
            elif stream.over:
                continue
            elif now - stream.opened_at > limits.session_s:
                stream.fail("session_limit", f"the stream has lived for {limits.session_s:g} s, the longest allowed")
            elif not stream.ended and now - stream.active_at > limits.idle_s:
                stream.fail("idle", f"no text for {limits.idle_s:g} s")

    def fail_all(self, code: str, message: str) -> None:
        for stream in list(self._streams.values()):
            stream.fail(code, message)

    def _forget(self, stream: Stream, outcome: str) -> None:
        del self._streams[stream.sid]
        self._unread[stream.sid] = stream
        stream.over = True
        lived_s = max(self.clock() - stream.opened_at, stream.made_s)
        self.admission.release(stream.key, lived_s, spoke=stream.sounding)
        self.meters.active.set(self.admission.active)
        self.meters.streams.labels(stream.protocol, outcome).inc()
        self._note_empty()

    def _note_empty(self) -> None:
        if not self._streams and not self._unread:
            self.empty.set()
