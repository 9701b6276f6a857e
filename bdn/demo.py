"""Owns the demonstration: the main job from a checkpoint to sound, on this machine, with an account at the end.

One origin, one mirror (and a second that moves nothing), a cold wave of nodes that hold a speech process back until
their weights are verified, a warm wave that joins them. All parts are the ones that run in a cluster.
"""

from __future__ import annotations

import asyncio
import datetime
import fcntl
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bdn.client import AgentClient
from bdn.config import MirrorSettings, OriginSettings
from bdn.digest import Digest
from bdn.errors import Corrupt, Invalid, Usage
from bdn.fleet import Fleet
from bdn.inspection import inspect
from bdn.manifest import Manifest
from bdn.mirror import MirrorPlan, MirrorProgress, MirrorResult, mirror
from bdn.origin_process import OriginProcess
from bdn.origins.open import open_writer
from bdn.receipt import Receipt, Span
from bdn.receipt import Wave as WaveAccount
from bdn.receipt_page import page
from bdn.rollout import Member, Wave, account, make_members
from bdn.specs import default_name
from bdn.upstreams import open_upstream

TAG = "latest"
VOICE = Path(__file__).resolve().parents[1] / "voices" / "demo"  # In a checkout; an installed package has none.
TEXT = "Every node read its weights once, and nobody had to wait for the others."


@dataclass(frozen=True)
class Story:
    """What to demonstrate. `model` empty: the demo voice, or a seeded checkpoint where there is none."""

    work: Path
    nodes: int = 4
    text: str = TEXT
    model: str = ""
    speech: bool = True
    warm: bool = True
    kill: bool = False
    origin: OriginSettings = field(default_factory=OriginSettings)
    origin_bytes_per_s: float = 0.0
    """What the embedded origin may send; 0 for no limit."""


@dataclass(frozen=True)
class Outlet:
    """How the story is told while it goes on."""

    say: Callable[[str], None]
    bar: Callable[[str], Callable[[int, int], None]]


