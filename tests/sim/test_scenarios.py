"""Small runs of the simulator: the promises hold, seeds decide everything, and the files in the repository parse."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bdn.cli import main
from bdn.errors import Usage
from bdn.ports import Tier
from bdn.sim.calls import Calls, run_calls
from bdn.sim.memory import model
from bdn.sim.results import AccountsDiffer, check_accounts, report
from bdn.sim.rivals import RIVALS
from bdn.sim.run import simulate
from bdn.sim.scenario import Fault, Joins, Model, Nodes, Pulls, Scenario, load
from bdn.sim.study import study

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "benchmarks" / "scenarios").glob("*.yaml"))
LARGE = {"nodes-1000", "nodes-200", "cold-50-140gb", "churn-50", "cold-50-nic", "burst-autoscale", "rolling-upgrade"}
"""More than five seconds of one core; the others are run with every change."""
SMALL = Scenario("small", "", models=(Model(bytes=250_000_000, chunk_mib=8),), nodes=Nodes(count=8))


def _slow(path: Path) -> tuple[pytest.MarkDecorator, ...]:
    return (pytest.mark.slow,) if path.stem in LARGE else ()


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_scenario_in_the_repository_parses_and_bears_its_file_name(path: Path) -> None:
    assert load(path.read_text(), str(path)).name == path.stem


@pytest.mark.parametrize("path", [pytest.param(p, id=p.stem, marks=_slow(p)) for p in FILES])
def test_every_scenario_keeps_what_its_file_expects(path: Path) -> None:
    done = study(load(path.read_text(), str(path)), 1, alone=True)
    assert not done.result["missed"]


def test_a_missed_expectation_is_named_with_how_far_it_was_missed_and_the_command_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "greedy.yaml"
    nodes = "models: [{bytes: 50_000_000}]\nnodes: {count: 4}"
    file.write_text(f"name: greedy\nabout: x\n{nodes}\nexpect: {{origin_copies_max: 0.25, ratio_to_bound_max: 99}}")
    assert main(["simulate", str(file), "--alone", "--json"]) == 1
    out, err = capsys.readouterr()
    why = "origin_copies is 1, at most 0.25 was expected: 0.75 over"
    assert json.loads(out.splitlines()[-1])["missed"] == [why]
    assert why in err
    file.write_text(f"name: greedy\nabout: x\n{nodes}\nexpect: {{origin_copies_max: 1.0}}")
    assert main(["simulate", str(file), "--alone"]) == 0


@pytest.mark.parametrize(
    ("text", "named"),
    [("name: x\nabout: y\nnode: {}", "node"), ("name: x\nabout: y\nnodes: {count: many}", "count"),
     ("name: x\nabout: y\nfaults: [{kind: meteor}]", "meteor"), ("about: y", "name"), ("[", "YAML")],
)  # fmt: skip
def test_what_is_off_in_a_scenario_is_named(text: str, named: str) -> None:
    with pytest.raises(Usage, match=named):
        load(text, "file.yaml")


def test_a_cold_burst_reads_one_copy_and_a_warm_one_none_and_the_accounts_add_up() -> None:
    cold = simulate(SMALL, 1)
    check_accounts(cold)
    assert cold.origin_copies == 1.0 and len(cold.finished) == 8
    warm = simulate(Scenario("w", "", SMALL.models, Nodes(count=16), pulls=Pulls(warm=8)), 1)
    check_accounts(warm)
    assert warm.origin_copies == 0.0 and len(warm.finished) == 8


def test_a_real_manifest_can_stand_in_for_a_scenario_s_model() -> None:
    manifest, _ = model(40, size=3_000_000, seed="real")
    outcome = simulate(SMALL, 1, manifests=(manifest,))
    assert outcome.model_bytes == 120_000_000 and outcome.origin_copies == 1.0
    assert {event[3] for event in outcome.world.trace.events} == set(range(40))


def test_accounts_that_differ_by_one_byte_are_found() -> None:
    for spoil in (
        lambda ledger: setattr(ledger, "sent_bytes", ledger.sent_bytes + 1),
        lambda ledger: ledger.bytes_by_tier.update({Tier.PEER: 1}),
        lambda ledger: ledger.wasted(Tier.ORIGIN, 1),
    ):
        outcome = simulate(SMALL, 1)
        check_accounts(outcome)
        spoil(next(iter(outcome.ledgers.values())))
        with pytest.raises(AccountsDiffer):
            check_accounts(outcome)


def test_a_chunk_is_in_its_nodes_account_once_even_if_it_was_fetched_for_another_first() -> None:
    late = Scenario("late", "", SMALL.models, SMALL.nodes, pulls=Pulls(over_s=0.5))
    outcome = simulate(late, 1)
    assert {sum(ledger.bytes_by_tier.values()) for ledger in outcome.ledgers.values()} == {outcome.model_bytes}


def test_the_same_seed_gives_the_same_trace_whatever_the_hash_seed_of_python_is() -> None:
    code = (
        "from bdn.sim.run import simulate; from bdn.sim.scenario import *\n"
        "s = Scenario('s', '', (Model(bytes=200_000_000),), Nodes(count=8, zones=2),\n"
        "joins=Joins(present=4, over_s=0.1),"
        "faults=(Fault('die', 0.1, first=2), Fault('corrupt', first=1)))\n"
        "print(simulate(s, 5).world.trace.digest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}, check=True,
            capture_output=True, text=True,
        ).stdout
        for seed in ("0", "1")
    }  # fmt: skip
    assert len(digests) == 1
    assert simulate(SMALL, 1).world.trace.digest() != simulate(SMALL, 2).world.trace.digest()


def test_two_zones_exchange_one_copy() -> None:
    outcome = simulate(Scenario("z", "", SMALL.models, Nodes(count=12, zones=2)), 1)
    assert outcome.origin_copies == 1.0
    assert outcome.world.cross_zone_bytes <= 1.1 * outcome.model_bytes


def test_nodes_that_join_within_the_lag_of_the_news_still_read_one_copy_once_their_views_settle() -> None:
    from bdn.policy import Limits

    joining = Scenario(
        "j", "", SMALL.models, Nodes(count=12), joins=Joins(present=0, over_s=2, lag_s=1), limits=Limits(settle_s=1.0)
    )
    outcome = simulate(joining, 1)
    assert len(outcome.finished) == 12
    assert outcome.origin_copies <= 1.05


def test_a_wrong_byte_of_a_peer_never_lands_and_costs_few_reads() -> None:
    outcome = simulate(Scenario("c", "", SMALL.models, Nodes(count=8), faults=(Fault("corrupt", first=3),)), 1)
    check_accounts(outcome)
    assert len(outcome.finished) == 8
    blamed = sum(ledger.corrupt_by_source["node-0003"] for ledger in outcome.ledgers.values())
    assert blamed >= 1


def test_every_rival_finishes_and_reads_at_least_what_we_read() -> None:
    bound = report(SMALL, 1, simulate(SMALL, 1), {n: simulate(SMALL, 1, rival()) for n, rival in RIVALS.items()})
    others = bound["alternatives"]
    assert isinstance(others, dict) and len(others) == len(RIVALS)
    assert all(figures["finished"] == 8 and figures["origin_copies"] >= 1.0 for figures in others.values())
    assert others["everyone_from_origin"]["origin_copies"] == 8.0


def test_a_peer_that_sends_slowly_but_steadily_is_not_left_for_another() -> None:
    # The link is what is slow: every chunk takes more than a second, whoever sends it.
    nodes, model = Nodes(count=4, nic_gbit=0.4), Model(bytes=200_000_000, chunk_mib=8)
    outcome = simulate(Scenario("slow-link", "", models=(model,), nodes=nodes, pulls=Pulls(warm=3)), 1)
    assert sum(sum(ledger.wasted_by_tier.values()) for ledger in outcome.ledgers.values()) == 0
    assert outcome.seconds < 1.1 * 200e6 / 50e6


def test_a_small_pull_is_not_starved_by_a_large_one_and_preheat_yields_to_a_waiting_container() -> None:
    def done(*models: Model) -> dict[str, float]:
        outcome = simulate(Scenario("share", "", models, Nodes(count=6, nic_gbit=5.0)), 1)
        return {m.seed: max(at for (_, k), at in outcome.finished.items() if k == i) for i, m in enumerate(models)}

    small, large = Model(bytes=240_000_000, seed="small"), Model(bytes=2_400_000_000, seed="large")
    small_alone, large_alone = done(small)["small"], done(large)["large"]
    equal = done(large, small)["small"]
    before_preheat = done(replace(large, priority=9), small)["small"]
    assert equal < 3.0 * small_alone < large_alone, "an equal share, not what the large one leaves"
    assert before_preheat < 2.2 * small_alone and before_preheat < equal
    assert done(large, replace(small, priority=9))["large"] < 1.1 * large_alone


def test_callers_wait_less_when_replicas_start_sooner_and_a_schedule_helps_where_it_knows() -> None:
    calls = Calls(((0, 1), (600, 1), (630, 6), (1800, 6)), 120, 16, 0.7, 10, 100, {"engine": 20}, ((500, 60),))
    slow = run_calls(calls, [120.0], scheduled=False, seed=1)
    fast = run_calls(calls, [5.0], scheduled=False, seed=1)
    known = run_calls(calls, [5.0], scheduled=True, seed=1)
    assert known.waited_over_1s <= fast.waited_over_1s < slow.waited_over_1s
    assert slow.callers == fast.callers > 0
