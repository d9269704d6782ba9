"""The watch behind `store_down` rules: each process sends these alerts directly, without the unreachable store."""

from __future__ import annotations

import asyncio
import logging

from redrive import events as ev
from redrive.core.backoff import exponential
from redrive.core.item import Millis
from redrive.engine.ids import hashed_id, new_id
from redrive.errors import NotificationFailed
from redrive.observe.alerts.book import AlertBook
from redrive.observe.alerts.channels import send
from redrive.observe.alerts.model import Message, Notice, Rule, shown_text
from redrive.observe.logs import log
from redrive.stores.clock import Clock

logger = logging.getLogger("redrive.alerts")

CHECKS = exponential("5s", factor=2, cap="5m")
"""Interval between checks for one channel, with backoff while its sends fail."""


class DownWatch:
    """The watch of one process. `where` is the store, `owner` the name of the worker."""

    def __init__(self, book: AlertBook, where: str, owner: str, *, events: ev.Events, clock: Clock) -> None:
        self._book = book
        self._where = where
        self._owner = owner
        self._events = events
        self._clock = clock
        self._failing: dict[str, tuple[Millis, str]] = {}

    async def run(self) -> None:
        cancel = self._events.subscribe(self._on_event)
        rules = [rule for rule in self._book.rules.values() if rule.when.kind == "store_down"]
        try:
            await asyncio.gather(*(self._watch(rule, name) for rule in rules for name in rule.to))
        finally:
            cancel()

    def _on_event(self, event: ev.Event) -> None:
        if isinstance(event, ev.StoreFailed):
            self._failing.setdefault(event.part, (self._clock.now(), event.error))
        elif isinstance(event, ev.StoreRecovered):
            self._failing.pop(event.part, None)

    async def _watch(self, rule: Rule, name: str) -> None:
        """The loop of one channel: a channel that hangs or fails does not delay another."""
        sent: Notice | None = None
        failures = 0
        while True:
            await self._clock.sleep(CHECKS.delay(failures, 0.0) or 0)
            notice = self._due(rule, name, sent)
            if notice is None or await self._send(name, notice):
                failures = 0
                if notice is not None:
                    sent = notice if notice.status == "firing" else None
            else:
                failures += 1

    def _due(self, rule: Rule, name: str, sent: Notice | None) -> Notice | None:
        """The notice to send now. `sent` is the last one, unless it was the end of the alert."""
        now = self._clock.now()
        if rule.severity != "critical" and self._book.channels[name].quiet_until(now) > now:
            return None
        since, error = min(self._failing.values(), default=(now, ""))
        down = bool(self._failing) and now - since >= rule.for_
        if down and (sent is None or (rule.repeat is not None and now - sent.at >= rule.repeat)):
            text = shown_text(f"{self._owner} cannot reach its store {self._where}: {error}")
            repeated = 0 if sent is None else sent.repeated + 1
            key = f"store-down-{hashed_id(f'{self._where} {rule.name}'.encode())}"  # the same in all processes
            return Notice("firing", key, rule.name, "store", rule.severity, text, (), since, now, repeated)
        return sent.over(now) if sent is not None and not self._failing else None

    async def _send(self, name: str, notice: Notice) -> bool:
        try:
            await send(self._book.channels[name], Message(new_id(), notice.at, (notice,)))
        except NotificationFailed as error:
            log(logger, logging.WARNING, "an alert about the store was not sent", channel=name, error=error)
            return False
        return True