class Demo:
    """Run it once. Everything that it starts has ended when `run` returns or raises."""

    def __init__(self, story: Story, outlet: Outlet, env: Mapping[str, str]) -> None:
        self._story, self._outlet = story, outlet
        self._run_dir = story.work / "run"
        # A BDN_ setting meant for the caller's own node must not reach these.
        self._env = {k: v for k, v in env.items() if not k.startswith("BDN_")}
        self._phases: dict[str, float] = {}
        self._notes: list[str] = []
        self._bars: dict[str, Callable[[int, int], None]] = {}

    async def run(self) -> Receipt:
        """Raises what any part of it raises; nothing that it started is left then."""
        began = time.monotonic()
        with _alone(self._story.work):
            shutil.rmtree(self._run_dir, ignore_errors=True)
            self._run_dir.mkdir(parents=True)
            async with Fleet(self._run_dir / "logs") as fleet:
                receipt = await self._tell(fleet, began)
            shutil.rmtree(self._run_dir / "nodes", ignore_errors=True)
        _write(receipt)
        return receipt

    async def _tell(self, fleet: Fleet, began: float) -> Receipt:
        with self._phase("checkpoint"):
            model, about = await self._checkpoint(fleet)
        where, flags = self._story.origin, self._origin_flags()
        stored = where.origin or str(self._run_dir / "origin")
        first, second = await self._mirror_twice(model, stored)
        counter: OriginProcess | None = None
        if not where.origin:
            with self._phase("origin"):
                counter = await OriginProcess.start(
                    fleet, Path(stored), self._env, bytes_per_s=self._story.origin_bytes_per_s
                )
            flags = ["--origin", counter.url]
        ref = f"{self._name}:{TAG}@{first.manifest}"
        cold = await self._wave(fleet, "node", (), ref, flags, counter, self._story.speech, first.model_bytes)
        warm = None
        if self._story.warm:
            warm = await self._wave(fleet, "late", cold[0], ref, flags, counter, False, first.model_bytes)
        self._phases["total"] = time.monotonic() - began
        return self._receipt(about, stored, first, second, cold, warm)

    # Before: a checkpoint at the origin

    @property
    def _name(self) -> str:
        """What the model is called: its tag stays at an origin of one's own, so it must not be another model's."""
        if not self._story.model:
            return "demo-voice"
        try:
            return default_name(self._story.model)
        except Usage:  # A name that no model may have: here it is only a word in the receipt.
            return "demo-model"

    async def _checkpoint(self, fleet: Fleet) -> tuple[Path, str]:
        """The model's directory, and in plain words what it is."""
        if self._story.model:
            path = Path(self._story.model)
            return path, f"the directory {path.name}"
        if (VOICE / "config.json").is_file():
            return VOICE, "the demo voice, a small model trained for this repository"
        self._outlet.say("there is no trained demo voice yet: a seeded random checkpoint speaks noise, not words")
        target = self._run_dir / "checkpoint"
        argv = [sys.executable, "-m", "runtime.cli", "make-checkpoint", str(target), "--seed", "1", "--quiet"]
        made = await fleet.start("make-checkpoint", argv, env=self._env, collect=True)
        await made.output()
        return target, "a seeded random checkpoint: it speaks noise, not words"

    def _origin_flags(self) -> list[str]:
        o = self._story.origin
        given = (("--origin", o.origin), ("--endpoint", o.endpoint), ("--region", o.region))
        return [word for flag, value in given if value for word in (flag, value)]

    async def _mirror_twice(self, model: Path, stored: str) -> tuple[MirrorResult, MirrorResult]:
        results = []
        for phase in ("mirror", "mirror_again"):
            with self._phase(phase):
                results.append(await self._mirror(model, stored, phase))
        again = results[1]
        read = "read nothing" if again.remembered else "read the source to compare"
        self._outlet.say(f"second mirror of the same revision: {read}, stored {again.bytes_uploaded} bytes")
        return results[0], again

    async def _mirror(self, model: Path, stored: str, phase: str) -> MirrorResult:
        upstream = open_upstream(str(model), settings=MirrorSettings())
        writer = open_writer(stored, endpoint=self._story.origin.endpoint, region=self._story.origin.region)
        bar = self._outlet.bar(phase.replace("_", " "))

        def show(progress: MirrorProgress) -> None:
            bar(progress.bytes_read, progress.bytes_total)

        try:
            return await mirror(upstream, writer, MirrorPlan(self._name, TAG), show)
        finally:
            await writer.close()
            await upstream.close()

    # The waves

    async def _wave(
        self, fleet: Fleet, prefix: str, others: Sequence[Member], ref: str, flags: Sequence[str],
        counter: OriginProcess | None, speech: bool, model_bytes: int,
    ) -> tuple[list[Member], WaveAccount]:  # fmt: skip
        warm = "warm_" if others else ""
        members = make_members(prefix, self._story.nodes, self._run_dir / "nodes")
        killed = members[-1].name if self._story.kill and not others else ""
        wave = Wave(
            fleet, members, [m for m in others if not m.killed], self._env, flags, ref, self._show,
            self._command if speech else None, kill=killed,
        )  # fmt: skip
        with self._phase(f"{warm}agents"):
            await wave.start()
        before = await counter.sent_bytes() if counter else 0
        with self._phase(f"{warm}pull"):
            asked_at = await wave.ask()
        seconds = max((m.ready_at for m in members if not m.killed), default=asked_at) - asked_at
        self._phases[f"{warm}pull"] = seconds
        facts = {m.name: await wave.spoken(m) for m in members}
        await wave.look()
        after = await counter.sent_bytes() if counter else 0
        with self._phase(f"{warm}verify"):
            await self._verify(members)
        accounts = tuple(account(m, _spans(m, asked_at, facts[m.name]), self._wav(m, facts)) for m in members)
        if speech:
            self._speech_phases([facts[m.name] for m in members if facts[m.name]], members)
        from_ledgers = sum(a.link_bytes("origin") for a in accounts)
        return members, WaveAccount(accounts, model_bytes, after - before if counter else from_ledgers, seconds)

    def _show(self, node: str, done: int, total: int) -> None:
        if node not in self._bars:
            self._bars[node] = self._outlet.bar(node)
        self._bars[node](done, total)

    def _command(self, member: Member) -> list[str]:
        wav = self._story.work / f"{member.name}.wav"
        say = [sys.executable, "-m", "runtime.cli", "say", self._story.text]
        return [*say, "--model", "{}", "-o", str(wav), "--json"]

    def _wav(self, member: Member, facts: Mapping[str, Any]) -> str:
        return str(self._story.work / f"{member.name}.wav") if facts[member.name] else ""

    async def _verify(self, members: Sequence[Member]) -> None:
        """Every byte on every node again, from disk, by other code than the one that wrote it."""
        for m in members:
            if m.killed:
                continue
            async with AgentClient(m.socket) as agent:
                manifest: Manifest = await agent.manifest(Digest.parse(m.last["models"][0]["digest"]))
            findings = await asyncio.to_thread(inspect, manifest, Path(m.path))
            if not findings.clean:
                raise Corrupt(f"{m.name} holds something else: {findings.summary()}", where=m.path)

    def _speech_phases(self, facts: Sequence[Mapping[str, Any]], members: Sequence[Member]) -> None:
        ready = {m.name: m.ready_at for m in members}
        clocks = [f["clock_s"] for f in facts]
        spoke = [m for m in members if not m.killed]
        self._phases["start"] = max(c["began"] - ready[m.name] for c, m in zip(clocks, spoke, strict=True))
        self._phases["load"] = max(c["loaded"] - c["began"] for c in clocks)
        self._phases["first_audio"] = max(c["first_sound"] - c["loaded"] for c in clocks)
        self._phases["speak"] = max(c["ended"] - c["first_sound"] for c in clocks)

    # The account

    def _receipt(
        self, about: str, stored: str, first: MirrorResult, second: MirrorResult,
        cold: tuple[list[Member], WaveAccount], warm: tuple[list[Member], WaveAccount] | None,
    ) -> Receipt:  # fmt: skip
        nodes = cold[1].nodes
        ends = [s.end_s for n in nodes for s in n.spans if s.name == "first audio"]
        if self._story.kill:
            self._notes.append(f"{cold[0][-1].name} was ended with SIGKILL while it pulled.")
        model = {
            "ref": f"{self._name}:{TAG}", "digest": str(first.manifest), "bytes": first.model_bytes,
            "files": first.files, "chunks": first.chunks_total, "about": about,
        }  # fmt: skip
        told = {"bytes_read": first.bytes_read, "bytes_stored": first.bytes_uploaded,
                "again_bytes_read": second.bytes_read, "again_bytes_stored": second.bytes_uploaded}  # fmt: skip
        work = self._story.work
        return Receipt(
            model=model, origin=self._story.origin.origin or "embedded: this directory, served over HTTP", mirror=told,
            cold=cold[1], warm=warm[1] if warm else None, phases_s=self._phases,
            first_audio_s=max(ends) if ends else None, wav=next((n.wav for n in nodes if n.wav), ""),
            report_html=str(work / "receipt.html"), report_json=str(work / "receipt.json"), machine=_machine(),
            notes=tuple(self._notes),
        )  # fmt: skip

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._phases[name] = time.monotonic() - began


