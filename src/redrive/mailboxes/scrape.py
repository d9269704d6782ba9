"""What Prometheus asks: the numbers of all that share a registry and a prefix, as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client import REGISTRY, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import CollectorRegistry

from redrive.errors import InvalidParameterError
from redrive.mailboxes.boxes.depth import ask_all
from redrive.mailboxes.metrics import COUNTERS, LABELS, MailboxMetrics, Numbers
from redrive.observe.registries import Joint, Registries


class Scrape(Joint[MailboxMetrics]):
    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = f"{prefix}_dlq"

    def describe(self) -> Iterator[Metric]:
        """The names, without asking anybody: registering must not wait for a store."""
        return self._families(Numbers(), {})

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            sources = tuple(self._sources)
        total = Numbers()
        for each in sources:
            each.add_to(total)
        asked = {where: depth for each in sources for where, depth in each.watched().items()}
        depths: Counter[str] = Counter()
        for (mailbox, _), known in zip(asked, ask_all(list(asked.values())), strict=True):
            if known.depth is not None:
                depths[mailbox] += known.depth
        return self._families(total, depths)

    def _families(self, numbers: Numbers, depths: Mapping[str, int]) -> Iterator[Metric]:
        for name, text in COUNTERS.items():
            counter = CounterMetricFamily(f"{self._prefix}_messages_{name}", text, labels=LABELS)
            for labels, count in sorted(numbers.counts[name].items()):
                counter.add_metric(labels, count)
            yield counter
        gauge = GaugeMetricFamily(f"{self._prefix}_queue_depth", "Dead letters that wait.", labels=("mailbox",))
        for mailbox, depth in sorted(depths.items()):
            gauge.add_metric((mailbox,), depth)
        yield gauge
        for name, text, spread in (
            ("message_age_seconds", "How old a dead letter was when it was processed.", numbers.ages),
            ("processing_duration_ms", "How long its handler took.", numbers.durations),
        ):
            histogram = HistogramMetricFamily(f"{self._prefix}_{name}", text, labels=LABELS)
            for labels, found in sorted(spread.items()):
                histogram.add_metric(labels, found.buckets(), found.sum)
            yield histogram


_registries = Registries(Scrape)


def register(source: MailboxMetrics, registry: CollectorRegistry | None) -> None:
    """Raises InvalidParameterError if the names are somebody else's."""
    try:
        _registries.register(source, source.prefix, REGISTRY if registry is None else registry)
    except ValueError as error:
        said = f"the registry has such names: {error}"
        raise InvalidParameterError(said, field="prefix", hint="choose another one") from None


def unregister(source: MailboxMetrics, registry: CollectorRegistry | None) -> None:
    _registries.unregister(source, source.prefix, REGISTRY if registry is None else registry)
