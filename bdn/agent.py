"""Owns one node: makes its parts from the settings, starts them in order, stops them in order. It decides nothing else.

store → members → origin and peers → resolver → peer server → control socket. The peer server listens before the
control socket opens, so that a node never pulls while the others cannot reach it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
from collections import Counter
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path

from bdn.attendance import Attendance
from bdn.clock import LoopClock
from bdn.config import AgentSettings, ClientSettings, OriginSettings
from bdn.control import ControlServer, Node, pull_json
from bdn.digest import Digest
from bdn.errors import BdnError, Missing, Usage
from bdn.http.client import PeerClient
from bdn.http.peer import PeerServer
from bdn.http.server import ServerLimits
from bdn.manifest_search import ManifestSearch
from bdn.membership.dns import NEWS_S, follow_dns
from bdn.membership.static import static_members
from bdn.membership.views import Views
from bdn.metrics import CONTENT_TYPE, Metrics, Snapshot
from bdn.nvme import NvmeStore
from bdn.origins.claims import open_claims
from bdn.origins.open import OpenOrigin, open_origin
from bdn.policy import Limits, OriginUse
from bdn.ports import Tier
from bdn.pulls import Pull, Pulls
from bdn.reference import Reference
from bdn.resolver import Resolver
from bdn.roster import Node as Member
from bdn.roster import parse_nodes
from bdn.window import Window

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Where:
    """Where a started agent can be reached."""

    name: str
    host: str
    port: int
    socket: Path


class Agent:
    """One node. `start`, then `stop` once; use from one event loop."""

    def __init__(self, settings: AgentSettings, origin: OriginSettings, client: ClientSettings) -> None:
        if settings.peers and settings.peers_dns:
            raise Usage("members come from --peers or from --peers-dns, not from both")
        self._settings, self._origin_settings, self._client = settings, origin, client
        self._views = _members(settings)
        self._ready = False
        self._started_at = 0.0
        self._exit = contextlib.AsyncExitStack()

    async def start(self) -> Where:
        """Raises Invalid and Usage for what a person must change; nothing is left running then."""
        try:
            return await self._start()
        except BaseException:
            await self._exit.aclose()
            raise

    async def _start(self) -> Where:
        s, clock = self._settings, LoopClock()
        self._started_at = clock.now()
        self._store = NvmeStore(self._client.store.expanduser())
        self._exit.callback(self._store.close)
        self._origin: OpenOrigin | None = None
        where = self._origin_settings
        if where.origin:
            self._origin = open_origin(
                where.origin, endpoint=where.endpoint, region=where.region, bearer=where.origin_token
            )
            self._exit.push_async_callback(self._origin.close)
        peers = PeerClient()
        self._exit.push_async_callback(peers.close)
        self._attendance = Attendance(s.node_name, peers, clock)
        limits = _limits(s)
        claims = None
        if s.strict_origin:
            claims = open_claims(where.origin, endpoint=where.endpoint, region=where.region)
            self._exit.push_async_callback(claims.close)
        self._resolver = Resolver(
            s.node_name, self._store, peers, self._origin, self._views, clock, limits=limits, claims=claims,
            damaged=lambda manifest: self._in_background(self._mend(manifest)), say=log.warning,
        )
        self._exit.callback(self._resolver.close)
        for digest in self._store.models():
            self._resolver.join(self._store.manifest(digest), OriginUse(s.origin_use))
        self._metrics = Metrics(self._snapshot)
        window = Window(slots=limits.in_flight_chunks, bytes_max=limits.in_flight_bytes)
        resolver = self._resolver
        search = ManifestSearch(
            s.node_name, self._store, peers, self._origin, lambda: resolver.roster, clock, resolver.standing,
            resolver.ledger, limits, say=log.warning,
        )  # fmt: skip
        self._pulls = Pulls(
            resolver, self._store, self._origin, search, window, clock, at_once=s.pulls_max, observe=self._observe
        )
        pages = {"/readyz": self._readyz, "/metrics": lambda: (200, CONTENT_TYPE, self._metrics.text())}
        served = ServerLimits(bytes_per_s=s.upload_bytes_per_s, congestion=s.congestion)
        self._server = PeerServer(resolver, self._store, served, pages, documents=resolver)
        self._port = await self._server.start(s.host, s.port)
        self._exit.push_async_callback(self._server.stop, drain_s=s.drain_s)
        self._see_members(s.peers)
        if s.peers_dns:
            self._in_background(follow_dns(self._views, *_host_port(s.peers_dns), clock))
        self._in_background(self._introduce())
        self._exit.push_async_callback(self._pulls.stop)
        control = ControlServer(
            Node(
                self._pulls, self._looked, resolver.document, self._verify, self._see_members, OriginUse(s.origin_use)
            ),
            self._client.socket_path,
        )
        await control.start()
        self._exit.push_async_callback(control.stop)
        self._ready = True
        return Where(s.node_name, s.host, self._port, self._client.socket_path)

    async def stop(self) -> None:
        """Readiness goes first; then no new pulls, uploads in flight end, and the store is given up last."""
        self._ready = False
        await self._exit.aclose()

    # Members

    def _see_members(self, peers: tuple[str, ...]) -> None:
        """A static list names the others; this node adds itself, at the port it really got."""
        s = self._settings
        if s.peers_dns:
            return
        listed = {n.name: n for n in parse_nodes(peers)}
        host = s.host
        if host in ("0.0.0.0", "::"):  # Where it listens, and no place that others could reach.
            host = listed[s.node_name].host if s.node_name in listed else ""
        self._views.replace({**listed, s.node_name: Member(s.node_name, host, self._port, s.zone)}.values())

    async def _introduce(self) -> None:
        """Say what is on this disk to those who coordinate it, now and whenever another node becomes the one."""
        self._resolver.introduce()
        async for _ in self._views.changes():
            self._resolver.introduce()

    async def _mend(self, manifest: Digest) -> None:
        """Bring what went bad of a complete model again, before anybody asks for it."""
        with contextlib.suppress(BdnError):  # Its end is in the log and in the status, as any pull's.
            await self._pulls.ask(Reference("", "", manifest), priority=9, use=OriginUse(self._settings.origin_use))

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)

        async def end() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        self._exit.push_async_callback(end)

    # What this node says of itself

    async def _looked(self) -> Mapping[str, object]:
        await self._attendance.look(self._views.roster.nodes)
        return self.status()

    def status(self) -> Mapping[str, object]:
        """The whole of `bdn status --json`; these keys stay."""
        ledger, free = self._resolver.ledger, shutil.disk_usage(self._store.root).free
        models = []
        for digest in self._store.models():
            manifest = self._store.manifest(digest)
            path = self._store.published(digest)
            verified = self._store.verified(digest)
            have = manifest.unique_bytes if path else sum(c.size for c in manifest.chunks if c.digest in verified)
            models.append({
                "digest": str(digest), "names": list(self._store.names(digest)), "bytes": manifest.unique_bytes,
                "verified_bytes": have, "path": path,
            })  # fmt: skip
        return {
            "name": self._settings.node_name, "pid": os.getpid(), "ready": self._ready, "port": self._port,
            "uptime_s": round(LoopClock().now() - self._started_at, 3),
            "store": str(self._store.root), "free_bytes": free, "origin": self._origin_settings.origin,
            "members": [{"name": m.name, "host": m.host, "port": m.port, "zone": m.zone,
                         "ready": m.ready and self._attendance.reached(m.name) is not False,
                         "reached": self._attendance.reached(m.name)} for m in self._views.roster.nodes],
            "models": models, "pulls": [pull_json(p) for p in self._pulls.all],
            "bytes_by_tier": {t.value: ledger.bytes_by_tier[t] for t in Tier},
            "bytes_by_source": dict(sorted(ledger.bytes_by_source.items())),
            "wasted_by_tier": {t.value: ledger.wasted_by_tier[t] for t in Tier},
            "misses": dict(sorted(ledger.misses.items())),
            "origin_reasons": dict(sorted(ledger.origin_reasons.items())),
            "documents_by_tier": {t.value: ledger.documents_by_tier[t] for t in (Tier.PEER, Tier.ORIGIN)},
            "served_bytes": self._server.http.sent.bytes_total,
        }  # fmt: skip

    def _snapshot(self) -> Snapshot:
        complete = sum(self._store.published(d) is not None for d in self._store.models())
        sent = self._server.http.sent
        return Snapshot(
            self._resolver.ledger, sent.bytes_total, dict(sent.by_status),
            pulls_active=sum(not p.ended for p in self._pulls.all),
            pulls_ended={k.value: v for k, v in self._pulls.outcomes.items()},
            models_complete=complete, models_partial=len(tuple(self._store.models())) - complete,
            members=self._members_by_state(),
            store_free_bytes=shutil.disk_usage(self._store.root).free, store_bad_chunks=self._store.bad_chunks,
        )  # fmt: skip

    def _members_by_state(self) -> Mapping[str, int]:
        """unreachable: when this node asked it for something the last time."""
        count = Counter({"ready": 0, "leaving": 0, "unreachable": 0})
        for m in self._views.roster.nodes:
            failing = self._resolver.standing.failing(m.name)
            count["leaving" if not m.ready else "unreachable" if failing else "ready"] += 1
        return count

    def _observe(self, pull: Pull) -> None:
        self._metrics.pull_seconds.labels(pull.state.value).observe(pull.seconds)
        if pull.error is not None:
            log.warning("pull of %s failed: %s", pull.name, pull.error)
        else:
            log.info("pulled %s in %.2f s to %s", pull.name, pull.seconds, pull.path)

    def _readyz(self) -> tuple[int, str, bytes]:
        return (200, "text/plain", b"ready\n") if self._ready else (503, "text/plain", b"stopping or starting\n")

    async def _verify(self, manifest: Digest) -> tuple[Digest, ...]:
        if manifest not in self._store.models():
            raise Missing(f"model {manifest.short} is not on this node", hint="`bdn pull` brings it here")
        bad = await self._store.verify(manifest)
        for digest in bad:
            self._resolver.missed(digest)
        return bad


def _host_port(where: str) -> tuple[str, int]:
    host, _, port = where.rpartition(":")
    if not host or not port.isdigit():
        raise Usage(f"--peers-dns is not host:port: {where!r}")
    return host, int(port)


def _members(settings: AgentSettings) -> Views:
    try:
        return static_members(settings.peers)
    except ValueError as why:
        raise Usage(str(why), hint="see --peers") from None


def _limits(s: AgentSettings) -> Limits:
    # Claims at the origin hold whatever this node sees, so that nothing is won by waiting for the news.
    news_s = NEWS_S if s.peers_dns and not s.strict_origin else 0.0
    return Limits(
        stall_s=s.stall_s, patience_s=s.patience_s, origin_patience_s=s.origin_patience_s,
        origin_concurrency=s.origin_concurrency, in_flight_chunks=s.in_flight_chunks,
        in_flight_bytes=s.in_flight_bytes, uploads=s.uploads, settle_s=news_s if s.settle_s < 0 else s.settle_s,
    )  # fmt: skip
