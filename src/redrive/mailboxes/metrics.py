"""What became of dead letters, as numbers for Prometheus.

    metrics = default_metrics()         # what loops, consumers and replay of this process count in
    metrics.register()                  # with prometheus_client's registry, or one of your own
    metrics.watch(dead_letters)         # its depth is then told, too; loops and consumers do it for theirs

Counters count from the start of the process, as Prometheus wants it. The depth is the store's own.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from redrive.core.quantity import shown
from redrive.errors import InvalidParameterError, MissingExtra
from redrive.mailboxes.boxes import limits
from redrive.mailboxes.boxes.depth import Depth, ask_all
from redrive.mailboxes.boxes.mailbox import Mailbox

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry

Labels = tuple[str, str]
"""The source mailbox, and the type of the error with its module."""
LABELS = ("source", "error_type")

AGES = (1, 10, 60, 300, 900, 3_600, 21_600, 86_400, 259_200, 604_800, 2_592_000)
"""Seconds: letters wait for people, so up to a month."""
DURATIONS = (1, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000)
"""Milliseconds."""

COUNTERS = {
    "sent": "Messages that became dead letters.",
    "processed": "Dead letters that a handler processed.",
    "replayed": "Dead letters that were sent back to work.",
    "discarded": "Dead letters that were given up.",
    "expired": "Dead letters that were older than their mailbox keeps them.",
    "refused": "Messages that stayed where they were, because the mailbox of dead letters was full.",
}


@dataclass
class Distribution:
    """A histogram: how many fell into each bucket (the last is open at its end), and their sum."""

    bounds: tuple[int, ...]
    counts: list[int] = field(default_factory=list)
    sum: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    @property
    def count(self) -> int:
        return sum(self.counts)

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def add_all(self, other: Distribution) -> None:
        """Of the same bounds."""
        self.counts = [one + more for one, more in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum

    def buckets(self) -> list[tuple[str, float]]:
        """As Prometheus has them: each with all before it."""
        found, total = [], 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            total += count
            found.append((str(bound), float(total)))
        return found


Spread = dict[Labels, Distribution]


@dataclass
class Numbers:
    """What several have counted, together."""

    counts: dict[str, Counter[Labels]] = field(default_factory=lambda: {name: Counter() for name in COUNTERS})
    ages: Spread = field(default_factory=dict)
    durations: Spread = field(default_factory=dict)


class MailboxMetrics:
    """`counts["sent"][source, error_type]` and the like; `ages` and `durations` by the same labels."""

    def __init__(self, prefix: str = "redrive") -> None:
        given: object = prefix
        if not isinstance(given, str) or not prefix.isidentifier() or not prefix.isascii():
            hint = "use letters, digits and underscores, such as agents"
            said = f"{shown(prefix)} cannot begin the name of a metric"
            raise InvalidParameterError(said, field="prefix", hint=hint)
        self.prefix = prefix
        self.counts: dict[str, Counter[Labels]] = {name: Counter() for name in COUNTERS}
        self.ages: Spread = {}
        self.durations: Spread = {}
        self._depths: dict[str, tuple[str, Depth]] = {}
        self._lock = threading.Lock()

    # --- what loops, consumers and replay say ---

    def sent(self, source: str, error_type: str) -> None:
        self._count("sent", source, error_type)

    def processed(self, source: str, error_type: str, *, age_seconds: float, duration_ms: float) -> None:
        """A handler was through with a letter: how old that was when it came to it, and how long it took."""
        labels = (source, error_type)
        with self._lock:
            self.counts["processed"][labels] += 1
            self.ages.setdefault(labels, Distribution(AGES)).add(age_seconds)
            self.durations.setdefault(labels, Distribution(DURATIONS)).add(duration_ms)

    def replayed(self, source: str, error_type: str) -> None:
        self._count("replayed", source, error_type)

    def discarded(self, source: str, error_type: str) -> None:
        self._count("discarded", source, error_type)

    def expired(self, source: str, error_type: str, count: int = 1) -> None:
        self._count("expired", source, error_type, count)

    def refused(self, source: str, error_type: str) -> None:
        self._count("refused", source, error_type)

    def watch(self, mailbox: Mailbox[Any, Any]) -> None:
        """Tell how deep it is, until it is closed. The last of a name is asked."""
        limits.kind(mailbox, Mailbox, field="mailbox", hint="use open_mailbox")
        with self._lock:
            known = self._depths.get(mailbox.name)
            if known is None or known[1].mailbox is not mailbox:
                self._depths[mailbox.name] = (mailbox._address(), Depth(mailbox))

    def total(self, name: str) -> int:
        """Over all sources and error types."""
        if name not in tuple(COUNTERS):
            said = f"{shown(name)} is not counted"
            raise InvalidParameterError(said, field="name", hint=f"use one of {', '.join(COUNTERS)}")
        with self._lock:
            return sum(self.counts[name].values())

    def depths(self) -> dict[str, int]:
        """By name of the mailbox, as far as they are known. Asks the stores; never for long."""
        asked = self.watched()
        answers = zip(asked, ask_all(list(asked.values())), strict=True)
        return {name: known.depth for (name, _), known in answers if known.depth is not None}

    def watched(self) -> dict[tuple[str, str], Depth]:
        """By name of the mailbox, and where it is."""
        with self._lock:
            self._depths = {name: known for name, known in self._depths.items() if not known[1].mailbox.closed}
            return {(name, at): depth for name, (at, depth) in self._depths.items()}

    def add_to(self, total: Numbers) -> None:
        with self._lock:
            for name, counted in self.counts.items():
                total.counts[name].update(counted)
            for mine, all_of_them in ((self.ages, total.ages), (self.durations, total.durations)):
                for labels, found in mine.items():
                    all_of_them.setdefault(labels, Distribution(found.bounds)).add_all(found)

    def _count(self, name: str, source: str, error_type: str, count: int = 1) -> None:
        with self._lock:
            self.counts[name][source, error_type] += count

    # --- what Prometheus asks ---

    def register(self, registry: CollectorRegistry | None = None) -> None:
        """With prometheus_client's own registry if none is given. Needs `redrive[metrics]`.

        With others that are registered there under the same prefix, as one: what they count is added up, and a mailbox
        that several of them watch is asked once.
        """
        _prometheus()
        from redrive.mailboxes import scrape

        scrape.register(self, registry)

    def unregister(self, registry: CollectorRegistry | None = None) -> None:
        """Take its numbers out of a registry again; with the last ones, the names too."""
        _prometheus()
        from redrive.mailboxes import scrape

        scrape.unregister(self, registry)


@cache
def default_metrics() -> MailboxMetrics:
    """The one of this process. For another prefix make your own, and give it to loops and consumers as `metrics=`."""
    return MailboxMetrics()


def _prometheus() -> None:
    if find_spec("prometheus_client") is None:
        hint = 'pip install "redrive[metrics]"'
        raise MissingExtra("there is no prometheus_client", field="metrics", hint=hint)
