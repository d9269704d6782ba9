"""Processes of the rig inside the test process, on the lab's fake clock: a crash is a `SimulatedCrash` at a store call.

From then on the process makes no call and writes no record; what it held stays leased until another one finds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Collection
from pathlib import Path

from redrive import Redrive
from redrive.testing.faults import FaultyStore, Point, SimulatedCrash
from tests.support.lab import Lab
from tests.support.rig import records as r
from tests.support.rig.crash import MUTATING
from tests.support.rig.handlers import Scribe
from tests.support.rig.log import Write, now_ns
from tests.support.rig.producer import Producer
from tests.support.rig.scenario import Place, build
from tests.support.rig.survey import Survey, survey
from tests.support.rig.verdict import judge
from tests.support.rig.worker import transcriber

_pids = itertools.count(1)
Register = Callable[[Redrive, Scribe], None]


class Process(Place):
    """`history` has the records of all processes of a run."""

    def __init__(self, lab: Lab, history: list[r.Record], counted: Collection[str] = MUTATING) -> None:
        super().__init__("", Path())
        self.__dict__.update(number=next(_pids), history=history)
        self.__dict__["store"] = FaultyStore(lab.shared, counted=counted)

    number: int
    history: list[r.Record]
    store: FaultyStore

    @property
    def pid(self) -> int:
        return self.number

    def log(self, kind: str) -> Write:
        return self._write

    def records(self) -> list[r.Record]:
        return self.history

    def _write(self, record: r.Record) -> None:
        if not self.store.crashed:
            self.history.append(record)

    def crash_at(self, point: int) -> None:
        """Counted from the points that it has passed."""
        self.store.crash_at(self.store.points + point, self.die)

    def die(self, point: Point | None = None) -> None:
        self._write(r.Struck(self.pid, "kill", now_ns()))
        self.store.crashed = True
        raise SimulatedCrash(str(point))


class Client:
    """A process that enqueues."""

    def __init__(self, lab: Lab, history: list[r.Record], *queues: str) -> None:
        self._lab = lab
        self.process = Process(lab, history)
        self._app = Redrive(self.process.store, log=False, clock=lab.clock)
        for queue in queues:
            self._app.queue(queue)
        self._producer = Producer(self._app, self.process.log("producer"), lab.clock)

    async def enqueue(self, *work: tuple[str, str]) -> None:
        """(queue, id) pairs, all at once."""
        if self._app not in self._lab.apps:
            self._lab.apps.append(await self._app.open())
        await self._lab.drive(self._producer.enqueue_all(work))


class Worker:
    """A process that works until it dies or is stopped."""

    def __init__(
        self,
        lab: Lab,
        history: list[r.Record],
        register: Register | None = None,
        counted: Collection[str] = MUTATING,
    ) -> None:
        self._lab = lab
        self.process = Process(lab, history, counted)
        if register is None:
            self.app = build(self.process, self.process.store, lab.clock)
        else:
            self.app = Redrive(self.process.store, log=False, clock=lab.clock)
            self.app.events.subscribe(transcriber(self.process.log("events"), lab.clock, self.process.pid))
            register(self.app, Scribe(self.process.log("runs"), lab.clock, self.process.pid))
        self._task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        async with self.app:
            await self.app.run()

    @property
    def dead(self) -> bool:
        return self.process.store.crashed

    async def buried(self) -> None:
        """Wait until it has died."""
        await self._lab.until(lambda: self.dead)
        with contextlib.suppress(SimulatedCrash):
            await self._lab.drive(self._task)

    async def stop(self, grace: float = 0) -> None:
        await self._lab.drive(self.app.stop(grace=grace))
        await self._lab.drive(self._task)


async def judged(lab: Lab, history: list[r.Record]) -> Survey:
    """What is in the store at the end, when the checker has nothing to say against it."""
    found = await survey(lab.store, [record.id for record in history if isinstance(record, r.Invoke)])
    verdict = judge(history, found)
    assert not verdict.faults, verdict.report()
    assert (await lab.store.check()).findings == ()
    return found
