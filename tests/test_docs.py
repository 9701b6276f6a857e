"""The README against the code: its tables are complete, its links lead somewhere, its commands run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bdn.fleet import free_ports
from tests import docs

PAGES = [
    "README.md", "bdn/README.md", "benchmarks/README.md", "benchmarks/scenarios/README.md", "k8s/README.md",
    "manifests/README.md", "runtime/README.md", "runtime/train/README.md", "voices/demo/README.md",
]  # fmt: skip
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, kind: str | None = None) -> list[str]:
    text = (docs.ROOT / page).read_text(encoding="utf-8")
    return [body for found, body in BLOCK.findall(text) if kind is None or found == kind]


def commands() -> list[list[str]]:
    """Every command of every block, as words, without comments and `&`."""
    found = []
    for page in PAGES:
        for line in "".join(blocks(page)).splitlines():
            if line.split(" ", 1)[0] in ("bdn", "tts", "make", "kubectl", "python"):
                found.append([w for w in shlex.split(line, comments=True) if w != "&"])
    return found


def test_every_verb_flag_setting_and_metric_is_in_the_readme() -> None:
    for page, sections in docs.PAGES.items():
        text = page.read_text(encoding="utf-8")
        for name, make in sections.items():
            shown = text.partition(f"<!-- begin {name} -->\n")[2].partition(f"\n<!-- end {name} -->")[0]
            assert shown == make(), f"the section {name} is not what the code says: run `python -m tests.docs`"


def test_every_command_of_the_readmes_is_one() -> None:
    parsers = {"bdn": docs.parsers("bdn"), "tts": docs.parsers("runtime")}
    make = set(re.findall(r"^([a-z-]+):", (docs.ROOT / "Makefile").read_text(), re.MULTILINE))
    for words in commands():
        tool, rest = words[0], words[1:]
        if tool in parsers:
            own = rest[: rest.index("--")] if "--" in rest else rest
            parsers[tool][own[0]][1].parse_args(own[1:])
        elif tool == "make":
            assert set(rest) <= make, words
        elif tool == "kubectl":
            assert (docs.ROOT / rest[rest.index("-k") + 1] / "kustomization.yaml").is_file(), words
    assert len(commands()) > 20


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file(page: str) -> None:
    text = (docs.ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert ((docs.ROOT / page).parent / target).exists(), f"{page} links to {target}"


def test_the_tour_runs_as_it_is_written(tmp_path: Path) -> None:
    """Only its three ports are replaced: somebody's agent may run on this machine."""
    [tour] = blocks("README.md", "sh")
    for port, free in zip(("7480", "7411", "7421"), free_ports(3), strict=True):
        assert port in tour
        tour = tour.replace(port, str(free))
    home = Path(sys.executable).parent
    env = {k: v for k, v in os.environ.items() if not k.startswith(("BDN_", "TTS_"))}
    env |= {"PATH": f"{_tools(tmp_path / 'bin')}:{home}:{env['PATH']}", "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
    env |= {"PYTHONPATH": str(docs.ROOT)}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", tour], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "nothing stored: all of it was there" in done.stderr, "the second mirror says so"
    assert "every byte matches" in done.stdout
    assert (tmp_path / "hello.wav").read_bytes()[:4] == b"RIFF"


def _tools(directory: Path) -> Path:
    """`bdn` and `tts` as the package installs them, from this tree."""
    directory.mkdir()
    for name, module in (("bdn", "bdn"), ("tts", "runtime.cli")):
        (directory / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
        (directory / name).chmod(0o755)
    assert shutil.which("bdn", path=str(directory))
    return directory
