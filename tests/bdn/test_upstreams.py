"""Sources: a revision is pinned, a broken stream is taken up where it broke, and every refusal is its own one line."""

from __future__ import annotations

import asyncio
import ctypes
import dataclasses
import hashlib
import mmap
import os
import platform
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiohttp import web

from bdn.config import MirrorSettings
from bdn.errors import BdnError, Corrupt, Invalid, SourceDown, Usage
from bdn.ports import Listing, UpstreamFile
from bdn.sinks import open_direct
from bdn.upstreams import open_upstream
from bdn.upstreams.directory import DirectoryUpstream
from bdn.upstreams.patterns import chosen
from tests.hub import Hub, Repository, running, serving

FILES = {
    "config.json": b"{}", "model.safetensors": bytes(range(256)) * 8000, "sub/a.safetensors": b"a" * 10,
    "sub/b.txt": b"b" * 100, "tokenizer.model": b"t" * 55,
}  # fmt: skip
OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture
def hub() -> Iterator[Hub]:
    repo = Repository({NEW: FILES, OLD: {"config.json": b"old"}}, {"main": NEW}, frozenset({"model.safetensors"}))
    with running(Hub({"org/model": repo}, tokens={"good"})) as hub:
        yield hub


def read_all(source: str, *, revision: str = "", endpoint: str = "", token: str = "", at: int = 0) -> dict[str, bytes]:
    """Every file of the source, from byte `at`."""

    async def work() -> dict[str, bytes]:
        settings = MirrorSettings(hf_endpoint=endpoint, hf_token=token)
        upstream = open_upstream(source, revision=revision, settings=settings)
        try:
            listing = await upstream.listing()
            found = {}
            for f in (f for f in listing.files if f.link_target is None):
                found[f.path] = b"".join([bytes(p) async for p in upstream.read(f, offset=min(at, f.size))])
            return found
        finally:
            await upstream.close()

    return asyncio.run(work())


def listing_of(source: str, *, revision: str = "", endpoint: str = "", token: str = "") -> Listing:
    async def work() -> Listing:
        settings = MirrorSettings(hf_endpoint=endpoint, hf_token=token)
        upstream = open_upstream(source, revision=revision, settings=settings)
        try:
            return await upstream.listing()
        finally:
            await upstream.close()

    return asyncio.run(work())


def refusal(source: str, **how: str) -> BdnError:
    with pytest.raises(BdnError) as why:
        read_all(source, **how)  # type: ignore[arg-type]
    assert "\n" not in str(why.value)
    return why.value


def test_a_hub_repository_arrives_whole_pinned_to_its_commit(hub: Hub) -> None:
    assert read_all("hf://org/model", endpoint=hub.url, token="good") == FILES
    listing = listing_of("hf://org/model", endpoint=hub.url)
    assert (listing.source, listing.revision) == ("hf://org/model", NEW)
    big = next(f for f in listing.files if f.path == "model.safetensors")
    assert big.checksums == (("sha256", hashlib.sha256(FILES["model.safetensors"]).hexdigest()),)
    assert not [path for _, path, _ in hub.requests if "/resolve/main/" in path]


def test_an_older_commit_is_read_by_its_name(hub: Hub) -> None:
    assert read_all(f"hf://org/model@{OLD}", endpoint=hub.url) == {"config.json": b"old"}
    assert read_all("hf://org/model", revision=OLD, endpoint=hub.url) == {"config.json": b"old"}


def test_the_token_is_not_sent_on_to_the_cdn(hub: Hub) -> None:
    read_all("hf://org/model", endpoint=hub.url, token="good")
    cdn = [auth for _, path, auth in hub.requests if path.startswith("/cdn/")]
    assert cdn and not any(cdn)
    assert any(auth == "Bearer good" for _, path, auth in hub.requests if "/resolve/" in path)


def test_a_stream_that_breaks_goes_on_where_it_broke(hub: Hub) -> None:
    hub.cut_after = 300_000
    assert read_all("hf://org/model", endpoint=hub.url)["model.safetensors"] == FILES["model.safetensors"]


