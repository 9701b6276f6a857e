"""`bdn simulate`: a rollout on machines that are not there, by the code that runs on those that are."""

from __future__ import annotations

import argparse
from pathlib import Path

from bdn.cli.verb import Call
from bdn.errors import Invalid, Missing, Usage
from bdn.sim.pictures import draw
from bdn.sim.results import missed, table
from bdn.sim.scenario import load
from bdn.sim.study import study

EXAMPLES = """
bdn simulate benchmarks/scenarios/cold-50.yaml
bdn simulate benchmarks/scenarios/churn-50.yaml --json --seed 7
bdn simulate benchmarks/scenarios/burst-autoscale.yaml --pictures out/
"""
GROUPS: tuple[type, ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scenario", metavar="FILE", help="a scenario in YAML; see benchmarks/scenarios/")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="equal seeds give equal traces (default 1)")
    parser.add_argument("--alone", action="store_true", help="without the rivals, which take most of the time")
    parser.add_argument("--pictures", metavar="DIR", help="write SVG pictures there (needs the extra `sim`)")


def run(call: Call) -> int:
    path = Path(call.args.scenario)
    if path.is_dir():
        raise Usage(f"{str(path)!r} is a directory", hint="name one of the scenarios in it")
    if not path.is_file():
        raise Missing(f"there is no scenario {str(path)!r}", hint="benchmarks/scenarios/ holds some")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise Usage("not UTF-8 text", where=str(path)) from None
    except OSError as why:
        raise Invalid(f"cannot read: {why.strerror}", where=str(path)) from None
    scenario = load(text, str(path))
    done = study(scenario, call.args.seed, alone=call.args.alone, say=call.console.say)
    lines = [table(done.result)]
    for name, waits in done.waits.items():
        lines.append(
            f"callers, {name}: {waits.waited_over_1s} of {waits.callers} waited over 1 s, p99 {waits.p99_s:.1f} s, "
            f"{waits.replica_hours:.1f} replica-hours"
        )
    if call.args.pictures:
        paths = draw(done.outcomes, done.waits, Path(call.args.pictures), scenario.name, done.bound_s)
        done.result["pictures"] = [str(p) for p in paths]
        lines.extend(f"wrote {p}" for p in paths)
    broken = missed(scenario.expect, done.result)
    lines.extend(f"not as expected: {line}" for line in broken)
    call.console.fact(done.result, "\n".join(lines))
    if call.console.as_json:
        for line in broken:
            call.console.say(f"{scenario.name}: not as expected: {line}")
    return 1 if broken else 0
