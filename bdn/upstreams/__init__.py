"""Owns the way from a SOURCE, as a person writes it, to the adapter of the Upstream port that reads it."""

from __future__ import annotations

from pathlib import Path

from bdn.buckets import BUCKET_RULE, is_bucket
from bdn.config import MirrorSettings
from bdn.errors import Usage
from bdn.ports import Upstream
from bdn.specs import FORMS


def open_upstream(source: str, *, revision: str = "", settings: MirrorSettings) -> Upstream:
    """The adapter for `source`; nothing is contacted yet. Raises Usage for what no adapter takes.

    Each adapter imports its client library, and those are slow to import: only the one that is needed is loaded.
    """
    scheme, slashes, rest = source.partition("://")
    if not slashes:
        _no_revision(revision, "a directory")
        from bdn.upstreams.directory import DirectoryUpstream

        return DirectoryUpstream(Path(source).expanduser())
    if scheme == "hf":
        from bdn.upstreams.hf import HubUpstream, parse_repository

        repository, pinned = parse_repository(rest)
        if pinned and revision and pinned != revision:
            raise Usage(f"two revisions for one source: @{pinned} and --revision {revision}")
        return HubUpstream(
            repository, revision or pinned, endpoint=settings.hf_endpoint.rstrip("/"), token=settings.hf_token or None
        )
    if scheme == "s3":
        _no_revision(revision, "an s3:// source")
        from bdn.upstreams.s3 import BucketUpstream

        bucket, _, prefix = rest.partition("/")
        if not is_bucket(bucket):
            raise Usage(f"{bucket[:80]!r} in {source[:200]!r} cannot be a bucket", hint=BUCKET_RULE)
        return BucketUpstream(bucket, prefix, endpoint=settings.source_endpoint, region=settings.source_region)
    if scheme in ("http", "https"):
        _no_revision(revision, "an https:// source")
        from bdn.upstreams.https import WebUpstream

        return WebUpstream(source)
    raise Usage(f"unknown source {source[:200]!r}", hint=f"expected {FORMS}")


def _no_revision(revision: str, what: str) -> None:
    if revision:
        raise Usage(f"{what} has no revisions", hint="leave --revision out")
