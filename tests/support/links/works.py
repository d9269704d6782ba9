"""A fleet at work on a server store, clients that enqueue meanwhile, and a look at what came of it all."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from redrive import Redrive
from redrive.errors import StoreError
from redrive.stores.base import Store
from redrive.stores.url import store_from_url
from tests.support.rig.fleet import Fleet
from tests.support.rig.handlers import MIX
from tests.support.rig.log import Log, read_all
from tests.support.rig.opening import opened
from tests.support.rig.patience import eventually
from tests.support.rig.producer import Producer
from tests.support.rig.survey import Survey, survey
from tests.support.rig.verdict import Verdict, judge

SOME = 20
"""Handlers that start before the next blow: so that it falls on work."""
CLIENTS = 4
PAUSE = 0.04
"""Seconds between two enqueues of a client: enough work for the fleet, and not too much to drain."""
TICKS = os.sysconf("SC_CLK_TCK")
START_LIMIT = 60.0


@dataclass(frozen=True)
class Setting:
    """`direct` goes to the server; `url` as workers and clients go, perhaps through a link."""

    folder: Path
    direct: str
    url: str
    workers: int
    lease: float
    limit: float
    seed: int = 6


@dataclass
class Works:
    store: Store
    fleet: Fleet
    producer: Producer
    setting: Setting
    _number: int = 0

    def __post_init__(self) -> None:
        self._dice = random.Random(self.setting.seed)

    @property
    def logs(self) -> Path:
        return self.setting.folder / "logs"

    def started(self) -> bool:
        self.fleet.check()
        return all(member.ready for member in self.fleet.members)

    def runs(self) -> int:
        """Handlers started so far, as their own logs tell."""
        for member in self.fleet.members:
            member.look()
        return sum(len(member.started) for member in self.fleet.members)

    async def progress(self, runs: int, *, limit: float, what: str) -> float:
        """Until so many more handlers have started. The seconds it took."""
        began, target = time.monotonic(), self.runs() + runs

        def enough() -> bool:
            self.fleet.check()
            return self.runs() >= target

        await eventually(enough, limit=limit, what=what)
        return time.monotonic() - began

    async def enqueue(self, queue: str) -> None:
        self._number += 1
        await self.producer.enqueue(queue, f"{queue}-{self._number:06}")

    async def backlog(self, items: int) -> None:
        """Slow work, for both kinds of handlers."""
        self._number += items
        queues = ("slow", "slow-sync")
        await self.producer.enqueue_all((queues[number % 2], f"slow-b{number:06}") for number in range(items))

    @contextlib.asynccontextmanager
    async def clients(self) -> AsyncIterator[None]:
        """Who enqueue as long as it lasts, whatever they are told."""
        over = asyncio.Event()

        async def client() -> None:
            while not over.is_set():
                await self.enqueue(self._dice.choice(MIX))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(over.wait(), PAUSE)

        tasks = [asyncio.create_task(client()) for _ in range(CLIENTS)]
        try:
            yield
        finally:
            over.set()
            await asyncio.gather(*tasks)

    async def drained(self) -> None:
        async def nothing_left() -> bool:
            self.fleet.check()
            try:
                rows = (await self.store.tally()).queues
            except StoreError:
                return False
            return not any(row.ready or row.leased for row in rows)

        await eventually(nothing_left, limit=self.setting.limit, what="the queues are empty", poll=0.05)

    async def verdict(self) -> tuple[Verdict, Survey]:
        found = await survey(self.store)
        return judge(read_all(self.logs), found), found


@contextlib.asynccontextmanager
async def at_work(setting: Setting) -> AsyncIterator[Works]:
    """Workers that have started; they must leave in good order in the end."""
    logs = setting.folder / "logs"
    store = await store_from_url(setting.direct).open()

    def make() -> Redrive:
        made = Redrive(setting.url, log=False)
        for queue in (*MIX, "leaf"):
            made.queue(queue)
        return made

    try:
        async with opened(make) as app:
            with Fleet(setting.url, logs, lease=setting.lease, handlers="mix") as fleet:
                for _ in range(setting.workers):
                    fleet.start()
                works = Works(store, fleet, Producer(app, Log(logs / "producer.log")), setting)
                await eventually(works.started, limit=START_LIMIT, what="workers have started")
                yield works
                await fleet.retire()
    finally:
        await store.close()


def cpu_seconds(pid: int) -> float:
    """What a process has used so far."""
    facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(facts[11]) + int(facts[12])) / TICKS


async def spend(seconds: float) -> None:
    """Real time, while everybody else goes on."""
    end = time.monotonic() + seconds
    await eventually(lambda: time.monotonic() >= end, limit=seconds + START_LIMIT, what="time passes")
