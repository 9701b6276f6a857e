"""What was heard and when, from the arrivals of one call; and the summary of many. Pure.

The first sound is the first *playable sample above a voice gate* (10 ms windows, RMS above 0.01: the method of Coval's
public benchmark): a header is no sound, and neither is silence. A player starts at the first chunk, so a voiced sample
is heard at its place in the sound, or when its chunk arrives, whichever is later.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from runtime.audio import Samples
from runtime.audio_silence import leading_silence_s


@dataclass(slots=True)
class Take:
    """One call's arrivals; times in seconds on one clock."""

    due: float
    began: float = 0.0  # when it was really sent: the difference is the measuring machine's own delay
    rate: int = 24_000
    chunks: list[tuple[float, Samples]] = field(default_factory=list)
    ended: float = 0.0
    error: str = ""  # one word; empty is success
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Heard:
    """What one call's listener heard, seconds after it was due."""

    first_byte_s: float
    first_sound_s: float
    silence_s: float
    audio_s: float
    took_s: float
    gap_max_s: float
    underruns: int
    underrun_s: float
    late_start_s: float

    @property
    def rtf(self) -> float:
        return self.took_s / self.audio_s if self.audio_s else 0.0


def heard(take: Take) -> Heard | None:
    """None where nothing audible came: a failed run, as in Coval's method."""
    if not take.chunks:
        return None
    sound = np.concatenate([pcm for _, pcm in take.chunks])
    silence = leading_silence_s(sound, take.rate)
    if silence is None:
        return None
    first = take.chunks[0][0]
    ends = itertools.accumulate(len(pcm) for _, pcm in take.chunks)
    # The window's last sample: until that has arrived nobody can say that it is loud.
    index = round(silence * take.rate) + take.rate // 200 - 1
    arrived = next((t for (t, _), end in zip(take.chunks, ends, strict=True) if index < end), take.chunks[-1][0])
    underruns, missing_s = playout(take)
    arrivals = [t for t, _ in take.chunks]
    gaps = [b - a for a, b in itertools.pairwise(arrivals)]
    return Heard(
        first_byte_s=first - take.due,
        first_sound_s=max(arrived, first + silence) - take.due,
        silence_s=silence,
        audio_s=len(sound) / take.rate,
        took_s=take.chunks[-1][0] - take.due,
        gap_max_s=max(gaps, default=0.0),
        underruns=underruns,
        underrun_s=missing_s,
        late_start_s=max(0.0, take.began - take.due),
    )


def playout(take: Take, *, tolerance_s: float = 0.001) -> tuple[int, float]:
    """How often, and for how long, a player that starts at the first chunk has nothing to play before the end."""
    count, missing_s, dry_at = 0, 0.0, take.chunks[0][0]
    for arrived, pcm in take.chunks:
        if arrived > dry_at + tolerance_s:
            count += 1
            missing_s += arrived - dry_at
        dry_at = max(dry_at, arrived) + len(pcm) / take.rate
    return count, missing_s


def quantile(values: Sequence[float], q: float) -> float:
    """Linear between the nearest ranks; 0 for nothing."""
    return float(np.quantile(values, q)) if len(values) else 0.0


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Milliseconds: median, tails, and the middle half's width; None for each where nothing was measured."""
    if not values:
        return dict.fromkeys(("p50", "p95", "p99", "iqr", "min", "max"))
    ms = [v * 1e3 for v in values]
    return {
        "p50": round(quantile(ms, 0.5), 2), "p95": round(quantile(ms, 0.95), 2), "p99": round(quantile(ms, 0.99), 2),
        "iqr": round(quantile(ms, 0.75) - quantile(ms, 0.25), 2),
        "min": round(min(ms), 2), "max": round(max(ms), 2),
    }  # fmt: skip


def summary(takes: Sequence[Take]) -> dict[str, object]:
    """All there is to say of a run; the same keys whatever happened."""
    results = [h for h in map(heard, takes) if h]
    silent = sum(1 for t in takes if not t.error and heard(t) is None)
    errors = Counter(t.error for t in takes if t.error)
    if silent:
        errors["silent"] += silent
    audio_s = sum(h.audio_s for h in results)
    return {
        "n": len(takes),
        "heard": len(results),
        "errors": dict(sorted(errors.items())),
        "first_sound_ms": spread([h.first_sound_s for h in results]),
        "first_byte_ms": spread([h.first_byte_s for h in results]),
        "silence_ms": spread([h.silence_s for h in results]),
        "gap_max_ms": spread([h.gap_max_s for h in results]),
        "underruns": sum(h.underruns for h in results),
        "streams_with_underruns": sum(1 for h in results if h.underruns),
        "underrun_s": round(sum(h.underrun_s for h in results), 3),
        "audio_s": round(audio_s, 2),
        "rtf_p50": round(quantile([h.rtf for h in results], 0.5), 3) if results else None,
        "audio_mean_s": round(statistics.fmean([h.audio_s for h in results]), 3) if results else None,
        "late_start_ms_max": round(max((h.late_start_s for h in results), default=0.0) * 1e3, 2),
    }
