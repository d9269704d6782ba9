"""Collectors of prometheus_client. A registry takes a name once, so sources of a class and prefix share a collector."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Iterator
from concurrent.futures import wait
from itertools import accumulate
from typing import Any
from weakref import WeakKeyDictionary

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import CollectorRegistry

from redrive.observe.metrics import ASK_TIMEOUT, Distribution, Family, Gauge, Metrics, Sample

KINDS: dict[str, Any] = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}


class Joint:
    """The collector of all sources that are registered under one prefix, as if they were one."""

    def __init__(self, prefix: str, families: tuple[Family, ...]) -> None:
        self._prefix = prefix
        self._families = families
        self._sources: list[Metrics] = []
        self._retired: Values = {}
        self._retired_gauges: Answers = {}
        self._lock = threading.Lock()

    def join(self, source: Metrics) -> None:
        with self._lock:
            if source not in self._sources:
                self._sources.append(source)

    def leave(self, source: Metrics) -> bool:
        """True if it was the last one."""
        with self._lock:
            if source in self._sources:
                self._sources.remove(source)
            return not self._sources

    def retire(self, source: Metrics) -> None:
        with self._lock:
            if source in self._sources:
                self._sources.remove(source)
                _add(self._retired, source.samples())
                _keep_newest(self._retired_gauges, source.gauges())

    def describe(self) -> Iterator[Metric]:
        """The names, without asking a store."""
        return self._export({})

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            sources = tuple(self._sources)
        gauges = [gauge for each in sources for gauge in each.gauges()]
        _ask(gauges)
        values: Values = {}
        with self._lock:
            _add(values, (Sample(*labelled, value) for labelled, value in self._retired.items()))
            answers = dict(self._retired_gauges)
        for each in sources:
            _add(values, each.samples())
        _keep_newest(answers, gauges)
        for _, samples in answers.values():
            _add(values, samples)
        return self._export(values)

    def _export(self, values: Values) -> Iterator[Metric]:
        for family in self._families:
            metric = KINDS[family.kind](f"{self._prefix}_{family.name}", family.help, labels=family.labels)
            for (name, labels), value in sorted(values.items(), key=lambda each: each[0]):
                if name == family.name and isinstance(value, Distribution):
                    metric.add_metric(labels, _buckets(value), value.sum)
                elif name == family.name:
                    metric.add_metric(labels, value)
            yield metric


Values = dict[tuple[str, tuple[str, ...]], Any]
Answers = dict[Hashable, tuple[float, list[Sample]]]
"""By the gauge's key: when it was answered, and what."""


def _add(values: Values, samples: Iterable[Sample]) -> None:
    for family, labels, value in samples:
        before = values.get((family, labels))
        values[family, labels] = value if before is None else before + value


def _keep_newest(answers: Answers, gauges: Iterable[Gauge]) -> None:
    for gauge in gauges:
        known = gauge.asked.known
        if known.value is not None and known.at >= answers.get(gauge.key, (0.0,))[0]:
            answers[gauge.key] = known.at, list(gauge.samples(known.value))


def _ask(gauges: Iterable[Gauge]) -> None:
    """All keys at once, each of them once, with one timeout."""
    under_way = {}
    for gauge in gauges:
        if gauge.key not in under_way and (answer := gauge.asked.begin()) is not None:
            under_way[gauge.key] = answer
    wait(under_way.values(), ASK_TIMEOUT)


def _buckets(found: Distribution) -> list[tuple[str, float]]:
    """As Prometheus has them: each includes those before it."""
    return list(zip([*map(str, found.bounds), "+Inf"], map(float, accumulate(found.counts)), strict=True))


_joints: WeakKeyDictionary[CollectorRegistry, dict[tuple[str, tuple[Family, ...]], Joint]] = WeakKeyDictionary()
_lock = threading.Lock()


def register(source: Metrics, registry: CollectorRegistry | None) -> Joint:
    """Raises ValueError if another collector has one of the names."""
    registry = REGISTRY if registry is None else registry
    with _lock:
        joints = _joints.setdefault(registry, {})
        key = source.prefix, source.families
        joint = joints.get(key)
        if joint is None:
            joint = Joint(*key)
            registry.register(joint)
            joints[key] = joint
        joint.join(source)
        return joint


def unregister(source: Metrics, registry: CollectorRegistry | None) -> None:
    registry = REGISTRY if registry is None else registry
    with _lock:
        joints = _joints.get(registry, {})
        joint = joints.get((source.prefix, source.families))
        if joint is not None and joint.leave(source):
            registry.unregister(joint)
            del joints[source.prefix, source.families]


def exposition() -> tuple[str, bytes]:
    """Content type and text of `/metrics`: all of prometheus_client's default registry."""
    return CONTENT_TYPE_LATEST, generate_latest(REGISTRY)
