"""R10 poison. An item that kills its process is dead after max_crashes, the last time alone; the others are done."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from redrive import Redrive
from redrive.core.item import Ending, History
from redrive.core.states import State
from redrive.stores.base import Store
from redrive.stores.url import store_from_url
from tests.support.rig import records as r
from tests.support.rig.deaths import DEATHS
from tests.support.rig.fleet import Fleet
from tests.support.rig.log import Log, read_all
from tests.support.rig.patience import eventually
from tests.support.rig.producer import Producer
from tests.support.rig.size import POISON, proof_size
from tests.support.rig.supervisor import Limits, Supervisor, descriptors
from tests.support.rig.survey import Survey, survey
from tests.support.rig.verdict import judge

SIZE = f"{len(DEATHS)} deaths, {POISON[proof_size()]} healthy items"

LEASE = 0.3
MAX_CRASHES = 3
LIMIT = 200.0
"""Seconds, on a machine that is busy with other things."""


async def poisoned(url: str, logs: Path, deaths: Sequence[str], healthy: int) -> Supervisor:
    """All of them in one queue, handled by one worker process at a time; judged when nothing is left."""
    store = store_from_url(url)
    app = Redrive(store, log=False)
    app.queue("mixed")
    async with app:
        await _produce(Producer(app, Log(logs / "producer.log")), deaths, healthy)
        limits = Limits()
        with Fleet(url, logs, lease=LEASE, handlers="poison", watched=limits.descriptors) as fleet:
            supervisor = Supervisor(fleet, lambda pid, why: app.report_death(pid, why=why), limits)
            await eventually(lambda: _drained(store, supervisor), limit=LIMIT, what="the queue is empty")
            await fleet.retire()
        found = await survey(store)
    records = read_all(logs)
    verdict = judge(records, found)
    assert not verdict.faults, f"{verdict.report()}\n{supervisor.deaths}"
    _check_healthy(found, healthy)
    for death in deaths:
        starts = _check_poison(found.finals[f"poison-{death}"], DEATHS[death][1], records)
        # A crash is charged at lease time: another poison may kill the process before this handler has begun.
        assert starts == MAX_CRASHES or len(deaths) > 1
    _check_restarts(supervisor)
    return supervisor


async def _produce(producer: Producer, deaths: Sequence[str], healthy: int) -> None:
    for number in range(healthy):
        await producer.enqueue("mixed", f"healthy-{number:03}")
        if number == healthy // 2:
            for death in deaths:
                await producer.enqueue("mixed", f"poison-{death}", {"death": death})


async def _drained(store: Store, supervisor: Supervisor) -> bool:
    await supervisor.look()
    return await _nothing_left(store)


async def _nothing_left(store: Store) -> bool:
    return not any(row.ready or row.leased for row in (await store.tally()).queues)


def _check_healthy(found: Survey, healthy: int) -> None:
    finals = [final for item_id, final in found.finals.items() if item_id.startswith("healthy")]
    assert len(finals) == healthy
    assert {final.item.state for final in finals} == {State.DONE}
    assert all(final.item.crashes < MAX_CRASHES for final in finals), "only a lone crash may be the last one"


def _check_poison(final: History, named: str, records: Sequence[r.Record]) -> int:
    """How often its handler began."""
    item = final.item
    assert item.letter is not None
    assert (item.state, item.letter.reason, item.crashes) == (State.DEAD, "max_crashes", MAX_CRASHES)
    assert [attempt.ending for attempt in final.attempts] == [Ending.CRASHED] * MAX_CRASHES
    assert named in item.letter.failure.text, item.letter.failure.text
    starts = [record for record in records if isinstance(record, r.Start) and record.id == item.id]
    assert (len(starts) <= MAX_CRASHES, starts[-1].attempt) == (True, MAX_CRASHES)
    assert _running_beside(starts[-1], records) == [], "the last crash was not alone"
    return len(starts)


def _running_beside(last: r.Start, records: Sequence[r.Record]) -> list[str]:
    """What else had begun in that process and not ended when it died."""
    begun = [record for record in records if isinstance(record, r.Start) and record.pid == last.pid]
    ended = {(record.id, record.delivery) for record in records if isinstance(record, r.End)}
    return [one.id for one in begun if one != last and (one.id, one.delivery) not in ended]


def _check_restarts(supervisor: Supervisor) -> None:
    """One process at a time, and each waited for its turn."""
    assert len(supervisor.starts) == len(supervisor.deaths) + 1
    for number, start in enumerate(supervisor.starts):
        assert start >= supervisor.may_start_at(number)


@pytest.mark.parametrize("death", DEATHS)
async def test_r10_poison_dies_alone_after_exactly_max_crashes(on_file: str, tmp_path: Path, death: str) -> None:
    supervisor = await poisoned(on_file, tmp_path, [death], POISON[proof_size()])
    # Whatever else was in the worker, nobody but the poison ever killed it.
    assert len(supervisor.deaths) == MAX_CRASHES
    assert all(DEATHS[death][1] in one.why for one in supervisor.deaths), supervisor.deaths


async def test_r10_eight_poisons_at_once_die_and_take_nobody_along(shared: str, tmp_path: Path) -> None:
    supervisor = await poisoned(shared, tmp_path, list(DEATHS), POISON[proof_size()])
    assert len(supervisor.deaths) <= MAX_CRASHES * len(DEATHS)


async def test_r10_a_worker_without_descriptors_goes_on(on_file: str, tmp_path: Path) -> None:
    """A handler that leaks them all and returns: whoever needs none still works, and the worker still hears."""
    store = store_from_url(on_file)
    app = Redrive(store, log=False)
    for queue in ("mixed", "leaking"):
        app.queue(queue)
    async with app:
        producer = Producer(app, Log(tmp_path / "producer.log"))
        await producer.enqueue("leaking", "leak")
        with Fleet(on_file, tmp_path, lease=LEASE, handlers="poison", watched=Limits().descriptors) as fleet:
            member = fleet.start()
            await eventually(lambda: _nothing_left(store), limit=LIMIT, what="all descriptors are taken")
            assert descriptors(member.pid) == Limits().descriptors
            for number in range(20):
                await producer.enqueue("mixed", f"healthy-{number}")
            await eventually(lambda: _nothing_left(store), limit=LIMIT, what="the worker goes on")
            assert fleet.alive == [member]
            await fleet.retire()
        found = await survey(store)
    verdict = judge(read_all(tmp_path), found)
    assert not verdict.faults, verdict.report()
    assert {final.item.state for final in found.finals.values()} == {State.DONE}
