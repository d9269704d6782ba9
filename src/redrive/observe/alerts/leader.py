"""Evaluation of alert rules: processes with the same rules elect a leader, which evaluates them every 15 seconds.

A round reads the store once and makes one write: which alerts begin, continue or end, together with their messages,
each under its id. Only then are the messages put into the outbox queues of their channels and removed from the
documents. If the leader dies in between, the next one puts them again under the same ids: each is sent, and none
becomes two items.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from redrive import events as ev
from redrive.core import codec
from redrive.core.families import family_of, is_family
from redrive.core.item import Instant, Millis
from redrive.core.verbs import DocumentWrite
from redrive.engine.registry import is_outbox
from redrive.errors import Conflict, StoreError
from redrive.observe.alerts.book import AlertBook
from redrive.observe.alerts.conditions import JUDGES, MINUTE, Finding, Reads
from redrive.observe.alerts.model import COUNTS, KIND, Rule
from redrive.observe.alerts.round import Round, items_of
from redrive.observe.logs import log
from redrive.stores.base import Store
from redrive.stores.clock import Clock

logger = logging.getLogger("redrive.alerts")

FOLLOWED: Millis = 30_000
"""After this long without a round of its leader, another process is elected."""
DONE, FAILED = frozenset({"done"}), frozenset({"failed", "crashed", "dead", "expired"})


class AttemptCounts:
    """Counters of succeeded and failed attempts of this process, by queue and minute, kept in one document."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._families: set[str] = set()
        self.by_queue: dict[str, dict[int, tuple[int, int]]] = {}
        self.changed = False

    def on_event(self, event: ev.Event) -> None:
        if isinstance(event, ev.WorkerStarted):
            self._families.update(filter(is_family, event.queues))
        elif isinstance(event, ev.Finished) and event.ending in DONE | FAILED and not is_outbox(event.queue):
            family = family_of(event.queue)
            minutes = self.by_queue.setdefault(family if family in self._families else event.queue, {})
            minute = self._clock.now() // MINUTE
            done, failed = minutes.get(minute, (0, 0))
            minutes[minute] = (done + 1, failed) if event.ending in DONE else (done, failed + 1)
            self.changed = True

    def forget(self, before: Instant) -> None:
        for queue, minutes in list(self.by_queue.items()):
            self.by_queue[queue] = {minute: each for minute, each in minutes.items() if minute * MINUTE > before}
            if not self.by_queue[queue]:
                del self.by_queue[queue]


class AlertLeader:
    """The evaluation loop of one process. `owner` is the name of its worker."""

    def __init__(self, book: AlertBook, store: Store, owner: str, *, events: ev.Events, clock: Clock) -> None:
        self._book = book
        self._store = store
        self._owner = owner
        self._events = events
        self._clock = clock
        self._counts = AttemptCounts(clock)
        self._leads = False

    async def run(self) -> None:
        """Runs until cancelled. Errors are logged, and the next round tries again."""
        windows = self._windows()
        cancel = self._events.subscribe(self._counts.on_event) if windows else lambda: None
        try:
            while True:
                await self._clock.sleep(self._book.every)
                await self._try_round()
        finally:
            cancel()
            if self._leads:
                with suppress(StoreError):
                    await self._store.elect(self._election, self._owner, 1)

    async def _try_round(self) -> None:
        try:
            await self._write_counts()
            self._leads = await self._store.elect(self._election, self._owner, self._book.every + FOLLOWED)
            if self._leads:
                await self.round()
        except Conflict:
            logger.debug("another process changed the alerts at the same time; the next round tries again")
        except StoreError as error:
            logger.warning("alert rules were not evaluated: %s", error)
        except Exception:
            logger.exception("alert rules were not evaluated")

    @property
    def _election(self) -> str:
        return f"alerts.{self._book.key}"

    def _windows(self) -> list[Millis]:
        return [rule.when.options["within"] for rule in self._book.rules.values() if rule.when.kind == "success_rate"]

    async def _write_counts(self) -> None:
        if self._counts.changed:
            self._counts.changed = False
            self._counts.forget(self._clock.now() - max(self._windows()) - MINUTE)
            body = codec.encode(self._counts.by_queue)
            await self._store.write_documents([DocumentWrite(KIND, f"{COUNTS}{self._owner}", body)])

    async def round(self) -> None:
        """Evaluate all rules now. Raises StoreError, and Conflict if another process does so at the same time."""
        tally = await self._store.tally(members=False)
        made = Round(self._book, await self._store.documents(KIND), tally.at, max(self._windows(), default=0))
        reads = Reads(self._store, tally, made.counts(), made.states)
        for rule in tuple(self._book.rules.values()):
            if rule.when.kind in JUDGES:
                made.judged(rule, await self._judge(rule, reads))
        made.resolve_gone()
        made.route()
        made.note_rules()
        if made.writes:
            await self._store.write_documents(made.writes)
        made.log()
        for key, outgoing in made.outgoing.items():
            await self._store.put(items_of(outgoing))
            await self._store.write_documents([DocumentWrite(KIND, key, None)])

    async def _judge(self, rule: Rule, reads: Reads) -> list[Finding] | None:
        """None: the rule could not be evaluated, and its alerts are unchanged."""
        try:
            return await JUDGES[rule.when.kind](reads, rule)
        except Exception as error:
            if isinstance(error, StoreError) and rule.when.kind != "custom":  # a function may ask other stores
                raise
            log(logger, logging.ERROR, "an alert rule failed", rule=rule.name, error=error)
            return None
