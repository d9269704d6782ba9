"""What became of receipts of one client, as numbers for Prometheus. Nothing is imported for it unless one asks.

    metrics = client.metrics
    metrics.register()                  # with prometheus_client's registry, or one of your own
    metrics.receipts["complete", "true"], metrics.retries, metrics.dead_letters

Counters count from the start of the process, as Prometheus wants it. The size is the store's own, so it is right
after a restart, and also when others add and remove.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from importlib.util import find_spec
from typing import TYPE_CHECKING

from redrive import events as ev
from redrive.app import Redrive
from redrive.core.quantity import shown
from redrive.errors import ConfigError, MissingExtra, RedriveError

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry

    from redrive.receipts._scrape import Place, Scrape

UNKNOWN = "unknown"
ALARM_ABOVE = 10
ALARM_AFTER = "15m"
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


class ReceiptMetrics:
    """`receipts` counts by status and `"true"` (delivered) or `"false"` (dead letter); `superseded` by status;
    `retries` are tries after a failed one; `store_errors` are calls of the store that failed.
    """

    def __init__(self, prefix: str = "redrive") -> None:
        self.prefix = check_prefix(prefix)
        self.receipts: Counter[tuple[str, str]] = Counter()
        self.superseded: Counter[str] = Counter()
        self.retries = 0
        self.dead_letters = 0
        self.store_errors = 0
        self._statuses: dict[str, str] = {}
        self._changes = 0
        self._app: Redrive | None = None
        self._queue = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._home: threading.Thread | None = None
        self._leave: Callable[[], None] | None = None
        self._asking: asyncio.Task[int] | None = None
        self._scrapes: list[Scrape] = []
        self.place: Place | None = None
        """The queue of which store it tells of; None before it was opened."""
        self.told_at = 0.0
        """When `dead_letters` was known last, by the monotonic clock."""

    # --- what the client says ---

    async def open(self, app: Redrive, queue: str) -> None:
        """Listen to an open app, and ask its store how many letters there are."""
        self._app, self._queue = app, queue
        self._loop, self._home = asyncio.get_running_loop(), threading.current_thread()
        self._leave = app.events.subscribe(self._heard)
        self.place = _place(app, queue)
        await self.refresh()

    async def close(self) -> None:
        """The numbers stay as they are."""
        if self._leave is not None:
            self._leave()
        self._app = self._loop = self._leave = None
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
            self._asking = None
        for each in self._scrapes:
            each.end(self)

    def trying(self, item_id: str, status: str, *, retry: bool) -> None:
        """A try begins; how it ended is heard from the app's events."""
        self._statuses[item_id] = status
        self.retries += retry

    def arrived(self, item_id: str) -> None:
        """The target has it. Counted now and not when that is settled: whoever sent it may look at once."""
        status = self._statuses.pop(item_id, None)
        if status is not None:
            self.receipts[status, "true"] += 1

    def store_failed(self) -> None:
        self.store_errors += 1

    def _heard(self, event: ev.Event) -> None:
        if type(event) is ev.Started:
            return  # one for each try
        match event:
            case ev.Finished(queue=queue) if queue == self._queue:
                self._finished(event)
            case ev.SettleRefused(id=id) | ev.LeaseLost(id=id):
                self._statuses.pop(id, None)
            case ev.StoreFailed():
                self.store_errors += 1
            case ev.Amended(changed=changed) if changed:
                # Letters came or went by an operator's hand: how many of them are ours, the store knows.
                self._ask()
            case _:
                pass

    def _finished(self, event: ev.Finished) -> None:
        status = self._statuses.pop(event.id, UNKNOWN)
        if event.state == "dead":
            self.receipts[status, "false"] += 1
            self._changes += 1
            self._tell(self.dead_letters + 1)
        elif event.state == "cancelled":
            self.superseded[status] += 1

    # --- the size ---

    async def refresh(self) -> int:
        """Ask the store how many letters there are."""
        while self._app is not None:
            seen = self._changes
            tally = await self._app.tally()
            # A letter that was counted while we asked may or may not be in the answer: ask again.
            if seen == self._changes:
                self._tell(next((row.open for row in tally.queues if row.queue == self._queue), 0))
                break
        return self.dead_letters

    def _tell(self, size: int) -> None:
        self.dead_letters, self.told_at = size, time.monotonic()

    def _ask(self) -> None:
        """In the loop, without waiting: whoever looks next finds it."""
        if self._loop is not None and (self._asking is None or self._asking.done()):
            self._asking = self._loop.create_task(self._refreshed())

    async def _refreshed(self) -> int:
        try:
            return await self.refresh()
        except RedriveError:
            self.store_failed()
            return self.dead_letters

    def ask(self) -> Future[int] | None:
        """For a scrape, from any thread. The loop's own thread cannot wait for it, and gets the last one."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return None
        if threading.current_thread() is self._home:
            self._ask()
            return None
        return asyncio.run_coroutine_threadsafe(self._refreshed(), loop)

    # --- what Prometheus asks ---

    def register(self, registry: CollectorRegistry | None = None) -> None:
        """With prometheus_client's own registry if none is given. Needs `redrive[metrics]`.

        With those of other clients that are registered there under the same prefix, as one: what they count is added
        up, and the letters of a queue that several of them serve are counted once.
        """
        _check_prometheus()
        from redrive.receipts import _scrape

        self._scrapes.append(_scrape.register(self, _registry(registry)))

    def unregister(self, registry: CollectorRegistry | None = None) -> None:
        """Take its numbers out of a registry again; with the last client, the names too."""
        _check_prometheus()
        from redrive.receipts import _scrape

        _scrape.unregister(self, _registry(registry))


def alert_rules(prefix: str = "redrive") -> str:
    """A rule file for Prometheus: too many letters for too long."""
    name = f"{check_prefix(prefix)}_dead_letter_queue_size"
    return f"""\
groups:
  - name: {prefix}-receipts
    rules:
      - alert: ReceiptDeadLetters
        expr: {name} > {ALARM_ABOVE}
        for: {ALARM_AFTER}
        labels:
          severity: warning
        annotations:
          summary: '{{{{ $value }}}} receipts were not delivered'
          description: 'Look with `redrive receipts list`; deliver them with `redrive receipts recover`.'
"""


def check_prefix(prefix: str) -> str:
    given: object = prefix
    if not isinstance(given, str) or not _NAME.fullmatch(given):
        hint = "use letters, digits and underscores, such as cognigate"
        raise ConfigError(f"{shown(prefix)} cannot begin the name of a metric", field="metrics_prefix", hint=hint)
    return prefix


def _place(app: Redrive, queue: str) -> Place:
    """The same for all that see the same letters. What is in memory is somewhere else for each store."""
    store = app._store  # noqa: SLF001 - receipts are of redrive
    info = store.info()
    return info.engine, info.location, queue, str(id(store)) if info.engine == "memory" else ""


def _registry(registry: CollectorRegistry | None) -> CollectorRegistry:
    from prometheus_client import REGISTRY

    return REGISTRY if registry is None else registry


def _check_prometheus() -> None:
    if find_spec("prometheus_client") is None:
        hint = 'pip install "redrive[metrics]"'
        raise MissingExtra("there is no prometheus_client", field="metrics", hint=hint)
