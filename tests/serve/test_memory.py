"""Memory after many requests: flat, whatever protocol and however each ends."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc

from tests.serve.fake_engine import FakeEngine
from tests.serve.harness import Running, serving

# As many in `python -m tests.serve.test_memory 10000`; fewer here, for time. What leaks does so from the first.
REQUESTS, WARM = 300, 100
BYTES_A_REQUEST_MAX = 100
BODIES = (
    ("/v1/tts", {"text": "one two three four"}),
    ("/v1/audio/speech", {"input": "one two three", "response_format": "pcm"}),
    ("/api/post/speech/tts", {"text": "one two", "only_audio": True, "output_format": "pcm_24000"}),
    ("/v1/tts", {"text": "", "format": "wav"}),
    ("/v1/tts", {"text": "x", "voice": "nobody"}),
)


async def requests(at: Running, count: int) -> None:
    for n in range(count):
        path, body = BODIES[n % len(BODIES)]
        async with at.http.post(at.url + path, json=body) as reply:
            if n % 7:
                await reply.read()  # every seventh hangs up in the middle
    await at.lanes_free()


def kept(engine: FakeEngine) -> int:
    engine.steps.clear()  # the fake's own diary
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def growth(count: int) -> float:
    """Bytes that stay allocated for each of so many requests: the least of three stretches, as a cache that fills up or
    a log that is kept shows in one of them and a leak in all."""
    found = float("inf")

    async def test() -> None:
        nonlocal found
        engine = FakeEngine()
        async with serving(engine) as at:
            tracemalloc.start()
            await requests(at, WARM)
            for _ in range(3):
                before = kept(engine)
                await requests(at, count // 3)
                found = min(found, (kept(engine) - before) / (count // 3))
            tracemalloc.stop()

    asyncio.run(test())  # however long ten thousand take
    return found


def test_requests_leave_no_memory_behind() -> None:
    assert growth(REQUESTS) < BYTES_A_REQUEST_MAX


if __name__ == "__main__":
    import resource
    import sys

    left = growth(int(sys.argv[1]))
    print(f"{left:.1f} bytes a request, peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss} KiB")
