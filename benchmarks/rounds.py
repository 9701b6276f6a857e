"""Owns fair comparison: named contestants on the same bytes in shuffled rounds, each a process of its own, medians out.

CPU seconds are the column to trust on a shared machine; wall times only as ratios within one run. Python contestants
report their own use from after their imports (an agent is running when a pull begins); binaries are measured whole.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WORK = Path(os.environ.get("BDN_BENCH_DIR", tempfile.gettempdir())) / "bdn-bench"


@dataclass(frozen=True)
class Contestant:
    """One way to do the work. `command` gets an empty directory to write to; `check` says whether it did."""

    name: str
    command: Callable[[Path], Sequence[str]]
    verified: bool = False
    """Whether it checked every byte against a strong digest."""
    env: tuple[tuple[str, str], ...] = ()


@dataclass
class Measured:
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    server_cpu_s: list[float] = field(default_factory=list)
    rss_mb: list[float] = field(default_factory=list)
    extra: dict[str, list[float]] = field(default_factory=dict)
    verified: bool = False
    failed: str = ""

    def summary(self, gigabytes: float) -> dict[str, object]:
        if self.failed:
            return {"failed": self.failed}
        out: dict[str, object] = {
            "wall_s": round(statistics.median(self.wall_s), 3),
            "gb_per_s": round(gigabytes / statistics.median(self.wall_s), 3),
            "core_s_per_gb": round(statistics.median(self.cpu_s) / gigabytes, 3),
            "rss_mb": round(max(self.rss_mb), 1),
            "verified": self.verified,
            "rounds": len(self.wall_s),
        }
        if self.server_cpu_s:
            out["server_core_s_per_gb"] = round(statistics.median(self.server_cpu_s) / gigabytes, 3)
        out.update({k: round(statistics.median(v), 3) for k, v in self.extra.items()})
        return out


def run_rounds(
    contestants: Sequence[Contestant],
    *,
    rounds: int,
    seed: int,
    server_pids: Sequence[int] = (),
    check: Callable[[Contestant, Path], str] = lambda contestant, out: "",
    before: Callable[[], None] = lambda: None,
    timeout_s: float = 300.0,
    keep: bool = False,
) -> dict[str, Measured]:
    """Every contestant once a round, in an order that changes. One that fails is out, and the result says why.

    keep: remove what they wrote only at the end. ext4 passes over an inode for minutes after its file is deleted, so
    that whoever creates thousands of files after someone's were removed pays (2.8 s for 5,000 that take 0.15 s).
    """
    rng = random.Random(seed)
    kept = WORK / "kept"
    shutil.rmtree(kept, ignore_errors=True)
    results = {c.name: Measured(verified=c.verified) for c in contestants}
    for number in range(rounds):
        order = [c for c in contestants if not results[c.name].failed]
        rng.shuffle(order)
        for contestant in order:
            before()
            measure(contestant, results[contestant.name], server_pids, check, timeout_s)
            if keep:
                kept.mkdir(parents=True, exist_ok=True)
                (WORK / "out").rename(kept / f"{number}-{len(list(kept.iterdir()))}")
            else:
                shutil.rmtree(WORK / "out", ignore_errors=True)
            result = results[contestant.name]
            note = result.failed or f"{result.wall_s[-1]:.2f} s, {result.cpu_s[-1]:.2f} core-s"
            print(f"  round {number + 1}/{rounds} {contestant.name}: {note}", file=sys.stderr, flush=True)
    shutil.rmtree(kept, ignore_errors=True)
    return results


def measure(
    contestant: Contestant,
    result: Measured,
    server_pids: Sequence[int],
    check: Callable[[Contestant, Path], str],
    timeout_s: float,
) -> None:
    out = WORK / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    try:
        command = list(contestant.command(out))
        server_before = sum(map(cpu_of, server_pids))
        with tempfile.TemporaryFile() as words:
            start = time.perf_counter()
            process = subprocess.Popen(command, stdout=words, stderr=words, cwd=ROOT, env=_env(contestant))
            status, usage, peak_mb = _wait(process, timeout_s)
            wall = time.perf_counter() - start
            words.seek(0)
            text = words.read().decode(errors="replace")
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            result.failed = f"exit {process.returncode}: {(text.strip().splitlines() or [''])[-1][:200]}"
            return
        result.failed = check(contestant, out)
        if result.failed:
            return
        own = _own_report(text)
        result.wall_s.append(own.pop("wall_s", wall))
        result.cpu_s.append(own.pop("cpu_s", usage.ru_utime + usage.ru_stime))
        result.rss_mb.append(peak_mb)
        if server_pids:
            result.server_cpu_s.append(own.pop("server_cpu_s", sum(map(cpu_of, server_pids)) - server_before))
        for name, value in own.items():
            result.extra.setdefault(name, []).append(value)
    except FileNotFoundError as why:
        result.failed = f"not installed: {why.filename}"


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> tuple[int, Any, float]:
    """Exit status, use, and peak memory in MB: of the largest process of the tree, seen every 10 ms.

    `ru_maxrss` would count what a child inherits between its fork and its exec.
    """
    until, peak = time.monotonic() + timeout_s, 0.0
    while True:
        peak = max(peak, *map(_peak_mb, _tree(process.pid)))
        done, status, usage = os.wait4(process.pid, os.WNOHANG)
        if done:
            return status, usage, peak
        if time.monotonic() > until:
            process.kill()
            _, status, usage = os.wait4(process.pid, 0)
            return status, usage, peak
        time.sleep(0.01)


def _tree(pid: int) -> list[int]:
    """The process and all that it started, as far as they still run."""
    found = [pid]
    with contextlib.suppress(OSError):
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in children.read_text(encoding="utf-8").split():
                found += _tree(int(child))
    return found


def _peak_mb(pid: int) -> float:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) / 1024
    return 0.0


def _own_report(text: str) -> dict[str, float]:
    """What a Python contestant says of itself on its last line, as {"measured": {…}}."""
    lines = text.strip().splitlines()
    if not lines or not lines[-1].startswith('{"measured"'):
        return {}
    return dict(json.loads(lines[-1])["measured"])


def _env(contestant: Contestant) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **dict(contestant.env)}


@contextlib.contextmanager
def own_use() -> Iterator[dict[str, float]]:
    """For Python contestants: measures the block and prints the last line that `_own_report` reads."""
    report: dict[str, float] = {}
    wall, cpu = time.perf_counter(), time.process_time()
    yield report
    report["wall_s"], report["cpu_s"] = time.perf_counter() - wall, time.process_time() - cpu
    print(json.dumps({"measured": report}), flush=True)


def cpu_of(pid: int) -> float:
    """CPU seconds of a process so far, children included that it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    waited_for = sum(map(int, fields[13:15])) / os.sysconf("SC_CLK_TCK")
    # Its own to the nanosecond, as clock_getcpuclockid(3) has it: /proc counts 10 ms, and a smoke run takes less.
    return time.clock_gettime(~pid << 3 | 2) + waited_for


