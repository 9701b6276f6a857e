"""Peers that are Python libraries, one small program each: `python clients.py NAME BASE_URL OUT FILE…`.

Used as their documentation shows, with the concurrency that suits them on this machine; none is given our tricks.
Runs with the interpreter of the bench environment (`benchmarks/peers.txt`), not with ours: their pins conflict.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PIECE = 1 << 20


def boto3_client(url: str, crt: bool) -> Any:
    import boto3
    from botocore import UNSIGNED
    from botocore.config import Config

    host = url.replace("127.0.0.1", "localhost") if crt else url  # The CRT path refuses a bare address.
    return boto3.client(
        "s3", endpoint_url=host, region_name="us-east-1",
        config=Config(signature_version=UNSIGNED, s3={"addressing_style": "path"}, max_pool_connections=16),
    )  # fmt: skip


def boto3(url: str, out: Path, files: list[str], *, crt: bool = False) -> None:
    from boto3.s3.transfer import TransferConfig

    client = boto3_client(url, crt)
    config = TransferConfig(preferred_transfer_client="crt" if crt else "classic", max_concurrency=8)
    for name in files:
        client.download_file("bucket", name, str(out / name), Config=config)


def boto3_crt(url: str, out: Path, files: list[str]) -> None:
    boto3(url, out, files, crt=True)


def obstore(url: str, out: Path, files: list[str]) -> None:
    import obstore as obs
    from obstore.store import HTTPStore

    store = HTTPStore(f"{url}/bucket", client_options={"allow_http": True})

    async def one(name: str) -> None:
        answer = await obs.get_async(store, name)
        with (out / name).open("wb") as file:
            async for piece in answer.stream(min_chunk_size=PIECE):
                file.write(piece)

    asyncio.run(gather(one, files, 16))


def aiohttp_aiofiles(url: str, out: Path, files: list[str], *, aio: bool = True) -> None:
    """The obvious loop of a hundred download scripts."""
    import aiofiles
    import aiohttp

    async def work() -> None:
        async with aiohttp.ClientSession() as session:

            async def one(name: str) -> None:
                async with session.get(f"{url}/bucket/{name}") as answer:
                    if aio:
                        async with aiofiles.open(out / name, "wb") as file:
                            async for piece in answer.content.iter_chunked(PIECE):
                                await file.write(piece)
                    else:
                        with (out / name).open("wb") as plain:
                            async for piece in answer.content.iter_chunked(PIECE):
                                plain.write(piece)

            await gather(one, files, 16)

    asyncio.run(work())


def aiohttp_plain(url: str, out: Path, files: list[str]) -> None:
    aiohttp_aiofiles(url, out, files, aio=False)


def aiobotocore(url: str, out: Path, files: list[str]) -> None:
    import aiofiles
    from aiobotocore.session import get_session
    from botocore import UNSIGNED
    from botocore.config import Config

    async def work() -> None:
        config = Config(signature_version=UNSIGNED, s3={"addressing_style": "path"}, max_pool_connections=16)
        session = get_session()
        async with session.create_client("s3", endpoint_url=url, region_name="us-east-1", config=config) as client:

            async def one(name: str) -> None:
                answer = await client.get_object(Bucket="bucket", Key=name)
                async with answer["Body"] as body, aiofiles.open(out / name, "wb") as file:
                    while piece := await body.read(PIECE):
                        await file.write(piece)

            await gather(one, files, 16)

    asyncio.run(work())


def huggingface_hub(url: str, out: Path, files: list[str]) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from huggingface_hub import hf_hub_download

    def one(name: str) -> None:
        hf_hub_download("org/model", name, endpoint=f"{url}/hub", local_dir=out)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, files))


async def gather(one: Any, files: list[str], at_once: int) -> None:
    gate = asyncio.Semaphore(at_once)

    async def bounded(name: str) -> None:
        async with gate:
            await one(name)

    await asyncio.gather(*(bounded(name) for name in files))


IMPORTS = {
    "boto3": ["boto3"], "boto3_crt": ["boto3", "awscrt"], "obstore": ["obstore"],
    "aiobotocore": ["aiobotocore.session"],
    "aiohttp_aiofiles": ["aiohttp", "aiofiles"], "aiohttp_plain": ["aiohttp"], "huggingface_hub": ["huggingface_hub"],
}  # fmt: skip


def main() -> None:
    name, url, out, *files = sys.argv[1:]
    if len(files) == 1 and files[0].startswith("@"):
        files = Path(files[0][1:]).read_text(encoding="utf-8").split()
    for module in IMPORTS[name]:
        __import__(module)
    wall, cpu = time.perf_counter(), time.process_time()
    globals()[name](url, Path(out), files)
    if os.environ.get("SYNC_AFTER"):
        subprocess.run(["sync", "-f", out], check=True)
    report = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
    print(json.dumps({"measured": report}), flush=True)


if __name__ == "__main__":
    main()
