"""Metrics of dead-letter mailboxes.

    metrics = default_metrics()         # in which loops, consumers and replayers of this process count
    metrics.register()                  # with prometheus_client's default registry, or one of your own
    metrics.watch(dead_letters)         # reports its depth; loops and consumers do it for theirs

Counters count from the start of the process. Depths are asked of the stores at scrape time.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from redrive.core.quantity import shown
from redrive.core.validation import check_type
from redrive.errors import InvalidParameterError
from redrive.mailboxes.boxes.mailbox import Mailbox
from redrive.observe.metrics import AskedInThread, Family, Gauge, Metrics, Sample, ask_all

LABELS = ("source", "error_type")
"""The source mailbox, and the type of the error with its module."""
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
    "refused": "Messages that stayed in their source, because the dead-letter mailbox was full.",
}
MESSAGES, DEPTH = "dlq_messages_", "dlq_queue_depth"
AGE, DURATION = "dlq_message_age_seconds", "dlq_processing_duration_ms"


class MailboxMetrics(Metrics):
    """`counts["sent"][source, error_type]` and the like; `ages` and `durations` by the same labels."""

    families = (
        *(Family("counter", f"{MESSAGES}{name}", text, LABELS) for name, text in COUNTERS.items()),
        Family("gauge", DEPTH, "Open letters of a dead-letter mailbox.", ("mailbox",)),
        Family("histogram", AGE, "How old a dead letter was when it was processed.", LABELS, AGES),
        Family("histogram", DURATION, "How long its handler took.", LABELS, DURATIONS),
    )
    _error = InvalidParameterError

    def __init__(self, prefix: str = "redrive") -> None:
        super().__init__(prefix)
        self.counts = {name: self._counters[f"{MESSAGES}{name}"] for name in COUNTERS}
        self.ages, self.durations = self._spreads[AGE], self._spreads[DURATION]
        self._watched: dict[str, tuple[Mailbox[Any, Any], AskedInThread[int]]] = {}

    def sent(self, source: str, error_type: str) -> None:
        self._count(f"{MESSAGES}sent", (source, error_type))

    def processed(self, source: str, error_type: str, *, age_seconds: float, duration_ms: float) -> None:
        """A handler processed a letter: how old the letter was at the start, and how long the handler took."""
        self._count(f"{MESSAGES}processed", (source, error_type))
        self._observe(AGE, (source, error_type), age_seconds)
        self._observe(DURATION, (source, error_type), duration_ms)

    def replayed(self, source: str, error_type: str) -> None:
        self._count(f"{MESSAGES}replayed", (source, error_type))

    def discarded(self, source: str, error_type: str) -> None:
        self._count(f"{MESSAGES}discarded", (source, error_type))

    def expired(self, source: str, error_type: str, count: int = 1) -> None:
        self._count(f"{MESSAGES}expired", (source, error_type), count)

    def refused(self, source: str, error_type: str) -> None:
        self._count(f"{MESSAGES}refused", (source, error_type))

    def watch(self, mailbox: Mailbox[Any, Any]) -> None:
        """Report its depth until it is closed. Of mailboxes with one name, the last one counts."""
        check_type(mailbox, Mailbox, field="mailbox", hint="use open_mailbox")
        with self._lock:
            known = self._watched.get(mailbox.name)
            if known is None or known[0] is not mailbox:
                self._watched[mailbox.name] = mailbox, AskedInThread(mailbox.approximate_count)

    def total(self, name: str) -> int:
        """Over all sources and error types."""
        if name not in tuple(COUNTERS):
            hint = f"use one of {', '.join(COUNTERS)}"
            raise InvalidParameterError(f"{shown(name)} is not counted", field="name", hint=hint)
        with self._lock:
            return sum(self.counts[name].values())

    def depths(self) -> dict[str, int]:
        """By name of the mailbox, where it is known. Asks the stores, with one timeout."""
        gauges = self.gauges()
        known = ask_all([gauge.asked for gauge in gauges])
        return {gauge.key[0]: each.value for gauge, each in zip(gauges, known, strict=True) if each.value is not None}

    def gauges(self) -> list[Gauge]:
        with self._lock:
            self._watched = {name: each for name, each in self._watched.items() if not each[0].closed}
            watched = tuple(self._watched.values())
        return [Gauge((box.name, box.reply_address()), asked, partial(_depth, box.name)) for box, asked in watched]


def _depth(mailbox: str, depth: int) -> list[Sample]:
    return [Sample(DEPTH, (mailbox,), depth)]


@cache
def default_metrics() -> MailboxMetrics:
    """The one of this process. For another prefix make your own, and give it to loops and consumers as `metrics=`."""
    return MailboxMetrics()
