"""Owns how each peer tool is called: the command that a person would type, on the same bytes from the same server."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.rounds import ROOT, WORK, Contestant

BENCH_ENV = Path(os.environ.get("BDN_BENCH_ENV", ROOT / ".work" / "bench"))
LIBRARIES = ("boto3", "boto3_crt", "obstore", "aiobotocore", "aiohttp_aiofiles", "aiohttp_plain", "huggingface_hub")
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
    synced = 'out="$1"; shift; "$@" "$out" && exec sync -f "$out"'
    found.append(Contestant("rclone, then sync", lambda out: ["sh", "-c", synced, "sh", str(out), *fetch]))
    found.append(Contestant("aria2", lambda out: _aria2(url, files, out, one_by_one)))
    found.append(Contestant("curl", lambda out: _curl(url, files, out, one_by_one)))
    found.append(Contestant("s5cmd", lambda out: _s5cmd(url, files, out), env=SIGNED))
    if not one_by_one:
        found.append(Contestant("aws-cli", lambda out: _aws(url, files, out), env=SIGNED))
    return found


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
