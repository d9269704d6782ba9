"""Rules about the store itself: a process tells them by itself and directly, since the store cannot keep them."""

from __future__ import annotations

import logging

from redrive import events as ev
from redrive.core.item import Millis
from redrive.engine.ids import hashed_id, new_id
from redrive.errors import NotificationFailed
from redrive.observe.alerts.book import AlertBook
from redrive.observe.alerts.channels import send
from redrive.observe.alerts.model import Message, Notice, Rule, shown_text
from redrive.observe.logs import log
from redrive.stores.clock import Clock

logger = logging.getLogger("redrive.alerts")

DOWN_CHECK: Millis = 5_000


class DownWatch:
    """Of one process. `where` is the store, `owner` the name of the worker."""

    def __init__(self, book: AlertBook, where: str, owner: str, *, events: ev.Events, clock: Clock) -> None:
        self._book = book
        self._where = where
        self._owner = owner
        self._events = events
        self._clock = clock
        self._failing: dict[str, tuple[Millis, str]] = {}
        self._told: dict[tuple[str, str], Notice] = {}

    @property
    def rules(self) -> list[Rule]:
        return [rule for rule in self._book.rules.values() if rule.when.kind == "store_down"]

    async def run(self) -> None:
        cancel = self._events.subscribe(self._heard)
        try:
            while True:
                await self._clock.sleep(DOWN_CHECK)
                for rule in self.rules:
                    await self._check(rule)
        finally:
            cancel()

    def _heard(self, event: ev.Event) -> None:
        if isinstance(event, ev.StoreFailed):
            self._failing.setdefault(event.part, (self._clock.now(), event.error))
        elif isinstance(event, ev.StoreRecovered):
            self._failing.pop(event.part, None)

    async def _check(self, rule: Rule) -> None:
        now = self._clock.now()
        since, error = min(self._failing.values(), default=(now, ""))
        down = bool(self._failing) and now - since >= rule.for_
        for name in rule.to:
            told = self._told.get((rule.name, name))
            if down and (told is None or (rule.repeat is not None and now - told.at >= rule.repeat)):
                text = shown_text(f"{self._owner} cannot reach its store {self._where}: {error}")
                repeated = 0 if told is None else told.repeated + 1
                key = f"store-down-{hashed_id(f'{self._where} {rule.name}'.encode())}"  # of all processes
                notice = Notice("firing", key, rule.name, "store", rule.severity, text, (), since, now, repeated)
            elif told is not None and not self._failing:
                notice = told.over(now)
            else:
                continue
            if await self._send(rule, name, notice):
                if notice.status == "firing":
                    self._told[rule.name, name] = notice
                else:
                    del self._told[rule.name, name]

    async def _send(self, rule: Rule, name: str, notice: Notice) -> bool:
        channel = self._book.channels[name]
        if rule.severity != "critical" and channel.quiet_until(notice.at) > notice.at:
            return False
        try:
            await send(channel, Message(new_id(), notice.at, (notice,)))
        except NotificationFailed as error:
            log(logger, logging.WARNING, "an alert about the store was not sent", channel=name, error=error)
            return False
        return True
