"""Owns AWS Signature Version 4 for the hot path: a few header lines for a GET, no SDK between socket and disk.

Source: "Authenticating Requests (AWS Signature Version 4)", Amazon S3 API Reference. Pure: time is an argument.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote

UNSIGNED = "UNSIGNED-PAYLOAD"
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
_SAFE = "-_.~"


@dataclass(frozen=True, slots=True)
class Credentials:
    access_key: str
    secret_key: str
    token: str = ""

    def __repr__(self) -> str:
        return f"Credentials({self.access_key[:4]}…)"


class Signer:
    """Signs for one region; the day's key is derived once (four HMACs a day instead of four a request)."""

    def __init__(self, credentials: Credentials, region: str, service: str = "s3") -> None:
        self.credentials, self.region, self.service = credentials, region, service
        self._day, self._key = "", b""

    def headers(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]],
        headers: Sequence[tuple[str, str]],
        now: datetime,
        payload_sha256: str = EMPTY_SHA256,
    ) -> list[tuple[str, str]]:
        """`headers` (lower-case names, with `host`) and those that sign them. `path` is already percent-encoded."""
        stamp = now.strftime("%Y%m%dT%H%M%SZ")
        signed = [*headers, ("x-amz-content-sha256", payload_sha256), ("x-amz-date", stamp)]
        if self.credentials.token:
            signed.append(("x-amz-security-token", self.credentials.token))
        signed.sort()
        names = ";".join(name for name, _ in signed)
        canonical = "\n".join(
            [
                method,
                path,
                "&".join(f"{quote(k, _SAFE)}={quote(v, _SAFE)}" for k, v in sorted(query)),
                *(f"{name}:{' '.join(value.split())}" for name, value in signed),
                "",
                names,
                payload_sha256,
            ]
        )
        scope = f"{stamp[:8]}/{self.region}/{self.service}/aws4_request"
        text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
        signature = hmac.new(self._day_key(stamp[:8]), text.encode(), "sha256").hexdigest()
        authorization = (
            f"AWS4-HMAC-SHA256 Credential={self.credentials.access_key}/{scope}, "
            f"SignedHeaders={names}, Signature={signature}"
        )
        return [*signed, ("authorization", authorization)]

    def _day_key(self, day: str) -> bytes:
        if day != self._day:
            key = f"AWS4{self.credentials.secret_key}".encode()
            for part in (day, self.region, self.service, "aws4_request"):
                key = hmac.new(key, part.encode(), "sha256").digest()
            self._day, self._key = day, key
        return self._key


def encode_path(path: str) -> str:
    """Percent-encoded as S3 signs it: everything but unreserved characters and `/`."""
    return quote(path, _SAFE + "/")
