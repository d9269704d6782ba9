"""What Prometheus asks: the numbers of all clients that share a registry and a prefix, as one.

A name can be registered once, and a program may have several clients: what they count is added up, and the dead letters
of a queue that several of them serve are counted once.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import CollectorRegistry

from redrive.errors import ConfigError
from redrive.observe.registries import Joint, Registries

Place = tuple[str, ...]
"""A queue of a store."""
ASK_TIMEOUT = 2.0
"""Seconds that a scrape waits for the stores; after that it is told the last sizes we know."""


class Counted(Protocol):
    receipts: Counter[tuple[str, str]]
    superseded: Counter[str]
    retries: int
    store_errors: int


class Source(Counted, Protocol):
    """The metrics of one client. `told_at`: since when `dead_letters` is the size of its `place`."""

    prefix: str
    place: Place | None
    dead_letters: int
    told_at: float

    def ask(self) -> Future[int] | None:
        """Ask the store anew. None where nobody can be asked, or waited for."""


@dataclass
class Counts:
    receipts: Counter[tuple[str, str]] = field(default_factory=Counter)
    superseded: Counter[str] = field(default_factory=Counter)
    retries: int = 0
    store_errors: int = 0

    def add(self, other: Counted) -> None:
        # Copied at one stroke: a client counts on while we are in another thread.
        for labels, count in tuple(other.receipts.items()):
            self.receipts[labels] += count
        for status, count in tuple(other.superseded.items()):
            self.superseded[status] += count
        self.retries += other.retries
        self.store_errors += other.store_errors


class Scrape(Joint[Source]):
    """Clients that have ended stay in its sums, as counters never go back."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix
        self._past = Counts()
        self._sizes: dict[Place, int] = {}

    def end(self, source: Source) -> None:
        """It counts no more; what it has counted stays, and so does the size it has seen last."""
        with self._lock:
            if source in self._sources:
                self._sources.remove(source)
                self._past.add(source)
                self._note_sizes([source])

    def describe(self) -> Iterator[Metric]:
        """The names, without asking anybody: registering must not wait for a store."""
        return self._families(Counts(), 0)

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            asked = tuple(self._sources)
        _ask(asked)
        with self._lock:
            total = Counts()
            for each in (self._past, *self._sources):
                total.add(each)
            self._note_sizes(self._sources)
            size = sum(self._sizes.values())
        return self._families(total, size)

    def _note_sizes(self, sources: Iterable[Source]) -> None:
        """Of those at one place, the one that was told last is right."""
        for each in sorted(sources, key=lambda source: source.told_at):
            if each.place is not None:
                self._sizes[each.place] = each.dead_letters

    def _families(self, counts: Counts, size: int) -> Iterator[Metric]:
        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Any:
            return CounterMetricFamily(f"{self._prefix}_{name}", text, labels=labels)

        receipts = counter("receipts", "Receipts that were delivered, or became dead letters.", ("status", "success"))
        for labels, count in sorted(counts.receipts.items()):
            receipts.add_metric(labels, count)
        superseded = counter("receipts_superseded", "Receipts that were not owed any more.", ("status",))
        for status, count in sorted(counts.superseded.items()):
            superseded.add_metric((status,), count)
        retries = counter("receipt_retries", "Tries after a failed one.")
        retries.add_metric((), counts.retries)
        failures = counter("receipt_store_errors", "Calls of the store that failed.")
        failures.add_metric((), counts.store_errors)
        yield from (receipts, superseded, retries, failures)
        yield GaugeMetricFamily(f"{self._prefix}_dead_letter_queue_size", "Dead letters that wait.", value=size)


def _ask(sources: Iterable[Source]) -> None:
    """All stores at once, each of them once."""
    asked: dict[Place, Future[int]] = {}
    for each in sources:
        if each.place is not None and each.place not in asked and (answer := each.ask()) is not None:
            asked[each.place] = answer
    until = time.monotonic() + ASK_TIMEOUT
    for answer in asked.values():
        try:
            answer.result(max(0.0, until - time.monotonic()))
        except TimeoutError:
            answer.cancel()


_registries = Registries(Scrape)


def register(source: Source, registry: CollectorRegistry) -> Scrape:
    """Together with those that are there under its prefix. Raises ConfigError if the names are somebody else's."""
    try:
        return _registries.register(source, source.prefix, registry)
    except ValueError as error:
        hint = "choose another prefix"
        raise ConfigError(f"the registry has such names: {error}", field="metrics_prefix", hint=hint) from None


def unregister(source: Source, registry: CollectorRegistry) -> None:
    """Its numbers go with it; with the last one, all of them."""
    _registries.unregister(source, source.prefix, registry)
