"""What a step costs by the lanes in it: a line, how it is drawn from samples, and how running steps correct it. Pure.

Samples are seconds by number of lanes. A disturbed machine (a neighbour, a clock that throttles) makes some of them
too large, never too small, and a capacity that was measured then must not be halved for as long as the process lives:
`plausible` takes out what cannot be, `doubtful` names what should be measured again, and `StepWatch` compares the
line with the steps that are made anyway.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

# A sample so far above its neighbours' line is measured again. On a quiet machine the worst was 1.1.
DOUBT = 1.2
# Running steps correct the line when half of them are further from it than this. Above it scattered lanes cost more
# than the neighbours of the warm-up, which load_max has room for; below it a few quick ones promise nothing.
FASTER, SLOWER = 0.85, 1.2
# Fewer running steps of a size say nothing; more than the newest ones say what was, not what is.
SEEN_MIN, SEEN_MAX, SEEN_S = 12, 64, 60.0
# A new line that would change no step by more than this is not worth a change of capacity.
CHANGE_MIN = 0.03


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of one step as a line: `fixed_s` for any step plus `lane_s` for each lane in it."""

    fixed_s: float
    lane_s: float

    def of(self, lanes: int) -> float:
        return self.fixed_s + self.lane_s * lanes if lanes else 0.0

    def times(self, factor: float) -> StepCost:
        return StepCost(self.fixed_s * factor, self.lane_s * factor)


def fit_cost(samples: Mapping[int, float]) -> StepCost:
    """The tightest line that no sample (seconds by lanes) lies above, without a negative part.

    A capacity that is promised must hold in the worst measured batch, not on average. Tightest: the least sum of its
    excess over the samples, each in parts of the sample, so that a large step that does not fit the line tilts it and
    does not lift it: lifted, a step of one lane was planned at five times its time.
    """
    if not samples:
        raise ValueError("no step was measured")
    steep = max(s / n for n, s in samples.items())
    lines = [StepCost(max(samples.values()), 0.0), StepCost(0.0, steep)]
    for (n, s), (m, t) in itertools.combinations(sorted(samples.items()), 2):
        slope = (t - s) / (m - n)
        lines.append(StepCost(max(0.0, s - slope * n), max(0.0, slope)))
    above = [line for line in lines if all(line.of(n) >= s * (1 - 1e-9) for n, s in samples.items())]
    return min(above, key=lambda line: sum(line.of(n) / s for n, s in samples.items()))


def plausible(samples: Mapping[int, float]) -> dict[int, float]:
    """The samples without what no step can cost: more than a larger step, or more than several smaller ones instead."""
    out: dict[int, float] = {}
    least = math.inf
    for size in sorted(samples, reverse=True):
        least = out[size] = min(least, samples[size])
    for size in sorted(out):
        out[size] = min(math.ceil(size / part) * out[part] for part in out if part <= size)
    return out


def doubtful(samples: Mapping[int, float]) -> list[int]:
    """The sizes whose sample lies far above the line through all others: measure them again before believing them."""
    if len(samples) < 3:
        return []
    out = []
    for size, seconds in samples.items():
        line = fit_cost({n: s for n, s in samples.items() if n != size})
        if seconds > DOUBT * line.of(size):
            out.append(size)
    return out


@dataclass(slots=True)
class StepWatch:
    """Steps as they are made, by size, against the line they were promised to keep. One owner, one kind of step.

    `measured` is the warm-up's line and stays: it alone saw every size on one machine in one minute. `promised` is what
    is believed now.
    """

    measured: StepCost
    lanes: int
    promised: StepCost = field(init=False)
    _sizes: list[int] = field(init=False)
    _seen: dict[int, deque[tuple[float, float]]] = field(default_factory=dict)  # size: (when, seconds over measured)

    def __post_init__(self) -> None:
        self.promised, self._sizes = self.measured, sizes(self.lanes)

    def note(self, lanes: int, seconds: float, now: float) -> None:
        expected = self.measured.of(lanes)
        if expected > 0.0:
            size = self._sizes[bisect.bisect_left(self._sizes, lanes)]
            self._seen.setdefault(size, deque(maxlen=SEEN_MAX)).append((now, seconds / expected))

    def review(self, now: float) -> bool:
        """Draws the line anew where the steps of the last minute do not keep to it. Whether it did."""
        ratios = {size: ratio for size in self._sizes if (ratio := self._ratio(size, now)) is not None}
        samples = {size: ratio * self.measured.of(size) for size, ratio in ratios.items()}
        if all(FASTER <= seconds / self.promised.of(size) <= SLOWER for size, seconds in samples.items()):
            return False
        line = fit_cost(plausible({size: self._believed(size, ratios, samples) for size in self._sizes}))
        changes = [abs(line.of(size) / self.promised.of(size) - 1.0) for size in self._sizes]
        if max(changes) <= CHANGE_MIN:
            return False
        self.promised = line
        self._seen.clear()
        return True

    def _believed(self, size: int, ratios: Mapping[int, float], samples: Mapping[int, float]) -> float:
        """Seconds of a step of this size: as seen, or else changed as the next size that was seen.

        Few streams make small steps only, and what those cost says little of large ones: read off a line through
        small steps alone, a capacity of 22 became 96 where 50 was true. So the warm-up's line goes on past the largest
        step that was seen. Where steps are quicker than the warm-up's, that one was disturbed, perhaps in its small
        steps more than in its large ones: then the line through what was seen bounds it too.
        """
        if size in samples:
            return samples[size]
        near = min((seen for seen in samples if seen > size), default=max(samples))
        scaled = ratios[near] * self.measured.of(size)
        if ratios[near] >= 1.0 or size < near or len(samples) == 1:
            return scaled
        return max(scaled, fit_cost(samples).of(size))

    def _ratio(self, size: int, now: float) -> float | None:
        """The middle of the last minute's steps of that size, over what was measured; None where there were few."""
        seen = sorted(ratio for when, ratio in self._seen.get(size, ()) if now - when <= SEEN_S)
        return seen[len(seen) // 2] if len(seen) >= SEEN_MIN else None


def sizes(lanes: int) -> list[int]:
    """1, 2, 4, … and all lanes: the sizes that are measured."""
    return sorted({*(2**k for k in range(lanes.bit_length())), lanes})
