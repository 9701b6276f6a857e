"""The Clock port over whichever event loop runs: the real one in an agent, the simulated one in the simulator."""

from __future__ import annotations

import asyncio


class LoopClock:
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))
