"""R8 zombie ack. A process that was stopped for three leases wakes up, and each of its stale writes is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from redrive import Redrive
from redrive.core.item import Ending
from redrive.core.states import State
from redrive.stores.url import store_from_url
from tests.promises.test_r08_zombies import LATE
from tests.support.rig import records as r
from tests.support.rig.fleet import Fleet, Member
from tests.support.rig.log import Log, now_ns, read_all
from tests.support.rig.patience import eventually
from tests.support.rig.producer import Producer
from tests.support.rig.size import ZOMBIES, proof_size
from tests.support.rig.survey import survey
from tests.support.rig.verdict import judge

SIZE = f"{ZOMBIES[proof_size()]} rounds of {len(LATE)} writes"

LIMIT = 60.0
"""Seconds for what comes at once, on a machine that is busy with other things."""
SPARE = 10
"""Rounds that may be played once more because they proved nothing."""


# -- with a stopped process ------------------------------------------------------------------------------------------


class Stopped:
    """One store, one worker that is stopped in the middle, one that takes over."""

    LEASE = 0.3

    def __init__(self, app: Redrive, fleet: Fleet, producer: Producer, logs: Path, number: int) -> None:
        self.app = app
        self.fleet = fleet
        self.producer = producer
        self.ids = {mode: f"{mode}-{number}" for mode in LATE}
        self._logs = logs
        self._go = logs / f"go-{number}"

    async def play(self, first: Member, second: Member) -> bool:
        """`first` gets all items (the other is stopped), and is stopped in them for over three leases.

        False: some of its leases had run out before that, as happens where the whole machine stands still for a
        while. What it held it no longer held, or under another number, so nothing is proved either way.
        """
        self.fleet.stop(second)
        await asyncio.gather(*(self._enqueue(mode, item_id) for mode, item_id in self.ids.items()))
        await eventually(lambda: self._begun(first), limit=LIMIT, what="the zombie has begun all items")
        self.fleet.stop(first)
        stopped = now_ns()
        is_sound = await self._held()
        # It hears this when it is let go, before its keeper can hear anything.
        self._go.touch()
        self.fleet.wake(second)
        await eventually(self._all_done, limit=LIMIT, what="another worker finishes them")
        await eventually(lambda: now_ns() - stopped > 3.3e9 * self.LEASE, limit=LIMIT, what="three leases pass")
        self.fleet.wake(first)
        if is_sound:
            await eventually(self._spoken, limit=LIMIT, what="all are refused")
        return is_sound

    async def _enqueue(self, mode: str, item_id: str) -> None:
        # `extend` is never told to go on: its keeper hears that the lease is lost.
        await self.producer.enqueue("late", item_id, {"mode": mode, "go": "" if mode == "extend" else str(self._go)})

    def _begun(self, member: Member) -> bool:
        member.look()
        return {*self.ids.values()} <= {run.id for run in member.started}

    async def _held(self) -> bool:
        """Nobody else runs: whatever is leased for the first time is leased by the zombie."""
        items = [await self.app.get(item_id) for item_id in self.ids.values()]
        return all((item.state, item.deliveries) == (State.LEASED, 1) for item in items)

    async def _all_done(self) -> bool:
        return all([(await self.app.get(item_id)).state is State.DONE for item_id in self.ids.values()])

    def _spoken(self) -> bool:
        told = [record for record in read_all(self._logs) if isinstance(record, r.Refused | r.Lost)]
        return {(item_id, 1) for item_id in self.ids.values()} <= {(one.id, one.delivery) for one in told}


async def zombies(url: str, logs: Path, rounds: int) -> None:
    store = store_from_url(url)
    app = Redrive(store, log=False)
    app.queue("late")
    sound: list[int] = []
    async with app:
        with Fleet(url, logs, lease=Stopped.LEASE, handlers="zombie") as fleet:
            first, second = fleet.start(), fleet.start()
            producer = Producer(app, Log(logs / "producer.log"))
            await eventually(lambda: first.ready and second.ready, limit=LIMIT, what="both workers run")
            for number in range(rounds + SPARE):
                if await Stopped(app, fleet, producer, logs, number).play(first, second):
                    sound.append(number)
                if len(sound) == rounds:
                    break
                first, second = second, first
            await fleet.retire()
        found = await survey(store)
    assert len(sound) == rounds, "the machine stood still in too many rounds: this proves too little"
    records = read_all(logs)
    verdict = judge(records, found)
    assert not verdict.faults, verdict.report()
    refused = {(record.id, record.delivery) for record in records if isinstance(record, r.Refused)}
    lost = {(record.id, record.delivery) for record in records if isinstance(record, r.Lost)}
    for number in sound:
        assert {(f"{mode}-{number}", 1) for mode in LATE} <= refused | lost
        assert (f"extend-{number}", 1) in lost
        assert {(f"{mode}-{number}", 1) for mode in ("done", "fail", "dead", "snooze")} & refused, (
            "no late word was said"
        )
        for mode in LATE:
            attempts = found.finals[f"{mode}-{number}"].attempts
            assert [attempt.ending for attempt in attempts] == [Ending.CRASHED, Ending.DONE]


@pytest.mark.timeout(1200)
async def test_r8_a_stopped_process_writes_nothing_when_it_wakes(shared: str, tmp_path: Path) -> None:
    await zombies(shared, tmp_path, ZOMBIES[proof_size()])
