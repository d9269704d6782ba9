"""R24: ordered and limited items under random kills; what overlapped, by what the handlers wrote down."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import defaultdict
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any

from redrive.core.acts import (
    Discard,
    Replay,
    Skip,
)
from redrive.core.item import Item, NewItem, Terms
from redrive.core.select import And, Ids, Match
from redrive.core.verbs import QueueChange
from redrive.stores.base import Store
from redrive.stores.url import store_from_url
from redrive.testing.conformance.kit import act
from tests.support.rig import records as r
from tests.support.rig.fleet import Fleet
from tests.support.rig.log import Log, now_ns, read_all
from tests.support.rig.nemesis import Nemesis
from tests.support.rig.patience import eventually
from tests.support.rig.size import Lines
from tests.support.rig.survey import Survey, survey
from tests.support.rig.verdict import judge

LEASE = 1.0
"""Seconds: so long nobody gets what a killed worker held."""
LETTERS = And((Match("state", "=", "dead"), Match("disposition", "=", "open")))
ACTS = (Replay, Replay, Discard, Skip)

Span = tuple[int, int, str]
"""From when until when a handler ran, and of which item."""


class Bound:
    """A run with real worker processes. `queue` is also the name of their handlers."""

    def __init__(self, url: str, logs: Path, queue: str, size: Lines, seed: int) -> None:
        self._url = url
        self._logs = logs
        self._queue = queue
        self._size = size
        self._dice = random.Random(seed)
        self._seed = seed
        self._numbers = itertools.count()
        self._total = 0
        self.blocked_seen = 0
        self.records: list[r.Record] = []
        self.survey = Survey()

    async def play(self, change: QueueChange, *, workers: int, limit: float) -> dict[str, dict[str, str]]:
        """The faults, by class."""
        store = await store_from_url(self._url).open()
        try:
            await store.configure(self._queue, change)
            with Fleet(self._url, self._logs, lease=LEASE, handlers="bound") as fleet:
                for _ in range(workers):
                    fleet.start()
                await self._put(store)
                nemesis = Nemesis(fleet, self._seed)
                total = self._total
                for number in range(1, self._size.kills + 1):
                    await self._until_ended(store, fleet, total * number // (self._size.kills + 2), limit)
                    await self._meanwhile(store, nemesis.strike(lambda: self._more(store), limit=limit))
                await self._until_ended(store, fleet, self._total, limit)
                await fleet.retire()
            self.survey = await survey(store)
            findings = (await store.check()).findings
        finally:
            await store.close()
        self.records = read_all(self._logs)
        faults = judge(self.records, self.survey).faults
        return faults | ({"damaged": {one.kind: one.text for one in findings}} if findings else {})

    async def _more(self, store: Store) -> None:
        """The same again, behind the first, once all of that has ended."""
        if await self._ended(store) >= self._total:
            await self._put(store)

    async def _put(self, store: Store) -> None:
        log = Log(self._logs / "producer.log")
        keys = [f"key-{number:03}" for number in range(self._size.keys) for _ in range(self._size.items)]
        self._dice.shuffle(keys)
        items = [
            NewItem(f"{key}.{next(self._numbers):06}", self._queue, b"null", terms=self._terms(key)) for key in keys
        ]
        self._total += len(items)
        for start in range(0, len(items), 500):
            chunk = items[start : start + 500]
            for item in chunk:
                log(r.Invoke(item.id, item.queue, now_ns()))
            await store.put(chunk)
            for item in chunk:
                log(r.Told(item.id, "ok", now_ns()))

    def _terms(self, key: str) -> Terms:
        return Terms(order_key=key) if self._queue == "ordered" else Terms(limit_key=key)

    async def _until_ended(self, store: Store, fleet: Fleet, count: int, limit: float) -> None:
        """Meanwhile an operator looks after the letters that keep others waiting."""

        async def ended() -> bool:
            fleet.check()
            await self._operate(store)
            return await self._ended(store) >= count

        await eventually(ended, limit=limit, what=f"{count} items ended", poll=0.02)

    async def _ended(self, store: Store) -> int:
        (row,) = [row for row in (await store.tally()).queues if row.queue == self._queue]
        return row.done + row.trash

    async def _meanwhile(self, store: Store, strike: Coroutine[Any, Any, object]) -> None:
        """Where every head is dead nobody runs, until somebody looks after the letters."""
        task = asyncio.create_task(strike)
        while not task.done():
            await self._operate(store)
            await asyncio.wait([task], timeout=0.02)
        await task

    async def _operate(self, store: Store) -> None:
        for item in (await store.find(LETTERS, 100)).items:
            follower = await self._follower(store, item)
            if follower:
                assert (await store.get(follower)).blocked_by == (item.id,), "what it waits for can be seen"
                self.blocked_seen += 1
            change = self._dice.choice(ACTS)()
            amended = await store.amend(Ids((item.id,)), change, act())
            assert amended.changed == (item.id,), amended
            if isinstance(change, Skip):
                await store.amend(Ids((item.id,)), Discard(), act())

    async def _follower(self, store: Store, letter: Item) -> str:
        key = letter.terms.order_key if letter.terms is not None else ""
        found = await store.find(And((Match("hold", "=", "order"), Match("key", "=", key))), 1)
        return found.items[0].id if found.items else ""


def spans(records: Iterable[r.Record]) -> list[Span]:
    """When each handler ran: until it ended, or its process was killed, or somebody else took the item over.

    The records must be in the order of their times.
    """
    starts: dict[tuple[str, int], r.Start] = {}
    ends: dict[tuple[str, int], int] = {}
    killed: dict[int, int] = {}
    for record in records:
        match record:
            case r.Start():
                starts[record.id, record.delivery] = record
            # Whichever comes first: who was slow and lost its lease may end long after it was taken over.
            case r.End():
                ends.setdefault((record.id, record.delivery), record.ns)
            case r.Reclaimed():
                ends.setdefault((record.id, record.delivery - 1), record.ns)
            case r.Struck(signal="kill"):
                killed[record.pid] = record.ns
            case _:
                pass
    last = max((one.ns for one in starts.values()), default=0)
    return sorted(
        (start.ns, min(ends.get(key, killed.get(start.pid, last)), killed.get(start.pid, 2**63)), start.id)
        for key, start in starts.items()
    )


def overtakes(records: Iterable[r.Record]) -> list[str]:
    """Of one order key, each must have run for the last time before the next runs for the first. Ids: `key.number`."""
    of_key: dict[str, dict[str, list[Span]]] = defaultdict(lambda: defaultdict(list))
    for span in spans(records):
        of_key[span[2].partition(".")[0]][span[2]].append(span)
    found = []
    for items in of_key.values():
        for before, after in itertools.pairwise(sorted(items)):
            if max(until for _, until, _ in items[before]) > min(since for since, _, _ in items[after]):
                found.append(f"{after} began before {before} was over")
    return found


def most_at_once(records: Iterable[r.Record]) -> tuple[int, int]:
    """Of all, and of one key."""
    moments = [moment for since, until, item in spans(records) for moment in ((since, 1, item), (until, -1, item))]
    now: dict[str, int] = defaultdict(int)
    most = of_one = 0
    for _, step, item in sorted(moments, key=lambda moment: moment[:2]):
        key = item.partition(".")[0]
        now[key] += step
        most, of_one = max(most, sum(now.values())), max(of_one, now[key])
    return most, of_one
