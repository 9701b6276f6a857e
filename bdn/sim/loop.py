"""Owns simulated time: an asyncio event loop whose clock jumps to the next timer when nothing else is left to do.

Coroutines of the core run on it unchanged. Two runs of the same program take the same steps in the same order.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")
LEAST_S = 1e-9


class Deadlock(AssertionError):
    """Every task waits for another and no timer is left: the promise that nobody waits in a circle is broken."""


class _Call:
    __slots__ = ("args", "callback", "cancelled_", "when")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], when: float = 0.0) -> None:
        self.callback, self.args, self.when, self.cancelled_ = callback, args, when, False

    def cancel(self) -> None:
        self.cancelled_ = True
        self.args = ()

    def cancelled(self) -> bool:
        return self.cancelled_


class SimLoop(asyncio.AbstractEventLoop):
    """Just what tasks, futures, events and timers need. There are no sockets, threads or signals in it."""

    def __init__(self) -> None:
        self._now = 0.0
        self._ready: deque[_Call] = deque()
        self._timers: list[tuple[float, int, _Call]] = []
        self._seq = 0
        self.errors: list[dict[str, Any]] = []
        self.steps = 0

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> _Call:
        call = _Call(callback, args)
        self._ready.append(call)
        return call

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> _Call:
        call = _Call(callback, args, when)
        self._seq += 1
        heapq.heappush(self._timers, (when, self._seq, call))
        return call

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> _Call:
        # A wait too short to move the clock would be waited for again and again: a nanosecond is the least there is.
        return self.call_at(self._now + (max(delay, LEAST_S) if delay > 0 else 0.0), callback, *args)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        return asyncio.Task(coro, loop=self, name=name or "t")  # A given name spares a global counter.

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """The result of `main`. Raises Deadlock when it can never come, and the first error nobody looked at."""
        previous = events._get_running_loop()
        events._set_running_loop(self)
        try:
            task = self.create_task(main)
            ready, timers = self._ready, self._timers
            while not task.done():
                if not ready:
                    while timers and timers[0][2].cancelled_:
                        heapq.heappop(timers)
                    if not timers:
                        task.cancel()
                        raise Deadlock(f"at {self._now:.6f} s every task waits for another")
                    self._now = timers[0][0]
                    while timers and timers[0][0] <= self._now:
                        ready.append(heapq.heappop(timers)[2])
                call = ready.popleft()
                if not call.cancelled_:
                    self.steps += 1
                    call.callback(*call.args)
            self._stop_all()
            return task.result()
        finally:
            events._set_running_loop(previous)


    def _stop_all(self) -> None:
        """What still runs in the background ends with the main task, as in `asyncio.run`."""
        for other in sorted(asyncio.all_tasks(self), key=id):
            other.cancel()
        while self._ready:
            call = self._ready.popleft()
            if not call.cancelled_:
                call.callback(*call.args)



def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in simulated time from 0 s."""
    return SimLoop().run(main)  # type: ignore[abstract]

