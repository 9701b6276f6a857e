"""The thread that owns the engine. Commands go in, batches of happenings come out on the event loop; nothing else.

The only thread of the server. It waits on a bell, never spins: a wake-up is a command or the moment that the
scheduler named.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import deque
from collections.abc import Callable

from runtime.scheduler import Costs
from runtime.serve.conductor import Conductor, Tally
from runtime.serve.traffic import Command, Happening, Sound, Words

# A wait without end would hide a lost wake-up for ever; this only bounds such a bug.
WAIT_S_MAX = 5.0
# What may wait goes over this much later at most; its listener has four times that in hand. Each hand-over wakes the
# loop, which then finds nothing of its own in the caches and takes turns with this thread at the interpreter.
EASE_S = 0.25


class Outgoing:
    """What happened and has not gone over to the loop yet, in order."""

    def __init__(self) -> None:
        self._held: list[Happening] = []
        self.due_at = math.inf  # when the first of it cannot wait any longer

    def add(self, happenings: list[Happening], now: float) -> None:
        if happenings:
            at_ease = all(isinstance(h, Sound | Words) and h.at_ease for h in happenings)
            self.due_at = min(self.due_at, now + EASE_S if at_ease else now)
            self._held += happenings

    def due(self, now: float) -> list[Happening]:
        """All of it, once some of it cannot wait any longer; else nothing."""
        if now < self.due_at:
            return []
        out, self._held, self.due_at = self._held, [], math.inf
        return out


class Device:
    """`make` runs on the thread (compiling, warming up), so that whatever the engine binds to a thread is bound there.

    `deliver` and `ready` are called on the loop; `ready` gets None, or what made the thread end.
    """

    def __init__(
        self,
        make: Callable[[], Conductor],
        *,
        clock: Callable[[], float],
        deliver: Callable[[list[Happening]], None],
        ready: Callable[[BaseException | None], None],
    ) -> None:
        self._make, self._clock, self._deliver, self._ready = make, clock, deliver, ready
        self._commands: deque[Command] = deque()
        self._bell = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="tts-device", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.tally = Tally()
        self._conductor: Conductor | None = None
        self.dead: BaseException | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def send(self, *commands: Command) -> None:
        self._commands.extend(commands)
        self._bell.set()

    async def stop(self) -> None:
        """Ends the thread after its current step. A step that hangs does not keep the process from ending."""
        self._stopping = True
        self._bell.set()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join, WAIT_S_MAX)

    @property
    def costs(self) -> Costs | None:
        """What steps cost by now; None before the warm-up's end."""
        return self._conductor.costs if self._conductor else None

    def stuck(self, limit_s: float) -> bool:
        """Whether the engine has been inside one step for longer than this, or the thread is gone."""
        return self.dead is not None or self._clock() - self.tally.step_began > limit_s

    def _run(self) -> None:
        assert self._loop
        try:
            conductor = self._make()
            self._conductor, self.tally = conductor, conductor.tally
            self._call(self._ready, None)
            self._serve(conductor)
        except BaseException as why:
            self.dead = why
            self._call(self._ready, why)

    def _serve(self, conductor: Conductor) -> None:
        outgoing = Outgoing()
        while not self._stopping:
            self._bell.clear()
            commands = [self._commands.popleft() for _ in range(len(self._commands))]
            told = conductor.obey(commands) if commands else []
            more, wake_at = conductor.turn()
            now = self._clock()
            outgoing.add(told + more, now)
            if out := outgoing.due(now):
                self._call(self._deliver, out)
            if wake_at > 0.0:
                wait_s = min(min(wake_at, outgoing.due_at) - self._clock(), WAIT_S_MAX)
                if wait_s > 0:
                    self._bell.wait(wait_s)

    def _call(self, function: Callable[..., None], value: object) -> None:
        assert self._loop
        try:
            self._loop.call_soon_threadsafe(function, value)
        except RuntimeError:
            self._stopping = True  # the loop is closed: nobody is left to hear it
