"""R3, R4 and R25 at every call that a worker makes of its store: there it is lost, or told to stop.

With real kills and signals: proofs/test_r03_crash_points.py, test_r04_kills.py and test_r25_shutdown.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Callable

import pytest

from redrive import Dead, Item, Policy, Redrive, constant
from redrive.core.item import Ending, History
from redrive.core.select import Match
from redrive.core.states import State
from redrive.testing.faults import FaultyStore, Point, SimulatedCrash
from tests.support.lab import Lab
from tests.support.rig.survey import survey

pytestmark = pytest.mark.slow

COUNTED = ("lease", "settle", "extend", "reclaim")
LONG = 8_000
"""Milliseconds: its lease is extended meanwhile."""
SHARE = 5
"""One point of so many on stores that are not in memory: their verbs are killed inside by the proofs of R3."""
EXPECTED = {"plain": State.DONE, "retried": State.DONE, "parent": State.DONE, "child": State.DONE, "letter": State.DEAD}

Strike = Callable[[Redrive, FaultyStore, int], None]


class Stage:
    """Two workers, one after the other, of a queue of each kind of item. The first is struck at a point."""

    def __init__(self, lab: Lab, number: int) -> None:
        self.lab = lab
        self.number = number
        self.runs: Counter[str] = Counter()

    def name(self, kind: str) -> str:
        return f"{kind}-{self.number}"

    async def app(self) -> tuple[Redrive, FaultyStore]:
        app, faulty = await self.lab.faulty(counted=COUNTED)

        @app.handler(self.name("q"), lease="10s", concurrency=3, policy=Policy(backoff=constant("1s"), max_crashes=5))
        async def handle(item: Item) -> None:
            self.runs[item.id] += 1
            await self.lab.clock.sleep(100 if item.id != self.name("plain") else LONG)
            if item.id == self.name("retried") and not item.errors:
                raise ValueError("the first time")
            if item.id == self.name("letter"):
                raise Dead("no use")
            if item.id == self.name("parent"):
                app.follow_up(self.name("q"))

        return app, faulty

    async def play(self, strike: Strike) -> int:
        """The points that the first worker passed."""
        app, faulty = await self.app()
        for kind in ("plain", "retried", "letter", "parent"):
            await app.enqueue(self.name("q"), id=self.name(kind))
        strike(app, faulty, self.number)
        with contextlib.suppress(SimulatedCrash):
            await self.lab.drive(app.run(until_idle=True))
        return faulty.points

    async def finish(self) -> dict[str, History]:
        heir, _ = await self.app()
        await self.lab.drain(heir)
        items = (await self.lab.store.find(Match("queue", "=", self.name("q")), 100)).items
        assert len(items) == len(EXPECTED), "the follow-up is there once"
        found = {self.kind(item.id): await self.lab.history(item.id) for item in items}
        assert {kind: history.item.state for kind, history in found.items()} == EXPECTED
        return found

    def kind(self, item_id: str) -> str:
        return next((kind for kind in EXPECTED if item_id == self.name(kind)), "child")

    def explained(self, history: History, ending: Ending) -> None:
        """Every run beyond those that the item needs is on record with this ending, and charged nothing else."""
        kind, item = self.kind(history.item.id), history.item
        endings = [attempt.ending for attempt in history.attempts if attempt.ending not in (ending, Ending.DONE)]
        assert endings == {"retried": [Ending.FAILED], "letter": [Ending.DEAD]}.get(kind, [])
        # What is done at once has no attempt on record.
        assert self.runs[item.id] <= max(1, len(history.attempts))
        crashed = sum(attempt.ending is Ending.CRASHED for attempt in history.attempts)
        assert (item.errors, item.crashes) == (len(endings), crashed)


async def at_every_point(lab: Lab, strike: Strike, ending: Ending) -> int:
    """How many attempts ended so."""
    struck = 0
    # How many calls there are depends on what is settled together: a run that ends before its point is the last.
    for number in itertools.count(1, 1 if lab.kind == "memory" else SHARE):
        stage = Stage(lab, number)
        passed = await stage.play(strike)
        for history in (await stage.finish()).values():
            stage.explained(history, ending)
            struck += sum(attempt.ending is ending for attempt in history.attempts)
        if passed < number:
            break
    assert number > 15
    found = await survey(lab.store)
    assert found.miscounts == {}
    return struck


def lose(app: Redrive, faulty: FaultyStore, point: int) -> None:
    faulty.crash_at(point)


def stop(app: Redrive, faulty: FaultyStore, point: int) -> None:
    stops: list[asyncio.Task[None]] = []

    def told(_: Point) -> None:
        stops.append(asyncio.create_task(app.stop(grace=0)))

    faulty.crash_at(point, told)


async def test_r3_r4_a_worker_lost_at_any_call_loses_nothing(lab: Lab) -> None:
    assert await at_every_point(lab, lose, Ending.CRASHED) > 0


async def test_r25_a_worker_stopped_at_any_call_gives_back_uncharged(lab: Lab) -> None:
    assert await at_every_point(lab, stop, Ending.RELEASED) > 0
