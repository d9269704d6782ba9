"""The eight promises of the README, each by its name, as a user of the app sees them.

What the stores promise below is in tests/stores/test_promises.py; the same under random kills, stopped processes and a
kill at every step is in proofs (R3, R4, R8, R10).
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from redrive import Dead, Item, Policy, Redrive, constant, never
from redrive.core import codec
from redrive.core.item import Ending
from redrive.core.states import TERMINAL, Disposition, State
from redrive.errors import RedriveError, StoreError, StoreUnavailable
from redrive.events import Finished, Reclaimed, SettleRefused, Started
from redrive.stores.sqlite import SqliteStore
from redrive.stores.url import store_from_url
from redrive.testing.faults import FaultyStore, SimulatedCrash
from tests.support.lab import Lab, Seen, lab
from tests.support.stores import EACH, StoreUrl

__all__ = ["lab"]


@pytest.mark.parametrize("kind", [kind for kind in EACH if kind != "memory"])
async def test_p1_what_enqueue_returned_survives_a_crash(kind: str, store_url: StoreUrl) -> None:
    """The process dies in its next call, and the store is opened again. With a real kill: proofs/test_p1_kill.py."""
    url = store_url(kind)
    faulty = FaultyStore(store_from_url(url), counted=("put",))
    app = Redrive(faulty, log=False)
    app.queue("q")
    async with app:
        promised = {await app.enqueue("q", {"number": number}): number for number in range(10)}
        faulty.crash_at(faulty.points + 1)
        with pytest.raises(SimulatedCrash):
            await app.enqueue("q", {"number": 10})
        faulty.crashed = False  # so that its files and connections are closed
    async with Redrive(url, log=False) as again:
        found = {item.id: codec.load_payload(item.payload) for item in await again.find("queue:q")}
    assert found == {item_id: {"number": number} for item_id, number in promised.items()}


async def test_p1_the_level_in_force_is_shown() -> None:
    async with Redrive("memory:", log=False) as app:
        assert app.info().durability == "none"


async def test_p2_every_accepted_item_ends_in_exactly_one_state(lab: Lab) -> None:
    app = await lab.app()

    @app.handler("q", policy=Policy(backoff=constant("1s"), max_attempts=2), lease="10s")
    async def handle(kind: str, item: Item) -> None:
        if kind == "dead" or (kind == "retry" and not item.errors):
            raise ValueError("no")
        if kind == "give up":
            raise Dead("useless")

    seen = Seen(app)
    kinds = ("ok", "retry", "dead", "give up", "cancel", "lost")
    ids = {kind: await app.enqueue("q", {"kind": kind}, delay="1m" if kind == "cancel" else None) for kind in kinds}
    await app.cancel(ids["cancel"], reason="not needed")
    await lab.ghost("q", ttl="10s")
    await lab.drain(app)
    states = {kind: (await lab.item(item_id)).state for kind, item_id in ids.items()}
    done, dead = State.DONE, State.DEAD
    assert states == dict(zip(kinds, (done, done, dead, dead, State.CANCELLED, done), strict=True))
    for item_id in ids.values():
        ends = [event for event in seen.of(Finished) if event.id == item_id and State(event.state) in TERMINAL]
        assert len(ends) == (item_id != ids["cancel"])
    (row,) = (await app.tally()).queues
    assert (row.done, row.open, row.cancelled, row.ready, row.leased) == (3, 2, 1, 0, 0)


async def test_p3_every_extra_run_is_explained_by_a_record(lab: Lab) -> None:
    app = await lab.app()
    runs: list[int] = []

    @app.handler("q", policy=Policy(backoff=constant("1s")), lease="10s")
    async def handle(item: Item) -> None:
        runs.append(item.deliveries)
        if len(runs) == 1:
            raise ConnectionError("busy")

    seen = Seen(app)
    item_id = await app.enqueue("q")
    await lab.ghost("q", ttl="1s")
    await lab.drain(app)
    found = await lab.history(item_id)
    assert len(runs) == 2
    assert [attempt.ending for attempt in found.attempts] == [Ending.CRASHED, Ending.FAILED, Ending.DONE]
    assert [event.lost_by for event in seen.of(Reclaimed)] == ["ghost"]
    assert [event.ending for event in seen.of(Finished)] == ["crashed", "failed", "done"]


async def test_p4_only_the_current_holders_result_counts(lab: Lab) -> None:
    (slow, cut), quick = await lab.faulty(), await lab.app()
    gate = asyncio.Event()

    @slow.handler("q", lease="10s", concurrency=1)
    async def late() -> str:
        await gate.wait()
        return "late"

    @quick.handler("q", lease="10s", policy=Policy(backoff=constant("1s")))
    async def now() -> str:
        return "in time"

    seen = Seen(slow)
    item_id = await slow.enqueue("q")
    async with lab.working(slow):
        await lab.until(lambda: bool(seen.of(Started)))
        cut.fail("extend")
        cut.fail("reclaim")
        await lab.drain(quick)
        gate.set()
        await lab.until(lambda: bool(seen.of(SettleRefused)))
    assert await quick.wait(item_id) == "in time"


async def test_p5_a_crash_is_counted_at_lease_time_and_costs_no_neighbour_its_work(lab: Lab) -> None:
    app = await lab.app()

    @app.handler("q", policy=Policy(backoff=constant("1s"), max_crashes=2), lease="10s", concurrency=10)
    async def handle() -> None:
        return

    ids = [str(each) for each in await app.enqueue_many("q", [None] * 10)]
    leased = await lab.ghost("q", ttl="1s")
    assert [item.attempt for item in leased] == [1] * 10, "before anything ran"
    await lab.drain(app)
    for item_id in ids:
        item = await lab.item(item_id)
        assert (item.state, item.crashes, item.attempt) == (State.DONE, 1, 2)


async def test_p6_a_letter_changes_only_by_an_audited_act_and_a_replay_happens_once(lab: Lab) -> None:
    app = await lab.app()
    broken = [True]

    @app.handler("q", policy=Policy(backoff=never()))
    async def handle() -> str:
        if broken:
            raise ValueError("no")
        return "done"

    item_id = await app.enqueue("q")
    await lab.drain(app)
    before = await lab.history(item_id)
    lab.clock.advance("3650d")
    async with lab.working(app):
        await lab.pass_time("1m")
        assert await app.prune("queue:q", reason="tidy up") == ()
    assert await lab.history(item_id) == before
    assert before.item.letter is not None
    assert before.item.letter.disposition is Disposition.OPEN
    broken.clear()
    for _ in range(3):
        await app.letters.replay(item_id, reason="fixed", request_id="request-1")
        await lab.drain(app)
    after = await lab.history(item_id)
    assert (after.item.id, after.item.state, after.item.replays) == (item_id, State.DONE, 1)
    assert after.attempts[:1] == before.attempts
    assert [(deed.change, deed.reason, deed.actor) for deed in after.deeds] == [("replay", "fixed", "lab")]
    audited = await lab.store.journal("audit")
    assert sum(entry.request_id == "request-1" for entry in audited) >= 1


async def test_p7_a_retry_never_runs_before_it_is_due_by_the_stores_clock(lab: Lab) -> None:
    apps = [await lab.app(), await lab.app()]
    runs: list[int] = []

    async def handle(item: Item) -> None:
        runs.append(lab.clock.now())
        if item.errors < 4:
            raise ValueError("no")

    for app in apps:
        app.handler("q", policy=Policy(backoff=constant("7s")))(handle)
    item_id = await apps[0].enqueue("q")
    due: list[int] = []
    # A worker of its own for every attempt: the due time is the store's, not a timer of the one that failed.
    for number in range(5):
        async with lab.working(apps[number % 2]):
            await lab.until(lambda: len(runs) > number)  # noqa: B023 - awaited here
            await lab.quiet()
        due.append((await lab.item(item_id)).due_at)
    assert [run >= at for run, at in zip(runs[1:], due, strict=False)] == [True] * 4
    assert [after - before >= 7_000 for before, after in pairwise(runs)] == [True] * 4


async def test_p8_a_store_that_is_not_there_is_refused_and_nothing_is_kept_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    app = Redrive(f"sqlite:///{tmp_path}/file/redrive.db", log=False)
    app.queue("q")
    with pytest.raises(StoreError):
        await app.open()
    with pytest.raises(RedriveError):
        await app.enqueue("q")


async def test_p8_while_the_store_is_gone_enqueue_refuses_and_remembers_nothing(lab: Lab) -> None:
    app, faulty = await lab.faulty()
    app.queue("q")
    faulty.fail("put")
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await app.enqueue("q")
    faulty.heal()
    assert not any(row.ready for row in (await app.tally()).queues)


async def test_p8_a_store_that_is_closed_refuses(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "promise.db")
    app = Redrive(store, log=False)
    app.queue("q")
    async with app:
        await store.close()
        with pytest.raises(StoreUnavailable):
            await app.enqueue("q")
