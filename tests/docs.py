"""The README's reference tables, made from the code: `python -m tests.docs` writes them, `test_docs.py` compares."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    lines.insert(1, "|" + " --- |" * len(tuple(head)))
    return "\n".join(lines)


def parsers(package: str) -> dict[str, tuple[str, argparse.ArgumentParser, Any]]:
    """Verb to its summary, its parser and its module."""
    cli = importlib.import_module(f"{package}.cli")
    found = {}
    for verb, what in cli.VERBS.items():
        name, about = (f"bdn.cli.{verb}", what) if isinstance(what, str) else what
        module = importlib.import_module(name)
        found[verb] = (about, cli.build_parser(verb, module), module)
    return found


def verbs(package: str, command: str) -> str:
    """Every verb with its own arguments; settings and what every verb takes stand elsewhere."""
    config = importlib.import_module(f"{package}.config")
    every = {"--help", "--json", "--quiet", "--config", "--debug"}
    rows = []
    for verb, (about, parser, module) in parsers(package).items():
        own = []
        settings = {s.flag for group in module.GROUPS for s in config.settings_of(group)}
        for action in parser._actions:
            names = [o for o in action.option_strings if o not in settings | every and o != "-h"]
            if names or not action.option_strings:
                label = " ".join(f"`{n}`" for n in names) or f"`{action.metavar or action.dest}`"
                own.append(f"{label} {clean(action.help or '')}".strip())
        rows.append((f"`{command} {verb}`", about, "; ".join(own)))
    return table(("verb", "", "arguments"), rows)


def settings(package: str) -> str:
    rows = []
    groups = {verb: module.GROUPS for verb, (_, _, module) in parsers(package).items()}
    for s in importlib.import_module(f"{package}.config").all_settings():
        bounds = "" if s.low is None and s.high is None else f"{s.written(s.low)} to {s.written(s.high)}"
        bounds = " · ".join(s.choices) or bounds
        default = "" if s.default in ("", ()) else f"`{s.written(s.default)}`"
        flag = "environment only" if s.secret else f"`{s.flag}`"
        takers = ", ".join(v for v, taken in groups.items() if any(s.name in g.__dataclass_fields__ for g in taken))
        rows.append((flag, f"`{s.env}`", takers, default, s.unit, bounds, clean(s.about)))
    return table(("flag", "variable", "of", "default", "unit", "bounds", ""), rows)


def metrics_bdn() -> str:
    from bdn.ledger import Ledger
    from bdn.metrics import Metrics, Snapshot

    return exposition(Metrics(lambda: Snapshot(Ledger())).text().decode())


def metrics_tts() -> str:
    from prometheus_client import generate_latest

    from runtime.serve.conductor import Tally
    from runtime.serve.meters import Meters

    return exposition(generate_latest(Meters(Tally).registry).decode(), "tts_")


def exposition(text: str, prefix: str = "bdn_") -> str:
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE))
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    named = {n: a for n, a in helps.items() if n.startswith(prefix) and not n.endswith("_created")}
    return table(("metric", "type", ""), [(f"`{n}`", types[n], clean(a)) for n, a in sorted(named.items())])


def clean(text: str) -> str:
    return text.replace("%%", "%").replace("|", "\\|").replace("\n", " ")


def scenario(kind: str) -> str:
    """One mapping of a scenario file: its keys as `bdn/sim/scenario.py` has them, with defaults, bounds and words."""
    from bdn.sim import scenario as module
    from bdn.sim.bounds import BOUNDS, KINDS

    source = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    body = next(n for n in source.body if isinstance(n, ast.ClassDef) and n.name == kind).body
    about = {
        a.target.id: " ".join(b.value.value.split())
        for a, b in pairwise(body)
        if isinstance(a, ast.AnnAssign) and isinstance(a.target, ast.Name)
        and isinstance(b, ast.Expr) and isinstance(b.value, ast.Constant) and isinstance(b.value.value, str)
    }  # fmt: skip
    rows = []
    for f in dataclasses.fields(getattr(module, kind)):
        plain = isinstance(f.default, int | float | str)
        default = f"`{f.default}`" if plain else "**required**" if f.default_factory is f.default else ""
        low, high = BOUNDS.get(f"{kind}.{f.name}") or (KINDS.get(kind, (None, None)) if plain else (None, None))
        words = about.get(f.name) or ("" if default or kind == "Expect" else "see below")
        rows.append((f"`{f.name}`", default, "" if low is None else f"{low:g} to {high:g}", clean(words)))
    return table(("key", "default", "bounds", ""), rows)


def heeded() -> str:
    from bdn.sim.scenario import FAULTS

    rows = ((f"`{k}`", ", ".join(f"`{n}`" for n in ("at_s", *sorted(v)))) for k, v in FAULTS.items())
    return table(("kind", "heeds"), rows)


SECTIONS: dict[str, Callable[[], str]] = {
    "bdn verbs": lambda: verbs("bdn", "bdn"),
    "tts verbs": lambda: verbs("runtime", "tts"),
    "bdn settings": lambda: settings("bdn"),
    "tts settings": lambda: settings("runtime"),
    "bdn metrics": metrics_bdn,
    "tts metrics": metrics_tts,
}


SCENARIOS: dict[str, Callable[[], str]] = {
    **{f"scenario {kind}": partial(scenario, kind) for kind in (
        "Scenario", "Model", "Nodes", "OriginSpec", "Joins", "Pulls", "Fault", "Expect")},
    "scenario faults": heeded,
}  # fmt: skip
PAGES = {README: SECTIONS, ROOT / "benchmarks" / "scenarios" / "README.md": SCENARIOS}


def filled(text: str, sections: Mapping[str, Callable[[], str]]) -> str:
    """The text with every section between its markers made anew."""
    for name, make in sections.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        assert text.count(begin) == text.count(end) == 1, f"the page has no section {name}"
        head, _, rest = text.partition(begin)
        text = f"{head}{begin}\n{make()}\n{end}{rest.partition(end)[2]}"
    return text


if __name__ == "__main__":
    for page, sections in PAGES.items():
        page.write_text(filled(page.read_text(encoding="utf-8"), sections), encoding="utf-8")