def test_a_read_can_begin_in_the_middle(hub: Hub) -> None:
    assert read_all("hf://org/model", endpoint=hub.url, at=7) == {p: b[7:] for p, b in FILES.items()}


def test_an_expired_token_does_not_hide_a_public_repository(hub: Hub) -> None:
    assert read_all("hf://org/model", endpoint=hub.url, token="expired") == FILES


def test_each_refusal_of_the_hub_has_its_own_words(hub: Hub) -> None:
    repo = hub.repositories["org/model"]
    at = {"endpoint": hub.url}
    assert "does not exist" in str(refusal("hf://org/other", token="good", **at))
    assert "no token is set" in str(refusal("hf://org/other", **at))
    assert "has no revision 'nope'" in str(refusal("hf://org/model@nope", **at))
    repo.private = True
    assert "no token is set" in str(refusal("hf://org/model", **at))
    assert "refused the token" in str(refusal("hf://org/model", token="expired", **at))
    repo.private, repo.gated = False, True
    assert "is gated" in str(refusal("hf://org/model", token="good", **at))
    assert "then set HF_TOKEN" in str(refusal("hf://org/model", **at))
    hub.admitted.add("good")
    assert read_all("hf://org/model", token="good", **at) == FILES


def test_a_hub_that_is_not_there_is_unavailable(hub: Hub) -> None:
    why = refusal("hf://org/model", endpoint="http://127.0.0.1:9")
    assert isinstance(why, SourceDown) and why.exit_code == 4


def test_a_directory_is_read_as_it_lies_and_named_without_its_place(tmp_path: Path) -> None:
    root = tmp_path / "model"
    for path, body in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(body)
    (root / "link.json").symlink_to("config.json")
    (root / "config.json").chmod(0o755)
    listing = listing_of(str(root))
    assert (listing.source, listing.revision) == ("dir:model", "")
    by_path = {f.path: f for f in listing.files}
    assert by_path["link.json"].link_target == "config.json" and by_path["config.json"].mode == 0o755
    assert read_all(str(root)) == FILES


def shrink(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1])


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"5")


def rewrite(path: Path) -> None:
    path.write_bytes(bytes(len(path.read_bytes())))
    os.utime(path, ns=(1, 1))  # Whatever the grain of the file system's clock.


@pytest.mark.parametrize("change", [shrink, grow, rewrite])
@pytest.mark.parametrize("when", ["listed", "begun"])
def test_a_file_that_changes_while_it_is_read_is_corrupt(
    tmp_path: Path, change: Callable[[Path], None], when: str
) -> None:
    (tmp_path / "a").write_bytes(b"1234" * 1_500_000)  # More than one piece.

    async def work() -> None:
        upstream = open_upstream(str(tmp_path), settings=MirrorSettings())
        [file] = (await upstream.listing()).files
        if when == "listed":
            change(tmp_path / "a")
        if (change, when) == (rewrite, "listed"):
            assert sum([len(p) async for p in upstream.read(file)]) == file.size  # It is what it is now, whole.
            return
        pieces = upstream.read(file)
        with pytest.raises(Corrupt, match="changed while it was read"):
            await anext(pieces)
            change(tmp_path / "a")
            [p async for p in pieces]

    asyncio.run(work())


