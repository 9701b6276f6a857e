"""Owns a Hugging Face repository as an upstream, through `huggingface_hub`: its tokens, its redirects, its retries.

LFS and Xet files come through the hub's resolve address, which the library follows; only the stream is ours, so that
no file needs to lie on this disk before it is chunked.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from huggingface_hub import HfApi, hf_hub_url
from huggingface_hub.errors import (
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalTokenNotFoundError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils._headers import build_hf_headers
from huggingface_hub.utils._http import hf_raise_for_status, http_stream_backoff

from bdn.errors import BdnError, Corrupt, Invalid, SourceDown, Usage
from bdn.ports import Listing, UpstreamFile

_PIECE_BYTES = 1 << 20
_RESUMES_MAX = 5  # A stream that breaks is taken up where it broke; the library itself retries refused requests.
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?")
_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
Result = TypeVar("Result")


def parse_repository(rest: str) -> tuple[str, str]:
    """`org/repo[@revision]` as (repository, revision); raises Usage. A revision may hold slashes (refs/pr/1)."""
    repository, _, revision = rest.partition("@")
    if not _REPOSITORY.fullmatch(repository) or ".." in repository:
        raise Usage(f"not a hub repository: {rest[:200]!r}", hint="expected hf://org/repo or hf://org/repo@revision")
    return repository, revision


class HubUpstream:
    """One repository. The branch is pinned to its commit by `listing`; every later read names that commit."""

    def __init__(self, repository: str, revision: str, *, endpoint: str, token: str | None) -> None:
        self._repository, self._revision, self._endpoint = repository, revision, endpoint
        self._token: str | bool | None = token
        self._api = HfApi(endpoint=endpoint, library_name="bdn")
        self._commit = ""

    async def listing(self) -> Listing:
        return await asyncio.to_thread(self._list)

    def _list(self) -> Listing:
        info = self._pin()
        self._commit = str(info.sha)
        tree = self._ask(
            lambda: list(
                self._api.list_repo_tree(
                    self._repository, recursive=True, revision=self._commit, token=self._token
                )
            )
        )  # fmt: skip
        files = []
        for entry in tree:
            if isinstance(entry, RepoFile):
                sums = (("sha256", entry.lfs.sha256),) if entry.lfs else (("git-sha1", entry.blob_id),)
                files.append(UpstreamFile(entry.path, entry.lfs.size if entry.lfs else entry.size, checksums=sums))
        return Listing(f"hf://{self._repository}", self._commit, tuple(sorted(files, key=lambda f: f.path)))

    def _pin(self) -> Any:
        """The repository's facts. A refused token does not hide a public repository: that is tried without it."""

        def ask() -> Any:
            return self._api.model_info(
                self._repository, revision=self._revision or None, token=self._token, timeout=30
            )  # fmt: skip

        try:
            return ask()
        except HfHubHTTPError as refused:
            if refused.response is None or refused.response.status_code != 401 or isinstance(refused, GatedRepoError):
                raise self._reason(refused) from None
            had_token = "authorization" in refused.response.request.headers
            if not had_token:
                raise self._reason(refused) from None
            given, self._token = self._token, False
            try:
                return ask()
            except HfHubHTTPError:
                self._token = given
                raise self._reason(refused) from None
        except Exception as why:
            raise self._reason(why) from None

    def _ask(self, request: Callable[[], Result]) -> Result:
        try:
            return request()
        except Exception as why:
            raise self._reason(why) from None

    def _reason(self, why: Exception) -> BdnError:
        """The hub's answer as one line that tells gated, refused, missing and down apart."""
        source = f"hf://{self._repository}"
        status = getattr(getattr(why, "response", None), "status_code", 0)
        token_sent = "authorization" in getattr(getattr(getattr(why, "response", None), "request", None), "headers", {})
        if isinstance(why, GatedRepoError):
            hint = f"ask for access at {self._endpoint}/{self._repository}"
            return Invalid(f"{source} is gated", hint=hint if token_sent else f"{hint}, then set HF_TOKEN")
        if isinstance(why, DisabledRepoError):
            return Invalid(f"{source} was disabled by the hub")
        if isinstance(why, RevisionNotFoundError):
            asked = self._revision or "main"
            return Invalid(f"{source} has no revision {asked!r}", hint="name a branch, tag or commit")
        if isinstance(why, RemoteEntryNotFoundError):
            return Invalid(f"a file of {source} is gone from commit {self._commit[:12]}", hint="mirror it again")
        if status == 401 and token_sent:
            return Invalid(f"the hub refused the token for {source}", hint="it is wrong or has expired: renew HF_TOKEN")
        if isinstance(why, RepositoryNotFoundError):
            hint = "check the name" if token_sent else "check the name; if it is private, set HF_TOKEN"
            return Invalid(f"{source} does not exist, or this token may not see it" if token_sent
                           else f"{source} does not exist or is private, and no token is set", hint=hint)  # fmt: skip
        if status == 403:
            return Invalid(f"the hub forbids reading {source}", hint="the token lacks the permission to read it")
        if isinstance(why, HFValidationError | LocalTokenNotFoundError):
            return Invalid(f"{source}: {str(why).splitlines()[0]}")
        if status == 0 and isinstance(why, ValueError | KeyError | TypeError | AttributeError):
            hint = "it may be a proxy's or a log-in page; is that address a hub?"
            return Invalid(f"{self._endpoint} answered something that no hub says of {source}", hint=hint)
        if status and status not in _TRANSIENT:
            return Invalid(f"the hub answered {status} for {source}", hint=f"is {self._endpoint} a hub?")
        told = getattr(getattr(why, "response", None), "headers", {}).get("retry-after", "")
        wait_s = float(told) if told.isdigit() else None
        detail = f"HTTP {status}" if status else (str(why).splitlines() or [type(why).__name__])[0]
        return SourceDown(self._endpoint, detail, retry_after_s=wait_s)

    async def read(self, file: UpstreamFile, *, offset: int = 0) -> AsyncIterator[bytes | memoryview]:
        at, resumes = offset, 0
        while at < file.size:
            before = at
            try:
                stream = _Stream(self._request(file, at), at)
                try:
                    while piece := await asyncio.to_thread(stream.next_piece):
                        if at + len(piece) > file.size:
                            raise Corrupt(f"{self._name(file)} is longer than its listed {file.size} bytes")
                        at += len(piece)
                        yield piece
                finally:
                    await asyncio.to_thread(stream.close)
            except BdnError:
                raise
            except Exception as why:
                resumes = 0 if at > before else resumes + 1
                if resumes > _RESUMES_MAX or isinstance(why, HfHubHTTPError):
                    raise self._reason(why) from None
                continue
            resumes = 0 if at > before else resumes + 1
            if resumes > _RESUMES_MAX:
                raise Corrupt(f"{self._name(file)} ended after {at} of {file.size} bytes", hint="mirror it again")

    def _name(self, file: UpstreamFile) -> str:
        return f"{file.path} of hf://{self._repository}"

    def _request(self, file: UpstreamFile, at: int) -> AbstractContextManager[Any]:
        url = hf_hub_url(self._repository, file.path, revision=self._commit, endpoint=self._endpoint)
        headers = build_hf_headers(token=self._token, library_name="bdn")
        # A proxy that compresses on the fly answers ranges of something else than the file.
        headers["Accept-Encoding"] = "identity"
        if at:
            headers["Range"] = f"bytes={at}-"
        return http_stream_backoff("GET", url, headers=headers, timeout=60)

    async def close(self) -> None:
        pass


class _Stream:
    """One response, read in the thread that `asyncio.to_thread` picks; never by two at once."""

    def __init__(self, request: AbstractContextManager[Any], at: int) -> None:
        self._request, self._at = request, at
        self._pieces: Iterator[bytes] | None = None

    def next_piece(self) -> bytes:
        """The next bytes from where the caller is, b"" at the end."""
        if self._pieces is None:
            response = self._request.__enter__()
            hf_raise_for_status(response)
            # A server that ignores the range sends the file from its start: what the caller has is passed over.
            if self._at and response.status_code == 206:
                if not response.headers.get("content-range", "").startswith(f"bytes {self._at}-"):
                    raise Corrupt("the hub answered another range than the one asked for", hint="mirror it again")
                self._at = 0
            self._pieces = response.iter_bytes(_PIECE_BYTES)
        while True:
            piece = next(self._pieces, b"")
            if self._at and piece:
                skipped = min(self._at, len(piece))
                self._at -= skipped
                piece = piece[skipped:]
                if not piece:
                    continue
            return piece

    def close(self) -> None:
        if self._pieces is not None:
            self._request.__exit__(None, None, None)
