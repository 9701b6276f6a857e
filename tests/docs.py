"""The README's reference tables, made from the code: `python -m tests.docs` writes them, `test_docs.py` compares."""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Callable, Iterable
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
    settings = {s.flag for s in importlib.import_module(f"{package}.config").all_settings()}
    every = {"--help", "--json", "--quiet", "--config", "--debug"}
    rows = []
    for verb, (about, parser, _) in parsers(package).items():
        own = []
        for action in parser._actions:
            names = [o for o in action.option_strings if o not in settings | every and o != "-h"]
            if names or not action.option_strings:
                label = " ".join(f"`{n}`" for n in names) or f"`{action.metavar or action.dest}`"
                own.append(f"{label} {clean(action.help or '')}".strip())
        rows.append((f"`{command} {verb}`", about, "; ".join(own)))
    return table(("verb", "", "arguments"), rows)


def settings(package: str) -> str:
    rows = []
    for s in importlib.import_module(f"{package}.config").all_settings():
        bounds = "" if s.low is None and s.high is None else f"{shown(s.low, s.unit)} to {shown(s.high, s.unit)}"
        bounds = " · ".join(s.choices) or bounds
        default = "" if s.default in ("", ()) else f"`{shown(s.default, s.unit)}`"
        flag = "environment only" if s.secret else f"`{s.flag}`"
        rows.append((flag, f"`{s.env}`", default, s.unit, bounds, clean(s.about)))
    return table(("flag", "variable", "default", "unit", "bounds", ""), rows)


def shown(value: object, unit: str) -> str:
    """A setting's value as a person would write it: whole powers of two as sizes, lists with commas."""
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, bool):
        return str(value).lower()
    if unit == "bytes" and isinstance(value, int | float):
        for suffix, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
            if value >= scale and value % scale == 0:
                return f"{value / scale:g}{suffix}"
    return f"{value:g}" if isinstance(value, float) else str(value)


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


SECTIONS: dict[str, Callable[[], str]] = {
    "bdn verbs": lambda: verbs("bdn", "bdn"),
    "tts verbs": lambda: verbs("runtime", "tts"),
    "bdn settings": lambda: settings("bdn"),
    "tts settings": lambda: settings("runtime"),
    "bdn metrics": metrics_bdn,
    "tts metrics": metrics_tts,
}


def filled(text: str) -> str:
    """The text with every section between its markers made anew."""
    for name, make in SECTIONS.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        assert text.count(begin) == text.count(end) == 1, f"README.md has no section {name}"
        head, _, rest = text.partition(begin)
        text = f"{head}{begin}\n{make()}\n{end}{rest.partition(end)[2]}"
    return text


if __name__ == "__main__":
    README.write_text(filled(README.read_text(encoding="utf-8")), encoding="utf-8")
