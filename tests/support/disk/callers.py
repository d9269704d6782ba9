"""Those who meet the trouble: clients that keep what was refused, and a worker that must go on by itself."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator

from redrive import Redrive
from redrive.engine.ids import new_id
from redrive.errors import StoreError
from redrive.events import Event, Finished, WorkerStarted
from tests.support.disk.load import QUEUES, incompressible
from tests.support.disk.look import Promises
from tests.support.rig.facts import ENDED
from tests.support.rig.patience import breathe, eventually

RESUME = 10.0
"""Seconds in which everything must go on after the trouble is over."""
REFUSALS = 12
CLIENTS = 4
BIG = {"text": incompressible(random.Random(19), 20_000)}


class Callers:
    """Clients that enqueue without end. One that is refused keeps its item and tries again, as a program would."""

    def __init__(self, app: Redrive) -> None:
        self._app = app
        self._enough = False
        self.promises = Promises()
        self.refusals: Counter[str] = Counter()
        self.words: dict[str, str] = {}
        """The first refusal of each kind."""
        app.events.subscribe(self._heard)

    def _heard(self, event: Event) -> None:
        if isinstance(event, Finished) and event.state in ENDED:
            self.promises.ended[event.id] = event.state

    async def enqueue(self, number: int, item_id: str) -> None:
        self.promises.asked.add(item_id)
        while True:
            try:
                await self._app.enqueue(QUEUES[number % len(QUEUES)], BIG, id=item_id)
            except StoreError as error:
                self.refusals[type(error).__name__] += 1
                self.words.setdefault(type(error).__name__, str(error))
                await breathe()
            else:
                self.promises.accepted.add(item_id)
                return

    async def _client(self, number: int) -> None:
        while not self._enough:
            await self.enqueue(number, new_id())
            number += 1

    @contextlib.asynccontextmanager
    async def busy(self) -> AsyncIterator[None]:
        """When it is left, everything that was asked for has been accepted."""
        tasks = [asyncio.create_task(self._client(number)) for number in range(CLIENTS)]
        try:
            yield
            self._enough = True
            await asyncio.wait_for(asyncio.gather(*tasks), RESUME)
        finally:
            for task in tasks:
                task.cancel()

    async def until_accepted(self, accepted: int) -> None:
        await eventually(lambda: len(self.promises.accepted) >= accepted, limit=RESUME, what="work is accepted")

    async def until_refused(self) -> None:
        await eventually(lambda: self.refusals.total() >= REFUSALS, limit=RESUME, what="work is refused")


@contextlib.asynccontextmanager
async def working(app: Redrive) -> AsyncIterator[None]:
    """A worker that must still be there in the end, having done everything."""
    worker = await _started(app)
    yield
    await eventually(
        lambda: over(app) if not worker.done() else True, limit=RESUME, what="the worker goes on by itself"
    )
    assert not worker.done(), f"the worker has gone: {worker}"
    await app.stop(grace=1)
    await worker


async def _started(app: Redrive) -> asyncio.Task[None]:
    """Whoever starts a worker on a store that fails is told so, and starts it again."""
    at_work = asyncio.Event()
    cancel = app.events.subscribe(lambda event: at_work.set() if isinstance(event, WorkerStarted) else None)
    while True:
        worker = asyncio.create_task(app.run())
        started = asyncio.create_task(at_work.wait())
        await asyncio.wait({worker, started}, return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        if at_work.is_set():
            cancel()
            return worker
        assert isinstance(worker.exception(), StoreError), worker
        await breathe()


async def over(app: Redrive) -> bool:
    return not any(row.ready or row.leased for row in (await app.tally()).queues)
