"""A scenario that cannot be run is a usage error that names what is off, never a traceback or a run without an end."""

from __future__ import annotations

from pathlib import Path

import pytest

from bdn.cli import main
from bdn.errors import Usage
from bdn.sim.run import simulate
from bdn.sim.scenario import load
from bdn.sim.study import study

HEAD = "name: x\nabout: y\nnodes: {count: 3}\n"
CALLS = "shape: [[0, 1], [60, 1]], hold_s: 5, streams: 4, target: 0.7, tick_s: 10, replicas_max: 4, phases_s: {}"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (HEAD + "models: []", "models is empty"),
        (HEAD + "models: [{bytes: 0}]", "bytes"),
        (HEAD + "models: [{bytes: 100_000_000_000_000}]", "chunk_mib"),
        (HEAD + "models: [{nodes: [3]}]", "no node 3"),
        (HEAD + "models: [{}, {bytes: 1}]", "one model"),
        (HEAD + "models: [{priority: 10}]", "priority"),
        ("name: x\nabout: y\nnodes: {nic_gbit: 0}", "nic_gbit"),
        ("name: x\nabout: y\nnodes: {nic_gbit: .nan}", "nic_gbit"),
        ("name: x\nabout: y\nnodes: {disk_gb_s: .inf}", "disk_gb_s"),
        ("name: x\nabout: y\nnodes: {rtt_ms: -1}", "rtt_ms"),
        ("name: x\nabout: y\nnodes: {zones: 0}", "zones"),
        (HEAD + "origin: {gbit: 0}", "gbit"),
        (HEAD + "origin: {connection_mb_s: 0}", "connection_mb_s"),
        (HEAD + "joins: {present: 4}", "present"),
        (HEAD + "joins: {lag_s: -1}", "lag_s"),
        (HEAD + "pulls: {warm: 4}", "warm"),
        (HEAD + "faults: [{kind: die, at_s: -1}]", "at_s"),
        (HEAD + "faults: [{kind: die, first: 3}]", "no node 3"),
        (HEAD + "faults: [{kind: die, nodes: 4}]", "no node 3"),
        (HEAD + "faults: [{kind: nic, factor: 0}]", "factor"),
        (HEAD + "limits: {in_flight_chunks: 0}", "in_flight_chunks"),
        (HEAD + "limits: {stall_s: 0}", "stall_s"),
        (HEAD + "time_s_max: .inf", "time_s_max"),
        (HEAD + "expect: {model_seconds_max: {other: 1}}", "other"),
        (HEAD + "calls: [1]", "calls"),
        (HEAD + "calls: {x: 1}", "'shape' is missing"),
        (HEAD + "calls: {" + CALLS.replace("tick_s: 10", "tick_s: 0") + "}", "ticks"),
        (HEAD + "calls: {" + CALLS.replace("streams: 4", "streams: 0") + "}", "streams"),
        (HEAD + "calls: {" + CALLS.replace("[60, 1]", "[0, 1]") + "}", "order of time"),
        ("name: ../../x\nabout: y", "name"),
        ("name: 2026-13-45\nabout: y", "YAML"),
        ("[" * 3000, "deep"),
        (HEAD + "name: z", "'name' is there twice"),
        ("", "empty"),
        (HEAD + "faults: [{kind: nic, first: 1}]", "factor"),
        (HEAD + "faults: [{kind: origin, for_s: 1}]", "factor"),
        (HEAD + "faults: [{kind: die, factor: 0.5}]", "no use for factor"),
        (HEAD + "faults: [{kind: die, for_s: 5}]", "no use for for_s"),
        (HEAD + "faults: [{kind: origin-down, nodes: 2}]", "no use for nodes"),
        ("name: x\nabout: y\nnodes: {count: 3, zones: 4}", "zones"),
        (HEAD + "expect: {cross_zone_copies_max: 1}", "one zone"),
        ("name: x\nabout: y\nnodes: {zone_gbit: 1}", "one zone"),
        (HEAD + "models: [{bytes: 20XB}]", "'20XB'"),
        (HEAD + "models: [{bytes: 20 apples}]", "'20 apples'"),
        (HEAD + "pulls: {over_s: 1e9}", "over_s"),
        (HEAD + "joins: {lag_s: 1, over_s: 2, lag_s: 3}", "'lag_s' is there twice"),
        (HEAD + f"joins: {{lag_s: {10**400}}}", "lag_s"),
        (HEAD + f"models: [{{bytes: {10**400}}}]", "bytes"),
    ],
)
def test_a_number_that_no_run_can_have_is_named(text: str, named: str) -> None:
    with pytest.raises(Usage) as why:
        load(text, "file.yaml")
    assert named in str(why.value)


