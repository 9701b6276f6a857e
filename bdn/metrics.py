"""Owns what a node tells Prometheus: names, units and words. The numbers belong to the parts that count them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bdn import VERSION
from bdn.ledger import Ledger
from bdn.ports import Tier

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# A pull takes from a tenth of a second (warm, small) to many minutes (a large model over a slow link).
PULL_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1280)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the node's parts count, read once a scrape: a second set of counters would one day disagree."""

    ledger: Ledger
    served_bytes: int = 0
    served_requests: Mapping[int, int] = field(default_factory=dict)
    """By HTTP status."""
    pulls_active: int = 0
    pulls_ended: Mapping[str, int] = field(default_factory=dict)
    models_complete: int = 0
    models_partial: int = 0
    members: Mapping[str, int] = field(default_factory=dict)
    store_free_bytes: int = 0
    store_bad_chunks: int = 0


class Metrics:
    """One node's registry. `snapshot` is called on each scrape, from the event loop."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._registry = CollectorRegistry()
        self.pull_seconds = Histogram(
            "bdn_pull_seconds", "From the request for a model to its directory being whole.", ["outcome"],
            buckets=PULL_BUCKETS_S, registry=self._registry,
        )  # fmt: skip
        self._registry.register(_Node(snapshot))

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def names(self) -> tuple[str, ...]:
        """Every metric as Prometheus shows it; the README's table is checked against this."""
        counted = {m.name + ("_total" if m.type == "counter" else "") for m in self._registry.collect()}
        return tuple(sorted(counted))


class _Node(Collector):
    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        now = self._snapshot()
        ledger = now.ledger
        by_tier: Mapping[str, int] = {t.value: ledger.bytes_by_tier[t] for t in Tier}
        wasted: Mapping[str, int] = {t.value: ledger.wasted_by_tier[t] for t in Tier}
        yield _counter("bdn_bytes", "Verified bytes put in place, by the tier they came from.", "tier", by_tier)
        yield _counter("bdn_wasted_bytes", "Bytes that a link carried and nobody could use.", "tier", wasted)
        yield _counter("bdn_source_bytes", "Verified bytes, by the node they came from.", "source",
                       ledger.bytes_by_source)  # fmt: skip
        misses = CounterMetricFamily(
            "bdn_source_misses", "How often a source did not serve, and why.", labels=["source", "reason"]
        )
        for what, count in sorted(ledger.misses.items()):
            source, _, reason = what.rpartition(": ")
            misses.add_metric([source, reason], count)
        yield misses
        yield _counter("bdn_corrupt_chunks", "Chunks and manifest documents whose bytes were wrong, by who sent them.",
                       "source", ledger.corrupt_by_source)  # fmt: skip
        yield _counter("bdn_origin_reads", "Chunks read from the origin, by reason.", "reason", ledger.origin_reasons)
        documents = {t.value: ledger.documents_by_tier[t] for t in (Tier.PEER, Tier.ORIGIN)}
        yield _counter("bdn_documents", "Manifest documents that were not here, by where they came from.", "tier",
                       documents)  # fmt: skip
        sent = CounterMetricFamily("bdn_served_bytes", "Bytes sent to other nodes.")
        sent.add_metric([], now.served_bytes)
        yield sent
        yield _counter("bdn_served_requests", "Requests of other nodes, by HTTP status.", "status",
                       {str(k): v for k, v in now.served_requests.items()})  # fmt: skip
        yield _counter("bdn_pulls", "Pulls that ended, by outcome.", "outcome", now.pulls_ended)
        yield _gauge("bdn_pulls_active", "Pulls queued or running.", now.pulls_active)
        models = GaugeMetricFamily("bdn_models", "Models in the store.", labels=["state"])
        models.add_metric(["complete"], now.models_complete)
        models.add_metric(["partial"], now.models_partial)
        yield models
        members = GaugeMetricFamily("bdn_members", "Members as this node sees them.", labels=["state"])
        for state, count in sorted(now.members.items()):
            members.add_metric([state], count)
        yield members
        bad = CounterMetricFamily("bdn_store_bad_chunks", "Chunks of this disk that were found bad or gone.")
        bad.add_metric([], now.store_bad_chunks)
        yield bad
        yield _gauge("bdn_store_free_bytes", "Free space on the store's file system.", now.store_free_bytes)
        info = GaugeMetricFamily("bdn_build_info", "1, with the version as a label.", labels=["version"])
        info.add_metric([VERSION], 1)
        yield info


def _counter(name: str, about: str, label: str, values: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, about, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family


def _gauge(name: str, about: str, value: float) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, about)
    family.add_metric([], value)
    return family
