"""Owns the pictures of a run, as SVG: who is done when, what the origin sent, who got bytes from whom, who waits.

matplotlib is the optional extra `sim`; without it `draw` says so in one line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bdn.errors import Usage
from bdn.sim.calls import Waits
from bdn.sim.run import Outcome

COLOURS = ("#0b6e4f", "#c1440e", "#5b5ea6", "#b08900", "#777777")

TITLES = {
    "completion": "who has the model when",
    "origin": "what the origin sent",
    "flows": "who got bytes from whom",
    "callers": "who waits",
}


def draw(
    outcomes: Mapping[str, Outcome], waits: Mapping[str, Waits], where: Path, name: str, bound_s: float
) -> list[Path]:
    """Writes `where/NAME-*.svg` and returns their paths. Raises Usage without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        raise Usage("pictures need matplotlib", hint="pip install matplotlib") from None
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": name, "axes.spines.top": False, "axes.spines.right": False})
    from matplotlib import pyplot

    where.mkdir(parents=True, exist_ok=True)
    painters: list[tuple[str, Any]] = [
        ("completion", lambda ax: _completion(ax, outcomes, bound_s)),
        ("origin", lambda ax: _origin(ax, outcomes)),
        ("flows", lambda ax: _flows(ax, outcomes["bdn"])),
    ]
    if waits:
        painters.append(("callers", lambda ax: _callers(ax, waits)))
    paths = []
    for kind, paint in painters:
        figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
        paint(axes)
        axes.set_title(f"{name}: {TITLES[kind]}", loc="left", fontsize="medium")
        path = where / f"{name}-{kind}.svg"
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)
        paths.append(path)
    return paths


def _completion(axes: Any, outcomes: Mapping[str, Outcome], bound_s: float) -> None:
    for (name, outcome), colour in zip(outcomes.items(), COLOURS, strict=False):
        first = min(outcome.started.values(), default=0.0)
        done = sorted(at - first for at in outcome.finished.values())
        axes.step([0.0, *done], [0.0, *((i + 1) / len(done) for i in range(len(done)))], where="post", label=name,
                  color=colour)  # fmt: skip
    axes.axvline(bound_s, color="black", linewidth=0.8, linestyle=":", label="lower bound for the last node")
    axes.set(xlabel="seconds after the first start", ylabel="part of the nodes that have the model")
    _scale(axes.xaxis, max((end for o in outcomes.values() for end in o.finished.values()), default=bound_s))
    axes.legend(frameon=False)


def _origin(axes: Any, outcomes: Mapping[str, Outcome]) -> None:
    for (name, outcome), colour in zip(outcomes.items(), COLOURS, strict=False):
        sent, points = 0, [(0.0, 0.0)]
        for at, source, _, _, size in outcome.world.trace.events:
            if source < 0:
                sent += size
                points.append((at, sent / (outcome.model_bytes or 1)))
        axes.plot(*zip(*points, strict=True), label=name, color=colour)
    axes.set(xlabel="seconds", ylabel="copies of the model out of the origin")
    _scale(axes.xaxis, max((end for o in outcomes.values() for end in o.finished.values()), default=1.0))
    _scale(axes.yaxis, max(o.origin_copies for o in outcomes.values()))
    axes.legend(frameon=False)


def _flows(axes: Any, outcome: Outcome) -> None:
    count = len(outcome.world.machines)
    grid = [[0.0] * (count + 1) for _ in range(count)]
    for _, source, node, _, size in outcome.world.trace.events:
        grid[node][source + 1] += size / 1e9
    image = axes.imshow(grid, cmap="viridis", interpolation="nearest", aspect="auto")
    axes.xaxis.set_major_formatter(lambda column, _: "origin" if column == 0 else f"{column - 1:g}")
    axes.set(xlabel="from the origin, from node", ylabel="to node")
    axes.figure.colorbar(image, label="GB")


def _callers(axes: Any, waits: Mapping[str, Waits]) -> None:
    # Equal curves lie on each other: the later are thinner, and broken, so that the earlier show through.
    for i, ((name, wait), colour) in enumerate(zip(waits.items(), COLOURS, strict=False)):
        points: Sequence[tuple[float, int]] = wait.waiting or [(0.0, 0)]
        width, style = 4.0 / (i + 1), ("-", "--", "-.", ":")[i % 4]
        axes.plot(*zip(*points, strict=True), label=name, color=colour, linewidth=width, linestyle=style)
    axes.set(xlabel="seconds", ylabel="callers waiting")
    _scale(axes.yaxis, max((n for w in waits.values() for _, n in w.waiting), default=1))
    axes.legend(frameon=False)


def _scale(axis: Any, most: float) -> None:
    """Even steps up to 20; beyond, even up to 1 and then by powers of ten, marked at 1, 2 and 5 of each."""
    scale = "linear" if most <= 20.0 else "symlog"
    axis.axes.set(**{f"{axis.axis_name}scale": scale})
    axis.axes.set(**{f"{axis.axis_name}lim": (0.0, 1.1 * most or 1.0)})
    if scale == "linear":
        return
    tens = [10.0**k for k in range(int(math.log10(most)) + 1)]
    axis.set_ticks([0.0, *(m * ten for ten in tens for m in (1, 2, 5) if m * ten <= most * 1.1)])
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_ticks([], minor=True)
