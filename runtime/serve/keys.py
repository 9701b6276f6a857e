"""API keys: who is calling. Keys are kept as SHA-256 hashes and compared in constant time; none is ever logged.

A key is a long random string, so one plain hash is enough: there is nothing to guess. The file:

    keys:
      - name: team-a
        sha256: 5e88…           # printf %s "$KEY" | sha256sum
        streams_max: 20         # concurrent; 0 or absent: no limit of its own
        starts_per_minute: 600  # all at once or spread; each comes back after 1/600 of a minute
        priority: normal        # batch, normal or high
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from runtime.admission import KeyLimits, Priority
from runtime.errors import Usage

ANYBODY = KeyLimits("anybody")
TOKEN_S = 300.0
HOW = "`keys:`, then for each key `- {name: team-a, sha256: …}`; the hash is that of printf %s \"$KEY\" | sha256sum"
_HEX = re.compile(r"[0-9a-f]{64}")
_FIELDS = {"name", "sha256", "streams_max", "starts_per_minute", "priority"}


@dataclass(frozen=True, slots=True)
class Key:
    digest: bytes
    limits: KeyLimits


def digest_of(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


class Keyring:
    """The keys there are. With `keyless`, everybody is let in under one name."""

    def __init__(self, keys: tuple[Key, ...] = (), *, keyless: bool = False) -> None:
        self._keys, self._keyless = keys, keyless
        self._secret = secrets.token_bytes(32)  # of this process: tokens end with it

    def who(self, presented: str | None) -> KeyLimits | None:
        """Whose key this is; None if nobody's. Takes as long for a wrong key as for a right one."""
        if self._keyless:
            return ANYBODY
        found = None
        digest = digest_of(presented or "")
        for key in self._keys:  # no early end: the time must not tell which key is near
            if hmac.compare_digest(digest, key.digest):
                found = key.limits
        return found

    def token(self, limits: KeyLimits, now: float) -> tuple[str, float]:
        """A short-lived stand-in for the key, for browsers, which cannot send headers; and when it ends."""
        expires = now + TOKEN_S
        body = f"{limits.name.encode().hex()}.{expires:.0f}"
        return f"{body}.{self._sign(body)}", expires

    def by_token(self, token: str, now: float) -> KeyLimits | None:
        body, _, signature = token.rpartition(".")
        if not hmac.compare_digest(self._sign(body).encode(), signature.encode("utf-8", "surrogatepass")):
            return None
        name, _, expires = body.partition(".")
        if float(expires) < now:
            return None
        if self._keyless:
            return ANYBODY
        return next((k.limits for k in self._keys if k.limits.name.encode().hex() == name), None)

    def _sign(self, body: str) -> str:
        return hmac.new(self._secret, body.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def presented(headers: Mapping[str, str]) -> str | None:
    """The key in the headers of any of the protocols."""
    for name in ("x-api-key", "kyutai-api-key", "xi-api-key"):
        if name in headers:
            return headers[name]
    scheme, _, value = headers.get("authorization", "").partition(" ")
    return value.strip() if scheme.lower() == "bearer" else None


def read_keys(path: Path) -> tuple[Key, ...]:
    """The keys of a file. Raises Usage, which names the entry but never shows a key."""
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as why:
        raise Usage(f"{path}: the key file cannot be read: {why.strerror}", HOW) from None
    except (yaml.YAMLError, UnicodeDecodeError) as why:
        raise Usage(f"{path}: cannot be read as YAML: {type(why).__name__}", HOW) from None
    entries = raw.get("keys") if isinstance(raw, dict) else None
    if not isinstance(entries, list) or not entries:
        raise Usage(f"{path}: must hold a list `keys` with at least one entry", HOW)
    keys = tuple(_key(entry, f"{path}: key {n}") for n, entry in enumerate(entries, start=1))
    names = [k.limits.name for k in keys]
    if len(set(names)) != len(names):
        raise Usage(f"{path}: two keys have the same name", "names tell keys apart in limits and metrics")
    return keys


def _key(entry: object, where: str) -> Key:
    if not isinstance(entry, dict) or set(entry) - _FIELDS:
        raise Usage(f"{where} is not understood", f"fields: {', '.join(sorted(_FIELDS))}")
    name, digest, rank = entry.get("name"), entry.get("sha256"), entry.get("priority", "normal")
    if not isinstance(name, str) or not name:
        raise Usage(f"{where} has no name", "names tell keys apart in limits and metrics")
    if not isinstance(digest, str) or not _HEX.fullmatch(digest):
        raise Usage(f"{where} ({name}): sha256 must be 64 hex digits", 'printf %s "$KEY" | sha256sum')
    limits = [entry.get(f, 0) for f in ("streams_max", "starts_per_minute")]
    if not all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in limits):
        raise Usage(f"{where} ({name}): limits are whole numbers, 0 for none", HOW)
    if not isinstance(rank, str) or rank.upper() not in Priority.__members__:
        raise Usage(f"{where} ({name}): unknown priority", "there are: batch, normal, high")
    return Key(bytes.fromhex(digest), KeyLimits(name, limits[0], limits[1], Priority[rank.upper()]))
