"""Owns how many requests an origin gets at once: more while that helps, half as many when it says no.

Additive increase, multiplicative decrease, with a latency gradient: once one more request only makes all of them
slower, the link or the service is full, and asking for more would push others out or draw a throttle. The decision is
pure (`Pressure`); `Gate` makes callers wait for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bdn.errors import SourceDown, SourceSilent

START, LEAST, MOST = 4.0, 1.0, 32.0
FULL = 0.7  # Gradient below which there is no more to gain: the same bytes take 1.4 times as long as at best.
SLOWER = 0.4
COOLDOWN_S = 1.0  # One decrease for a burst of refusals: they all speak of the same moment.
PAUSE_S_MAX = 60.0
RENEW_EVERY = 1000  # After so many requests the best time is found anew, at half the width: a route may have changed.


class Pressure:
    """The limit as it follows from what happened. Times are seconds of one clock, passed in."""

    def __init__(self, least: float = LEAST, most: float = MOST, start: float = START) -> None:
        self.least, self.most, self.limit = least, most, min(max(start, least), most)
        self.paused_until = 0.0
        self._best: float | None = None
        self._recent: float | None = None
        self._decreased_at = float("-inf")
        self._seen = 0

    def done(self, size: int, seconds: float, *, in_flight: int) -> None:
        """A request for `size` bytes took so long while `in_flight` (itself included) were under way."""
        each = seconds / max(size, 1)
        self._recent = each if self._recent is None else 0.7 * self._recent + 0.3 * each
        self._seen += 1
        if self._seen % RENEW_EVERY == 0:
            self._best, self._recent, self.limit = None, None, max(self.least, self.limit / 2)
            return
        self._best = each if self._best is None else min(each, self._best)
        gradient = self._best / self._recent if self._recent > 0 else 1.0
        if gradient >= FULL and in_flight >= self.limit - 1:
            self.limit = min(self.most, self.limit + 1 / self.limit)
        elif gradient < SLOWER:
            self.limit = max(self.least, self.limit - 1 / self.limit)

    def refused(self, now: float, retry_after_s: float | None) -> None:
        """429, 503 or a connection refused: half, and not before it said."""
        self._decrease(now, 0.5)
        if retry_after_s is not None:
            self.paused_until = max(self.paused_until, now + min(retry_after_s, PAUSE_S_MAX))

    def stalled(self, now: float) -> None:
        self._decrease(now, 0.7)

    def _decrease(self, now: float, factor: float) -> None:
        if now - self._decreased_at >= COOLDOWN_S:
            self._decreased_at = now
            self.limit = max(self.least, self.limit * factor)


class Gate:
    """Callers enter in order, as many at once as the pressure allows."""

    def __init__(self, pressure: Pressure | None = None) -> None:
        self.pressure = pressure or Pressure()
        self.in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def entered(self, size: int) -> AsyncIterator[None]:
        """One request for `size` bytes; how it ends is noted."""
        loop = asyncio.get_running_loop()
        await self._enter(loop)
        start = loop.time()
        try:
            yield
        except SourceDown as why:
            self.pressure.refused(loop.time(), why.retry_after_s)
            raise
        except SourceSilent:
            self.pressure.stalled(loop.time())
            raise
        else:
            self.pressure.done(size, loop.time() - start, in_flight=self.in_flight)
        finally:
            self.in_flight -= 1
            self._wake()

    async def _enter(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            pause = self.pressure.paused_until - loop.time()
            if pause > 0:
                await asyncio.sleep(pause)
            elif self.in_flight < int(self.pressure.limit):
                self.in_flight += 1
                return
            else:
                turn: asyncio.Future[None] = loop.create_future()
                self._waiting.append(turn)
                try:
                    await turn
                except asyncio.CancelledError:
                    if turn in self._waiting:
                        self._waiting.remove(turn)
                    else:
                        self._wake()
                    raise

    def _wake(self) -> None:
        for _ in range(max(1, int(self.pressure.limit) - self.in_flight)):
            while self._waiting:
                turn = self._waiting.popleft()
                if not turn.done():
                    turn.set_result(None)
                    break
