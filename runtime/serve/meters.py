"""The server's metrics, under Prometheus' conventions. One registry per server, so that tests can run several."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from runtime.serve.conductor import Tally

FIRST_SOUND_BUCKETS = (0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, float("inf"))


class _TallyCollector(Collector):
    """The device thread's own counts, read when asked for: it never waits for a metric's lock."""

    def __init__(self, tally: Callable[[], Tally]) -> None:
        self._tally = tally

    def collect(self) -> Iterable[Metric]:
        tally = self._tally()
        steps = CounterMetricFamily("tts_steps", "Steps of the engine by kind.", labels=["kind"])
        steps.add_metric(["full"], tally.steps_full)
        steps.add_metric(["lead"], tally.steps_lead)
        yield steps
        yield CounterMetricFamily("tts_lane_steps", "Lanes stepped, over all steps.", tally.lane_steps)
        yield CounterMetricFamily("tts_model_seconds", "Time inside the model's steps.", tally.model_s)
        yield CounterMetricFamily("tts_plan_seconds", "Time of scheduling and hand-over around them.", tally.plan_s)
        yield CounterMetricFamily("tts_underruns", "Frames made after their listener had run dry.", tally.underruns)


class LoopTime:
    """Where the event loop's processor time goes. `coded` is called on the loop, also for what a thread coded."""

    def __init__(self, network_s: Counter, coding_s: Counter) -> None:
        self._network_s, self._coding_s = network_s, coding_s
        self._seen_s = time.thread_time()
        self._coded_s = self._coded_beside_s = 0.0

    def coded(self, cpu_s: float, *, beside: bool) -> None:
        """Two sums: a counter's lock would cost as much as it takes to measure this."""
        if beside:
            self._coded_beside_s += cpu_s
        else:
            self._coded_s += cpu_s

    def note(self) -> None:
        """Moves what was spent since the last time to the counters. On the loop's thread."""
        now_s = time.thread_time()
        self._network_s.inc(max(0.0, now_s - self._seen_s - self._coded_s))
        self._coding_s.inc(self._coded_s + self._coded_beside_s)
        self._seen_s, self._coded_s, self._coded_beside_s = now_s, 0.0, 0.0


class Meters:
    def __init__(self, tally: Callable[[], Tally]) -> None:
        self.registry = registry = CollectorRegistry()
        registry.register(_TallyCollector(tally))
        ProcessCollector(registry=registry)  # memory, processor time, open files
        self.ready = Gauge("tts_ready", "1 when warm and not draining.", registry=registry)
        self.capacity = Gauge("tts_streams_capacity", "Streams that fit, as measured.", registry=registry)
        self.least = Gauge(
            "tts_first_sound_least_seconds", "What the steps to a first sound cost a stream alone, as measured.",
            registry=registry,
        )  # fmt: skip
        self.active = Gauge("tts_streams_active", "Streams that hold a lane.", registry=registry)
        self.sockets = Gauge("tts_sockets", "Open WebSockets.", registry=registry)
        self.streams = Counter(
            "tts_streams", "Streams that ended, by protocol and outcome.", ["protocol", "outcome"], registry=registry
        )
        self.refused = Counter("tts_refused", "Calls not let in, by cause.", ["code"], registry=registry)
        self.shed = Counter("tts_readers_shed", "Streams ended because their sound was not read.", registry=registry)
        self.first_sound = Histogram(
            "tts_first_sound_seconds", "From the text that could be spoken to the first sound handed to the network.",
            buckets=FIRST_SOUND_BUCKETS, registry=registry,
        )  # fmt: skip
        self.silence = Histogram(
            "tts_leading_silence_seconds", "Silence cut before the first sound.",
            buckets=(0.0, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, float("inf")), registry=registry,
        )  # fmt: skip
        self.audio_s = Counter("tts_audio_seconds", "Sound sent.", registry=registry)
        self.text_chars = Counter("tts_text_characters", "Text received.", registry=registry)
        network_s = Counter(
            "tts_network_cpu_seconds", "Processor time of the event loop, without its coding.", registry=registry
        )
        coding_s = Counter(
            "tts_coding_cpu_seconds", "Processor time of turning sound into what callers asked for: rates and formats.",
            registry=registry,
        )  # fmt: skip
        self.loop_time = LoopTime(network_s, coding_s)

    def page(self) -> bytes:
        """On the loop's thread."""
        self.loop_time.note()
        return generate_latest(self.registry)
