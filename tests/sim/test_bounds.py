"""A scenario that cannot be run is a usage error that names what is off, never a traceback or a run without an end."""

from __future__ import annotations

from pathlib import Path

import pytest

from bdn.cli import main
from bdn.errors import Usage
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
    ],
)
def test_a_number_that_no_run_can_have_is_named(text: str, named: str) -> None:
    with pytest.raises(Usage) as why:
        load(text, "file.yaml")
    assert named in str(why.value)


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