def machine() -> dict[str, object]:
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.partition(":")[2].strip() for line in info if line.startswith("model name")), "unknown")
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "congestion": Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text(encoding="ascii").strip(),
        "load_1m": round(os.getloadavg()[0], 2),
        "date": time.strftime("%Y-%m-%d"),
    }


def commit() -> str:
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return git.stdout.strip() or "unknown"


def arguments(about: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument(
        "--smoke", action="store_true", help="one round on little data: it runs, the figures mean nothing"
    )
    parser.add_argument("--json", action="store_true", help="only the JSON line on stdout")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--gb", type=float, default=0.0, help="size of the model; 0 takes the workload's own")
    parser.add_argument("--only", default="", help="comma-separated names: leave the other contestants out")
    return parser


def chosen(contestants: Sequence[Contestant], only: str) -> list[Contestant]:
    names = [n for n in only.split(",") if n]
    return [c for c in contestants if not names or c.name in names]


def finish(
    workload: str, results: dict[str, Measured], gigabytes: float, args: argparse.Namespace, **more: object
) -> None:
    """The table for people on stderr, the JSON line last on stdout, and a copy for the README's table."""
    rows = {name: m.summary(gigabytes) for name, m in results.items()}
    ours = rows.pop("ours")
    peers = {n: r for n, r in rows.items() if not n.startswith("ours")}
    variants = {n: r for n, r in rows.items() if n.startswith("ours")}
    done = [r for r in peers.values() if "failed" not in r]
    synced = [r for n, r in peers.items() if n.endswith("sync") and "failed" not in r]
    line = {
        **about(workload, gigabytes, args), "ours": ours, "variants": variants, "peers": peers,
        "ratio_wall_to_best_peer": _ratio(ours, done, "wall_s"),
        "ratio_cpu_to_best_peer": _ratio(ours, done, "core_s_per_gb"),
        "ratio_wall_to_best_synced_peer": _ratio(ours, synced, "wall_s"), **more,
    }  # fmt: skip
    tell({"ours": ours, **variants, **peers}, line, args)


def about(workload: str, gigabytes: float, args: argparse.Namespace) -> dict[str, object]:
    """What every result says of its run."""
    return {
        "workload": workload, "gb": round(gigabytes, 3), "machine": machine(), "commit": commit(), "seed": args.seed,
        "smoke": args.smoke,
    }  # fmt: skip


def tell(rows: Mapping[str, object], line: dict[str, object], args: argparse.Namespace) -> None:
    if not args.json:
        for name, row in rows.items():
            print(f"{name:28} {row}", file=sys.stderr)
    save(line, args)
    print(json.dumps(line))


def save(line: dict[str, object], args: argparse.Namespace) -> None:
    """A full run's line, for the README's tables."""
    if not args.smoke and (not args.only or os.environ.get("BDN_BENCH_SAVE")):
        results_dir = ROOT / "benchmarks" / "results"
        results_dir.mkdir(exist_ok=True)
        (results_dir / f"{line['workload']}.json").write_text(json.dumps(line, indent=1) + "\n", encoding="utf-8")


def _ratio(ours: dict[str, object], peers: list[dict[str, object]], key: str) -> float | None:
    best = min((float(str(p[key])) for p in peers), default=0.0)
    return round(float(str(ours[key])) / best, 3) if best and key in ours else None


def in_own_network() -> None:
    """Run again in a network namespace with `reno` where root may: loopback under bbr measures its pacing, and the
    machine's own setting is not ours to change."""
    if os.environ.get("BDN_BENCH_NETNS") or os.geteuid() != 0 or shutil.which("unshare") is None:
        return
    probe = "ip link set lo up && sysctl -qw net.ipv4.tcp_congestion_control=reno"
    if subprocess.run(["unshare", "--net", "sh", "-c", probe], capture_output=True, check=False).returncode != 0:
        return
    os.environ["BDN_BENCH_NETNS"] = "1"
    os.execvp("unshare", ["unshare", "--net", "sh", "-c", f'{probe} && exec "$0" "$@"', sys.executable, *sys.argv])
