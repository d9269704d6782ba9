"""R10, first part: items that kill their process, each in its way, beside healthy neighbours. Real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from redrive import Redrive
from redrive.core.item import Ending
from redrive.core.states import State
from redrive.stores.base import Store
from redrive.stores.sqlite import SqliteStore
from tests.support.rig.fleet import Fleet
from tests.support.rig.handlers import DEATHS
from tests.support.rig.log import Log, read_all
from tests.support.rig.patience import eventually
from tests.support.rig.producer import Producer
from tests.support.rig.survey import survey
from tests.support.rig.verdict import judge

LEASE = 0.3
MAX_CRASHES = 3


async def poisoned(folder: Path, deaths: list[str], healthy: int) -> None:
    database, logs = folder / "rig.db", folder / "logs"
    store = SqliteStore(database)
    app = Redrive(store, log=False)
    app.queue("mixed")
    async with app:
        producer = Producer(app, Log(_made(logs) / "producer.log"))
        for number in range(healthy):
            await producer.enqueue("mixed", f"healthy-{number:03}")
            if number == healthy // 2:
                for death in deaths:
                    await producer.enqueue("mixed", f"poison-{death}", {"death": death})
        with Fleet(database, logs, lease=LEASE, handlers="poison") as fleet:
            await eventually(lambda: _drained(store, fleet), limit=60, what="the queue is empty")
            await fleet.retire()
        found = await survey(store)
    verdict = judge(read_all(logs), found)
    assert not verdict.faults, verdict.report()
    for item_id, final in found.finals.items():
        if item_id.startswith("healthy"):
            assert final.item.state is State.DONE, item_id
            assert final.item.crashes < MAX_CRASHES, "only a lone crash may be the last one"
        else:
            assert final.item.letter is not None
            assert (final.item.letter.reason, final.item.crashes) == ("max_crashes", MAX_CRASHES)
            assert [attempt.ending for attempt in final.attempts] == [Ending.CRASHED] * MAX_CRASHES


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


async def _drained(store: Store, fleet: Fleet) -> bool:
    """As a supervisor does: one worker, started again whenever it has died."""
    if not fleet.alive:
        fleet.start()
    return not any(row.ready or row.leased for row in (await store.tally()).queues)


@pytest.mark.slow
@pytest.mark.timeout(90)
async def test_r10_poison_dies_alone_after_exactly_max_crashes_smoke(tmp_path: Path) -> None:
    await poisoned(tmp_path, ["kill"], healthy=40)


@pytest.mark.prove
@pytest.mark.timeout(300)
async def test_r10_poison_dies_alone_after_exactly_max_crashes(tmp_path: Path) -> None:
    await poisoned(tmp_path, list(DEATHS), healthy=100)
