"""Pictures of simulated runs: they are whole SVG files whose words say what is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from bdn.sim.pictures import draw
from bdn.sim.scenario import load
from bdn.sim.study import study

pytest.importorskip("matplotlib", reason="matplotlib is not installed (the extra `sim`)")
SCENARIO = """
name: three
about: x
models: [{bytes: 50_000_000, chunk_mib: 8}]
nodes: {count: 3}
"""


def test_each_picture_has_a_title_and_the_origins_column_its_name(tmp_path: Path) -> None:
    done = study(load(SCENARIO, "here"), 1, alone=True, say=lambda _: None)
    paths = draw(done.outcomes, done.waits, tmp_path, "three", done.bound_s)
    text = {p.stem: p.read_text(encoding="utf-8") for p in paths}
    assert text.keys() == {"three-completion", "three-origin", "three-flows"}
    # matplotlib draws letters as shapes, and writes each text beside them as a comment.
    assert all("<!-- three: w" in t and t.rstrip().endswith("</svg>") for t in text.values())
    assert [f"<!-- {column} -->" in text["three-flows"] for column in ("origin", "0", "2", "3")] == [True] * 3 + [False]


def test_an_axis_of_a_long_run_is_marked_at_one_two_and_five_and_the_bound_is_drawn(tmp_path: Path) -> None:
    done = study(load(SCENARIO.replace("count: 3", "count: 3, nic_gbit: 0.01"), "here"), 1, alone=True)
    [path, *_] = draw(done.outcomes, done.waits, tmp_path, "three", done.bound_s)
    text = path.read_text(encoding="utf-8")
    assert all(f"<!-- {mark} -->" in text for mark in (0, 1, 2, 5, 10, 20, 50, "lower bound for the last node"))