def test_numbers_may_be_written_as_people_write_them() -> None:
    models = "models: [{bytes: 20GB}, {bytes: 1.5GiB, seed: b}, {bytes: 1e9, seed: c}]\n"
    s = load(HEAD + models + "pulls: {over_s: 1e2}", "x")
    assert [m.bytes for m in s.models] == [20 * 10**9, 3 << 29, 10**9] and s.pulls.over_s == 100.0


def test_a_run_that_nobody_finishes_has_failed_and_the_table_says_how_many_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(HEAD + "models: [{bytes: 9_000_000}]\nfaults: [{kind: die, nodes: 3}]")
    assert main(["simulate", str(file), "--alone"]) == 1
    said = capsys.readouterr().out
    assert "0 of 3" in said and "no pull came to its end" in said
    file.write_text(HEAD + "models: [{bytes: 9_000_000}]\npulls: {warm: 3}")
    assert main(["simulate", str(file), "--alone"]) == 0, "nobody was to pull"


def test_the_table_says_what_a_fault_after_the_end_models_and_zones_came_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.yaml"
    two = "models: [{bytes: 9_000_000}, {bytes: 8MB, seed: other}]\nfaults: [{kind: die, at_s: 100}]"
    file.write_text("name: x\nabout: y\nnodes: {count: 4, zones: 2}\n" + two)
    assert main(["simulate", str(file), "--alone"]) == 0
    said = capsys.readouterr().out
    assert "of no effect: die at 100 s" in said and "between zones 1.0" in said
    assert "model model: last of 4" in said and "model other: last of 4" in said


def test_a_directory_is_not_a_scenario_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", str(tmp_path)]) == 2
    assert "is a directory" in capsys.readouterr().err


def test_watching_a_run_changes_nothing_of_it() -> None:
    scenario, seen = load(HEAD + "models: [{bytes: 90_000_000}]", "x"), list[float]()
    watched = simulate(scenario, 1, watch=lambda rollout: seen.append(rollout.loop.time()))
    assert len(seen) > 1 and watched.world.trace.digest() == simulate(scenario, 1).world.trace.digest()


def test_the_smallest_of_everything_still_runs() -> None:
    text = f"name: x\nabout: y\nnodes: {{count: 1}}\nmodels: [{{bytes: 1}}]\ncalls: {{{CALLS}}}"
    assert study(load(text, "file.yaml"), 1, alone=True).result["origin_copies"] == 1.0


def test_a_run_that_is_given_up_has_failed_whatever_did_not_end() -> None:
    slow = "name: x\nabout: y\nnodes: {count: 3, nic_gbit: 0.000001}\nmodels: [{bytes: 9_000_000}]"
    assert study(load(slow, "file.yaml"), 1, alone=True).result["failed"] == 3
    late = HEAD + "joins: {present: 0, over_s: 1_000_000}\nmodels: [{bytes: 9_000_000}]\ntime_s_max: 1"
    assert study(load(late, "file.yaml"), 1, alone=True).result["failed"] == 3


def test_a_file_that_is_no_text_is_a_usage_error(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    assert main(["simulate", str(file)]) == 2