def _spans(member: Member, asked_at: float, facts: Mapping[str, Any]) -> tuple[Span, ...]:
    """A node's phases after the asking. All times are of one machine's monotonic clock."""
    if member.killed:
        return ()
    ready = member.ready_at
    points = [("pull", asked_at, ready)]
    if facts:
        c = facts["clock_s"]
        points += [("start", ready, c["began"]), ("load", c["began"], c["loaded"]),
                   ("first audio", c["loaded"], c["first_sound"]), ("speak", c["first_sound"], c["ended"])]  # fmt: skip
    return tuple(Span(name, start - asked_at, end - asked_at) for name, start, end in points)


def _machine() -> dict[str, object]:
    now = datetime.datetime.now(datetime.UTC)
    return {
        "date": now.strftime("%Y-%m-%d %H:%M UTC"), "cpus": os.cpu_count() or 0, "python": platform.python_version(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()} {platform.release()}",
    }  # fmt: skip


@contextmanager
def _alone(work: Path) -> Iterator[None]:
    """One demonstration at a time in one directory."""
    try:
        work.mkdir(parents=True, exist_ok=True)
        lock = os.open(work / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as why:
        raise Invalid(f"cannot work in {work}: {why.strerror}", hint="name another directory with --work") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise Invalid(f"another demo runs in {work}", hint="wait for it, or name another --work") from None
    try:
        yield
    finally:
        os.close(lock)


def _write(receipt: Receipt) -> None:
    Path(receipt.report_json).write_text(json.dumps(receipt.json(), indent=1) + "\n", encoding="utf-8")
    Path(receipt.report_html).write_text(page(receipt), encoding="utf-8")
