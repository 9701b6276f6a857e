"""Owns what a bucket may be called, for origins and sources alike: a name that no S3 has is a typing error, told at
once, not a connection that is tried for minutes."""

from __future__ import annotations

import re

BUCKET_RULE = "a bucket's name has 3 to 63 lower-case letters, digits, '.' and '-': s3://bucket/prefix"
# Buckets made before 2018 in one region may also have capitals, '_' and up to 255 characters.
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")


def is_bucket(name: str) -> bool:
    return _BUCKET.fullmatch(name) is not None
