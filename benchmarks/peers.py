"""Owns how each peer tool is called: the command that a person would type, on the same bytes from the same server."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.data import Seeded
from benchmarks.rounds import ROOT, WORK, Contestant

BENCH_ENV = Path(os.environ.get("BDN_BENCH_ENV", ROOT / ".work" / "bench"))
LIBRARIES = ("boto3", "boto3_crt", "obstore", "aiobotocore", "aiohttp_aiofiles", "aiohttp_plain", "huggingface_hub")
SYNCED, THEN_SYNC = ("rclone", "curl", "s5cmd", "obstore"), " then sync"
"""The fastest of those that leave their bytes in the page cache run once more with a sync behind them."""
SIGNED = (("AWS_ACCESS_KEY_ID", "x"), ("AWS_SECRET_ACCESS_KEY", "x"), ("AWS_DEFAULT_REGION", "us-east-1"))


def tool(name: str) -> str:
    """The tool's path in the bench environment, else on PATH; its bare name (which fails, and says so) else."""
    beside = BENCH_ENV / "bin" / name
    return str(beside) if beside.exists() else shutil.which(name) or name


def downloaders(url: str, files: Sequence[str], *, one_by_one: bool = False) -> list[Contestant]:
    """Everything that installs here and can fetch `bucket/<file>`. one_by_one: thousands of small files."""
    listed = WORK / "files.txt"
    listed.write_text("\n".join(files), encoding="utf-8")
    names = [f"@{listed}"] if one_by_one else list(files)
    script = str(ROOT / "benchmarks" / "clients.py")

    def library(name: str) -> Contestant:
        return Contestant(name, lambda out: [tool("python"), script, name, url, str(out), *names])

    rclone = [tool("rclone"), "copy", "--config", "/dev/null", "-q"]
    http = [*rclone, "--http-url", f"{url}/bucket/", "--files-from", str(listed), "--no-traverse"]
    found = [library(name) for name in LIBRARIES]
    transfers = "16" if one_by_one else "8"
    fetch = [*http, "--transfers", transfers, "--multi-thread-streams", "4", ":http:"]
    found.append(Contestant("rclone", lambda out: [*fetch, str(out)]))
    found.append(Contestant("aria2", lambda out: _aria2(url, files, out, one_by_one)))
    found.append(Contestant("curl", lambda out: _curl(url, files, out, one_by_one)))
    found.append(Contestant("s5cmd", lambda out: _s5cmd(url, files, out), env=SIGNED))
    if not one_by_one:
        found.append(Contestant("aws-cli", lambda out: _aws(url, files, out), env=SIGNED))
    return [*found, *(then_synced(c) for c in found if c.name in SYNCED)]


def then_synced(contestant: Contestant) -> Contestant:
    """The same tool, held to what ours does: it has returned once the bytes survive a power cut."""
    synced = 'out="$1"; shift; "$@" && exec sync -f "$out"'  # A library syncs inside what it measures of itself.
    library = contestant.name in LIBRARIES

    def command(out: Path) -> Sequence[str]:
        plain = contestant.command(out)
        return plain if library else ["sh", "-c", synced, "sh", str(out), *plain]

    env = (*contestant.env, *([("SYNC_AFTER", "1")] if library else []))
    return Contestant(f"{contestant.name}{THEN_SYNC}", command, env=env)


def _aria2(url: str, files: Sequence[str], out: Path, one_by_one: bool) -> list[str]:
    listed = out.parent / "aria2.txt"
    listed.write_text("".join(f"{url}/bucket/{f}\n out={f}\n" for f in files), encoding="utf-8")
    split = "1" if one_by_one else "8"
    options = ["--file-allocation=falloc", "--auto-file-renaming=false", "-k", "1M", "-j", "16"]
    return [tool("aria2c"), "-q", "--no-conf", "-x", split, "-s", split, *options, "-d", str(out), "-i", str(listed)]


def _curl(url: str, files: Sequence[str], out: Path, one_by_one: bool) -> list[str]:
    config = out.parent / "curl.txt"
    config.write_text("".join(f'url="{url}/bucket/{f}"\noutput="{out / f}"\n' for f in files), encoding="utf-8")
    parallel = ["--parallel", "--parallel-max", "16"] if one_by_one or len(files) > 1 else []
    return [tool("curl"), "-sS", "--fail", "--create-dirs", *parallel, "--config", str(config)]


def _s5cmd(url: str, files: Sequence[str], out: Path) -> list[str]:
    commands = out.parent / "s5cmd.txt"
    commands.write_text("".join(f"cp -c 8 s3://bucket/{f} {out / f}\n" for f in files), encoding="utf-8")
    return [tool("s5cmd"), "--endpoint-url", url, "--no-sign-request", "run", str(commands)]


def _aws(url: str, files: Sequence[str], out: Path) -> list[str]:
    lines = [
        f"{tool('aws')} s3 cp --quiet --no-sign-request --endpoint-url {url} s3://bucket/{f} {out / f}" for f in files
    ]
    return ["sh", "-c", " && ".join(lines)]


def ours(url: str, *extra: str, name: str = "ours", verified: bool = True, verb: str = "pull") -> Contestant:
    command = [sys.executable, "-m", "benchmarks.ours", verb, url]
    return Contestant(name, lambda out: [*command, str(out), *extra], verified=verified)


def bare(url: str, data: Seeded, *extra: str, name: str = "ours (bare loop)", verified: bool = True) -> Contestant:
    """What the same receiving, hashing and writing costs with nothing around it: the machine's part of ours."""
    [file] = data.files
    command = [sys.executable, "-m", "benchmarks.bare", f"{url}/bucket/{file}"]
    return Contestant(name, lambda out: [*command, str(out / file), str(data.total_bytes), *extra], verified=verified)
