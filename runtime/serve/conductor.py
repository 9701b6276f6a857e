"""One engine, all streams: carries out commands, asks the scheduler, steps the engine, says what happened.

It is synchronous and owned by one thread (device.py gives it one); the clock is handed in, so tests run it under
simulated time. It knows nothing of sockets or formats.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from runtime.audio import NO_SOUND, is_sound
from runtime.audio_silence import LeadTrimmer, end_ramp
from runtime.errors import NameUnknown, SpeechError
from runtime.port import Engine, FrameOut, LaneState, Pcm, WordTime
from runtime.scheduler import Costs, LaneView, Next, Plan, plan, view_of
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
from runtime.step_cost import StepWatch

# However slow a step was, newcomers are not planned out for longer than this makes them wait.
PACE_MAX = 3.0
# How often the steps made are compared with what was measured at the start.
REVIEW_S = 5.0
# A listener counts as dry so much earlier: a step may be uneven, and sound takes a while through the event loop.
MARGIN_S = 0.005
# A listener gets up to a quarter of what it has in hand at a time: coding and sending cost by the piece.
PARCEL_PART, PARCEL_FRAMES = 0.25, 8
# Who has more than this in hand can wait a little for its piece to go over to the loop along with others.
COMFORT_S = 1.0


@dataclass(slots=True)
class _Seat:
    """A stream on its lane."""

    sid: int
    lane: int
    trimmer: LeadTrimmer | None
    ahead_max_s: float
    priority: int
    waiting_since: float
    asked_at: float  # when what ended its last want of text was asked
    state: LaneState = LaneState.STARVED  # the engine's word; only a step or a command for this stream changes it
    dry_at: float = math.inf  # inf: nothing is playing
    held: bool = False
    starved: bool = True  # a fresh stream has no text
    speaks: bool = False  # a word of it has begun; so the first Paused is for text that really ran dry
    sound_s: float = 0.0  # of the model's own time line, before trimming
    last: Pcm | None = None  # the newest samples to be heard; None before the first
    parcel: list[Pcm] = field(default_factory=list)  # heard, but not sent yet
    send_by: float = math.inf  # when the parcel has to go out, full or not
    steps: int = 0
    words_fed: int = 0
    words_done: int = 0
    last_stop_s: float = 0.0
    waiting_words: list[WordTime] = field(default_factory=list)
    marks: deque[tuple[int, int]] = field(default_factory=deque)  # (words fed before it, mark)


@dataclass(slots=True)
class Tally:
    """Counts since the start; read by other threads, written only here."""

    steps_full: int = 0
    steps_lead: int = 0
    lane_steps: int = 0
    frames: int = 0  # of sound, before silence is trimmed
    model_s: float = 0.0
    plan_s: float = 0.0
    underruns: int = 0
    step_began: float = math.inf  # finite while the engine is inside a step: what a watchdog looks at


class Conductor:
    """`trim`: whether leading silence is cut. `costs` come from the warm-up."""

    def __init__(
        self, engine: Engine, costs: Costs, clock: Callable[[], float], *, trim: bool = True
    ) -> None:
        self._engine, self._costs, self._clock, self._trim = engine, costs, clock, trim
        self._rate = engine.sample_rate
        self._frame_s = engine.frame_samples / engine.sample_rate
        self._seats: dict[int, _Seat] = {}
        self._by_lane: dict[int, _Seat] = {}
        # What the scheduler sees, by lane, of all that can step; and the seats it must be made anew for.
        self._views: dict[int, LaneView] = {}
        self._changed: dict[int, _Seat] = {}
        self._send_at = math.inf  # no parcel has to go out before this
        # As measured at the start, or quicker: an aim that moves with each correction makes waits differ by as much,
        # and a line that large steps have lifted says too much of the small ones that a first sound takes.
        self._least_s = self._first_sound_s()
        self._pace = 1.0
        self._watches = StepWatch(costs.full, engine.lanes), StepWatch(costs.lead, engine.lanes)
        self._review_at = clock() + REVIEW_S
        self.tally = Tally()

    @property
    def costs(self) -> Costs:
        """What steps cost: as measured at the start, corrected by the steps made since."""
        return self._costs

    @property
    def seated(self) -> int:
        return len(self._seats)

    def obey(self, commands: Iterable[Command]) -> list[Happening]:
        """Carries out commands in order. A command for a stream that is gone is late, not wrong: it is dropped."""
        out: list[Happening] = []
        for command in commands:
            if isinstance(command, Open):
                self._open(command, out)
                continue
            seat = self._seats.get(command.sid)
            if seat is None:
                continue
            try:
                self._obey(seat, command, out)
                seat.state = self._engine.state(seat.lane)
                self._changed[seat.sid] = seat
            except SpeechError as why:
                self._break(seat, "invalid", str(why), out)
        return out

    def turn(self) -> tuple[list[Happening], float]:
        """One step if one is due. Returns what happened and when to come back: 0 now, inf after a command."""
        began = self._clock()
        out: list[Happening] = []
        self._look(began, out)
        costs, taken = self._costs.slower(self._pace), len(self._seats) / self._engine.lanes
        decision = plan(self._views.values(), costs, began, least_s=self._least_s, taken=taken)
        if not decision.lanes:
            self._send_at = min((seat.send_by for seat in self._seats.values()), default=math.inf)
            return out, min(decision.wake_at, self._send_at)
        self._step(decision, began, out)
        return out, 0.0

    def _open(self, command: Open, out: list[Happening]) -> None:
        try:
            lane = self._engine.open(command.spec)
        except NameUnknown as why:
            out.append(Broken(command.sid, "voice_unknown", str(why)))
        except SpeechError as why:
            out.append(Broken(command.sid, "invalid", str(why)))
        else:
            trimmer = LeadTrimmer(self._rate) if self._trim else None
            now = self._clock()
            seat = _Seat(command.sid, lane, trimmer, command.ahead_max_s, command.priority, now, now)
            seat.state = self._engine.state(lane)
            self._seats[command.sid] = self._by_lane[lane] = self._changed[command.sid] = seat

    def _obey(self, seat: _Seat, command: Command, out: list[Happening]) -> None:
        if isinstance(command, Feed | Flush | End):
            if self._engine.state(seat.lane) is LaneState.STARVED:
                seat.asked_at = min(command.at, self._clock())
            elif not seat.words_fed:  # the silence before its first word needs no text, so it never was short of any
                seat.waiting_since = seat.asked_at = min(command.at, self._clock())
        match command:
            case Feed(entries=entries):
                self._engine.feed(seat.lane, entries)
                seat.words_fed += sum(1 for e in entries if e.tokens)
            case Flush(mark=mark):
                self._engine.flush(seat.lane)
                seat.marks.append((seat.words_fed, mark))
                self._settle(seat, self._engine.state(seat.lane), out)
            case End():
                self._engine.end(seat.lane)
                if self._engine.state(seat.lane) is LaneState.ENDED:
                    self._finish(seat, out)
            case Close():
                self._leave(seat)
            case Hold(on=on):
                now = self._clock()
                self._forgive(seat, now)
                if seat.held and not on and seat.dry_at == math.inf:
                    seat.waiting_since = now  # until now it was the reader that was waited for
                seat.held = on
            case _:
                raise AssertionError(command)

    def _look(self, now: float, out: list[Happening]) -> None:
        """Brings the views up to date, and sends what cannot wait any longer."""
        changed, self._changed = self._changed, {}
        for seat in changed.values():
            if self._seats.get(seat.sid) is not seat:
                continue
            if seat.state is LaneState.ENDED:
                self._finish(seat, out)
                continue
            if seat.held or seat.starved is not (seat.state is LaneState.STARVED):
                self._note_text(seat, now, out)
            if seat.starved or seat.held:
                self._views.pop(seat.lane, None)
            else:
                self._views[seat.lane] = self._view(seat)
        if now >= self._send_at:
            for seat in self._seats.values():
                if now >= seat.send_by:
                    self._send(seat, out)
            self._send_at = min((seat.send_by for seat in self._seats.values()), default=math.inf)

    def _view(self, seat: _Seat) -> LaneView:
        kind = Next.LEAD if seat.state is LaneState.LEAD else Next.FULL
        if seat.dry_at < math.inf:
            return view_of(
                seat.lane, kind, seat.dry_at - MARGIN_S, seat.waiting_since, seat.ahead_max_s, seat.priority
            )
        delay = self._engine.delay_steps
        leads_left, fulls_left = delay - seat.steps, self._engine.first_frame_step + 1 - max(delay, seat.steps)
        return view_of(
            seat.lane, kind, math.inf, seat.waiting_since, seat.ahead_max_s, seat.priority,
            max(0, leads_left), max(1, fulls_left),
        )  # fmt: skip

    def _note_text(self, seat: _Seat, now: float, out: list[Happening]) -> None:
        """Marks the moments at which text runs dry and comes back; the silence between is the caller's, not ours."""
        starved = seat.state is LaneState.STARVED
        if starved and not seat.starved:
            self._send(seat, out)
            if seat.speaks:
                out.append(Paused(seat.sid))
            self._settle(seat, seat.state, out)
        if not starved:
            self._forgive(seat, now)
            if seat.starved and seat.dry_at == math.inf:
                seat.waiting_since = seat.asked_at
        seat.starved = starved

    def _forgive(self, seat: _Seat, now: float) -> None:
        """Whose text ran dry or who does not read is not short of sound by our fault: nothing plays there then."""
        if (seat.starved or seat.held) and seat.dry_at < now:
            seat.dry_at = math.inf

    def _first_sound_s(self) -> float:
        return self._costs.first_sound_s(self._engine.delay_steps, self._engine.first_frame_step)

    def _step(self, decision: Plan, began: float, out: list[Happening]) -> None:
        tally = self.tally
        started = self._clock()
        tally.step_began = started
        try:
            frames = self._engine.step(decision.lanes, lead=decision.lead)
        except Exception as why:
            # What the lanes of a failed step hold is unknown: none of them may be heard again.
            for lane in decision.lanes:
                self._break(self._by_lane[lane], "internal", f"the model failed: {type(why).__name__}: {why}", out)
            return
        finally:
            tally.step_began = math.inf
        now = self._clock()
        tally.model_s += now - started
        tally.lane_steps += len(frames)
        self._note_cost(len(frames), decision.lead, now - started, now)
        if decision.lead:
            tally.steps_lead += 1
        else:
            tally.steps_full += 1
        for frame in frames:
            self._take(self._by_lane[frame.lane], frame, now, out)
        tally.plan_s += started - began + self._clock() - now

    def _note_cost(self, lanes: int, lead: bool, took_s: float, now: float) -> None:
        """Steps slower than measured (a busy machine) are planned for at once, and forgiven slowly.

        Where they stay slower or quicker than measured, the measurement is corrected: a start on a disturbed machine
        must not cost capacity for ever.
        """
        expected_s = (self._costs.lead if lead else self._costs.full).of(lanes)
        if expected_s > 0:
            times = min(PACE_MAX, took_s / expected_s)
            self._pace = max(1.0, self._pace + (0.3 if times > self._pace else 0.03) * (times - self._pace))
        full, leads = self._watches
        (leads if lead else full).note(lanes, took_s, now)
        if now >= self._review_at:
            self._review_at = now + REVIEW_S
            if [watch.review(now) for watch in self._watches] != [False, False]:
                self._costs = Costs(full.promised, leads.promised, self._costs.frame_s)
                self._least_s = min(self._least_s, self._first_sound_s())

    def _take(self, seat: _Seat, frame: FrameOut, now: float, out: list[Happening]) -> None:
        seat.steps += 1
        seat.state = frame.state
        self._changed[seat.sid] = seat
        if frame.started:
            seat.speaks = True
        pcm = frame.pcm
        if pcm is not None:
            seat.sound_s += self._frame_s
            self.tally.frames += 1
            if seat.trimmer and not seat.trimmer.open:
                if not is_sound(pcm):  # later ones are looked at by the piece, where they are coded
                    self._break(seat, "internal", NO_SOUND, out)
                    return
                pcm = seat.trimmer.push(pcm)
            self._hear(seat, pcm, now, out)
        if frame.finished:
            seat.words_done += len(frame.finished)
            seat.last_stop_s = frame.finished[-1].stop_s
            seat.waiting_words.extend(frame.finished)
        if not seat.parcel:  # else words go with the sound that is sent next
            self._send_words(seat, out)
        if frame.state is LaneState.ENDED:
            self._finish(seat, out)
        elif seat.marks:
            self._settle(seat, frame.state, out)

    def _hear(self, seat: _Seat, pcm: Pcm, now: float, out: list[Happening]) -> None:
        """Moves the moment at which the listener runs dry, and sends the samples on, at once or in a parcel."""
        if not len(pcm):
            return
        late_s = max(0.0, now - seat.dry_at)
        if late_s:
            self.tally.underruns += 1
        start = seat.dry_at if now <= seat.dry_at < math.inf else now
        seat.dry_at = start + len(pcm) / self._rate
        seat.last = pcm
        seat.parcel.append(pcm)
        seat.send_by = seat.dry_at - len(seat.parcel) * self._frame_s / PARCEL_PART
        if late_s or now >= seat.send_by or len(seat.parcel) >= PARCEL_FRAMES:
            self._send(seat, out, late_s, at_ease=seat.dry_at - now > COMFORT_S)
        else:
            self._send_at = min(self._send_at, seat.send_by)

    def _send(
        self, seat: _Seat, out: list[Happening], late_s: float = 0.0, *, at_ease: bool = False
    ) -> None:
        if seat.parcel:
            parts, seat.parcel = seat.parcel, []
            seat.send_by = math.inf
            out.append(Sound(seat.sid, parts, late_s, at_ease))
        self._send_words(seat, out, at_ease)

    def _send_words(self, seat: _Seat, out: list[Happening], at_ease: bool = False) -> None:
        """Words wait until the cut is known: their times count from the first sample that is sent."""
        if seat.waiting_words and (seat.last is not None or seat.trimmer is None):
            if words := self._moved(seat):
                out.append(Words(seat.sid, words, at_ease))
            seat.waiting_words.clear()

    def _moved(self, seat: _Seat) -> tuple[WordTime, ...]:
        cut = seat.trimmer.trimmed_s if seat.trimmer else 0.0
        return tuple(
            WordTime(w.text, max(0.0, w.start_s - cut), max(0.0, w.stop_s - cut))
            for w in seat.waiting_words
            if w.text  # of a written word read out as several ("$5.50") only the first carries it
        )

    def _settle(self, seat: _Seat, state: LaneState, out: list[Happening]) -> None:
        """Answers the flushes whose last word has sounded to its end."""
        over = state in (LaneState.STARVED, LaneState.ENDED)
        while seat.marks:
            words, mark = seat.marks[0]
            sounded = seat.words_done >= words and seat.sound_s >= seat.last_stop_s
            if not (over or (words and sounded)):
                return
            seat.marks.popleft()
            self._send(seat, out)
            out.append(Flushed(seat.sid, mark))

    def _finish(self, seat: _Seat, out: list[Happening]) -> None:
        self._forgive(seat, self._clock())
        if seat.trimmer:
            self._hear(seat, seat.trimmer.finish(), self._clock(), out)
        if seat.last is not None:
            self._hear(seat, end_ramp(float(seat.last[-1]), self._rate), self._clock(), out)
        self._send(seat, out)
        if seat.waiting_words:
            out.append(Words(seat.sid, self._moved(seat)))
        self._settle(seat, LaneState.ENDED, out)
        out.append(Finished(seat.sid, seat.trimmer.trimmed_s if seat.trimmer else 0.0, seat.steps))
        self._leave(seat)

    def _break(self, seat: _Seat, code: str, message: str, out: list[Happening]) -> None:
        out.append(Broken(seat.sid, code, message))
        self._leave(seat)

    def _leave(self, seat: _Seat) -> None:
        self._engine.close(seat.lane)
        del self._seats[seat.sid], self._by_lane[seat.lane]
        self._views.pop(seat.lane, None)