def cached_pages(path: Path) -> int:
    """How many pages of the file are in memory."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    size = ctypes.c_size_t(path.stat().st_size)
    pages = (ctypes.c_ubyte * -(-size.value // mmap.PAGESIZE))()
    with path.open("rb") as file:
        start = ctypes.c_void_p(libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), ctypes.c_long(0)))
        assert libc.mincore(start, size, pages) == 0
        libc.munmap(start, size)
    return sum(page & 1 for page in pages)


@pytest.mark.parametrize("offset", [0, 4096, 12_345])
def test_a_large_file_that_is_not_in_memory_is_read_and_stays_out_of_it(tmp_path: Path, offset: int) -> None:
    body = random.Random(1).randbytes((9 << 20) + 123)
    (tmp_path / "a").write_bytes(body)
    with (tmp_path / "a").open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    cold = cached_pages(tmp_path / "a") == 0

    async def work() -> bytes:
        upstream = open_upstream(str(tmp_path), settings=MirrorSettings())
        [file] = (await upstream.listing()).files
        return b"".join([bytes(piece) async for piece in upstream.read(file, offset=offset)])

    assert asyncio.run(work()) == body[offset:]
    kernel = tuple(map(int, platform.release().split(".")[:2]))
    direct = open_direct(str(tmp_path / "a"))
    if not cold or kernel < (6, 5) or direct < 0:
        pytest.skip("the file is in memory whoever reads it, or the kernel does not say what is")
    os.close(direct)
    if offset % mmap.PAGESIZE == 0:
        assert cached_pages(tmp_path / "a") <= 1  # The part of a page at its end.


def listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


@pytest.mark.parametrize(
    "put", [None, os.mkfifo, os.mkdir, listen, lambda path: path.symlink_to("/etc/passwd")],
    ids=["nothing", "pipe", "directory", "socket", "link"],
)  # fmt: skip
def test_what_is_no_file_any_more_since_it_was_listed_has_changed_and_is_not_waited_for(
    tmp_path: Path, put: Callable[[Path], None] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # A socket's address is short.
    Path("model").mkdir()
    there = Path("model/a")
    there.write_bytes(b"1234")

    def becomes() -> None:
        there.unlink()
        if put is not None:
            put(there)

    async def work() -> None:
        upstream = open_upstream("model", settings=MirrorSettings())
        [file] = (await upstream.listing()).files
        becomes()
        with pytest.raises(Corrupt, match="model/a changed while it was read"):
            await asyncio.wait_for(anext(aiter(upstream.read(file))), 20)

    asyncio.run(work())


def test_a_file_that_goes_away_while_its_directory_is_listed_is_named(tmp_path: Path) -> None:
    class Vanishing(DirectoryUpstream):
        def _walk(self, below: str) -> Iterator[UpstreamFile]:
            for file in super()._walk(below):
                for path in tmp_path.iterdir():
                    path.unlink()
                yield file

    for name in "ab":
        (tmp_path / name).write_bytes(b"1234")
    with pytest.raises(Corrupt, match=r"/[ab] changed while it was listed"):
        asyncio.run(Vanishing(tmp_path).listing())


def test_an_unreadable_file_is_named_before_anything_is_read(tmp_path: Path) -> None:
    """As an owner without root's right to read everything: the tests themselves may run as root."""
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").write_bytes(b"2")
    (tmp_path / "b").chmod(0)
    code = (
        "import asyncio,sys\nfrom pathlib import Path\nfrom bdn.errors import Invalid\n"
        "from bdn.upstreams.directory import DirectoryUpstream\n"
        "try: asyncio.run(DirectoryUpstream(Path(sys.argv[1])).listing())\nexcept Invalid as why: print(why)"
    )
    drop = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    done = subprocess.run([*drop, sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.stdout == f"cannot read {tmp_path}/b: permission denied: check its owner and mode\n", done.stderr


def test_a_missing_directory_and_an_unknown_scheme_say_what_is_expected(tmp_path: Path) -> None:
    assert "there is no directory" in str(refusal(str(tmp_path / "no")))
    assert "hf://org/repo" in str(refusal("ftp://x/y"))
    assert "not a hub repository" in str(refusal("hf://../x"))
    assert "cannot be a bucket" in str(refusal("s3:///x"))
    assert "two revisions" in str(refusal("hf://a/b@x", revision="y"))
    assert "has no revisions" in str(refusal(str(tmp_path), revision="y"))


@dataclasses.dataclass
class Site:
    """A static web server with a knob for each thing that servers get wrong."""

    files: dict[str, bytes]
    ranges: bool = True
    encoding: str = ""

    async def get(self, request: web.Request) -> web.Response:
        body = self.files.get(request.match_info["path"])
        if body is None:
            return web.Response(status=404, text="<html>no such page</html>", content_type="text/html")
        headers = {"ETag": '"1"'} | ({"Content-Encoding": self.encoding} if self.encoding else {})
        if request.method == "GET" and self.ranges and "Range" in request.headers:
            first = request.http_range.start or 0
            headers["Content-Range"] = f"bytes {first}-{len(body) - 1}/{len(body)}"
            return web.Response(status=206, body=body[first:], headers=headers)
        return web.Response(body=body, headers=headers, content_type="text/plain")


@pytest.fixture
def site() -> Iterator[tuple[Site, str]]:
    sums = "".join(f"{hashlib.sha256(b).hexdigest()}  {p}\n" for p, b in FILES.items())
    site = Site({**FILES, "files.txt": b"# ours\nconfig.json\nsub/b.txt\n", "SHA256SUMS": sums.encode()})
    app = web.Application()
    app.router.add_get("/{path:.+}", site.get)
    with serving(app) as port:
        yield site, f"http://127.0.0.1:{port}"


def test_web_files_come_by_list_by_checksums_or_alone(site: tuple[Site, str]) -> None:
    _, url = site
    assert read_all(f"{url}/files.txt") == {p: FILES[p] for p in ("config.json", "sub/b.txt")}
    assert read_all(f"{url}/SHA256SUMS") == FILES
    assert read_all(f"{url}/tokenizer.model", at=3) == {"tokenizer.model": FILES["tokenizer.model"][3:]}
    sums = listing_of(f"{url}/SHA256SUMS")
    assert all(f.checksums == (("sha256", hashlib.sha256(FILES[f.path]).hexdigest()),) for f in sums.files)


def test_a_web_server_without_ranges_is_read_from_its_start(site: tuple[Site, str]) -> None:
    site[0].ranges = False
    assert read_all(f"{site[1]}/model.safetensors", at=5)["model.safetensors"] == FILES["model.safetensors"][5:]


def test_a_compressed_body_is_refused(site: tuple[Site, str]) -> None:
    site[0].encoding = "gzip"
    assert isinstance(refusal(f"{site[1]}/config.json"), Corrupt)


def test_an_error_page_is_never_a_file_and_no_path_leaves_the_list(site: tuple[Site, str]) -> None:
    server, url = site
    assert "does not exist (HTTP 404)" in str(refusal(f"{url}/nothing.bin"))
    server.files["files.txt"] = b"../../etc/passwd\n"
    assert "'..'" in str(refusal(f"{url}/files.txt"))
    server.files["files.txt"] = b"a\na\n"
    assert "twice" in str(refusal(f"{url}/files.txt"))
    assert isinstance(refusal("http://127.0.0.1:9/x"), SourceDown)


LISTING = Listing("dir:m", "", tuple(UpstreamFile(p, len(b)) for p, b in FILES.items()))


@pytest.mark.parametrize(
    ("allow", "ignore", "want"),
    [
        ([], [], set(FILES)),
        (["*.safetensors"], [], {"model.safetensors", "sub/a.safetensors"}),
        (["/*.safetensors"], [], {"model.safetensors"}),
        (["sub/"], [], {"sub/a.safetensors", "sub/b.txt"}),
        (["**/*.txt"], [], {"sub/b.txt"}),
        ([], ["sub/"], {"config.json", "model.safetensors", "tokenizer.model"}),
        (["sub/"], ["*.txt"], {"sub/a.safetensors"}),
        (["*.safetensors", "!sub/a.safetensors"], [], {"model.safetensors"}),
    ],
)
def test_patterns_follow_gitignore_rules(allow: list[str], ignore: list[str], want: set[str]) -> None:
    assert {f.path for f in chosen(LISTING, allow, ignore)} == want


@pytest.mark.parametrize(("allow", "ignore"), [(["*.gguf"], []), ([], ["*.gguf"]), (["*.txt"], ["sub/"])])
def test_a_pattern_that_matches_nothing_lists_what_is_there(allow: list[str], ignore: list[str]) -> None:
    with pytest.raises(Usage, match=r"there are config\.json, model\.safetensors"):
        chosen(LISTING, allow, ignore)


def test_an_empty_directory_is_nothing_to_mirror(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="empty"):
        chosen(listing_of(str(tmp_path)), [], [])
