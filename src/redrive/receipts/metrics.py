"""Metrics of the receipts of one client.

    metrics = client.metrics
    metrics.register()                  # with prometheus_client's default registry, or one of your own
    metrics.receipts["complete", "true"], metrics.retries, metrics.dead_letters

Counters count from the start of the process. The number of dead letters is the store's own: right after a restart.
"""

from __future__ import annotations

from collections.abc import Callable

from redrive import events as ev
from redrive.app import Redrive
from redrive.app.internals import store_of
from redrive.observe.metrics import Family, Gauge, Metrics, OpenLetters, Sample

SIZE = "dead_letter_queue_size"


class ReceiptMetrics(Metrics):
    """`receipts` counts by status and `"true"` (delivered) or `"false"` (dead letter); `superseded` by status;
    `retries` are attempts after a failed one; `store_errors` are calls of the store that failed.
    """

    families = (
        Family("counter", "receipts", "Receipts that were delivered, or became dead letters.", ("status", "success")),
        Family("counter", "receipts_superseded", "Receipts that were not owed any more.", ("status",)),
        Family("counter", "receipt_retries", "Attempts after a failed one."),
        Family("counter", "receipt_store_errors", "Calls of the store that failed."),
        Family("gauge", SIZE, "Open dead letters."),
    )
    _field = "metrics_prefix"

    def __init__(self, prefix: str = "redrive") -> None:
        super().__init__(prefix)
        self.receipts, self.superseded = self._counters["receipts"], self._counters["receipts_superseded"]
        self._statuses: dict[str, str] = {}
        self._queue = ""
        self._letters = OpenLetters(self.store_failed)
        self._unsubscribe: Callable[[], None] = lambda: None

    @property
    def retries(self) -> int:
        return self._counters["receipt_retries"][()]

    @property
    def store_errors(self) -> int:
        return self._counters["receipt_store_errors"][()]

    @property
    def dead_letters(self) -> int:
        return self._letters.value

    async def open(self, app: Redrive, queue: str) -> None:
        """Subscribe to the events of an open app, and ask its store for the number of letters."""
        self._queue = queue
        self._unsubscribe = app.events.subscribe(self._heard)
        await self._letters.open(store_of(app), queue)

    async def close(self) -> None:
        """The numbers stay as they are."""
        self._unsubscribe()
        await self._letters.close()
        self._retire()

    def gauges(self) -> list[Gauge]:
        letters = self._letters
        return [Gauge(letters.key, letters, lambda size: [Sample(SIZE, (), size)])] if letters.key else []

    def trying(self, item_id: str, status: str, *, retry: bool) -> None:
        """An attempt begins; its end comes with the app's events."""
        self._statuses[item_id] = status
        if retry:
            self._count("receipt_retries")

    def arrived(self, item_id: str) -> None:
        """The target has it. Counted before it is settled: the sender may read the counter at once."""
        status = self._statuses.pop(item_id, None)
        if status is not None:
            self._count("receipts", (status, "true"))

    def store_failed(self) -> None:
        self._count("receipt_store_errors")

    def _heard(self, event: ev.Event) -> None:
        match event:
            case ev.Finished(queue=queue) if queue == self._queue:
                self._finished(event)
            case ev.SettleRefused(id=id) | ev.LeaseLost(id=id):
                self._statuses.pop(id, None)
            case ev.StoreFailed():
                self.store_failed()
            case ev.Amended(changed=changed) if changed:
                # An operator changed letters; only the store knows how many of them are ours.
                self._letters.begin()
            case _:
                pass

    def _finished(self, event: ev.Finished) -> None:
        status = self._statuses.pop(event.id, "unknown")
        if event.state == "dead":
            self._count("receipts", (status, "false"))
            self._letters.add()
        elif event.state == "cancelled":
            self.superseded[status] += 1

    async def refresh(self) -> int:
        """Ask the store for the number of letters."""
        return await self._letters.refresh()


def alert_rules(prefix: str = "redrive") -> str:
    """A rule file for Prometheus: too many letters for too long."""
    return f"""\
groups:
  - name: {prefix}-receipts
    rules:
      - alert: ReceiptDeadLetters
        expr: {ReceiptMetrics.check_prefix(prefix)}_{SIZE} > 10
        for: 15m
        labels:
          severity: warning
        annotations:
          summary: '{{{{ $value }}}} receipts were not delivered'
          description: 'Look with `redrive receipts list`; deliver them with `redrive receipts recover`.'
"""
