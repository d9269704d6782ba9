"""The maintainer: finished work goes when its queue has kept it long enough, in bites, by one worker of the fleet."""

from __future__ import annotations

import asyncio

import pytest

from redrive import Policy, never
from redrive.core.acts import Act
from redrive.core.states import State
from redrive.core.verbs import QueueChange, Swept
from redrive.engine import maintainer as module
from redrive.engine.maintainer import BITE, REST, Maintainer
from redrive.errors import NotFound, StoreUnavailable
from redrive.events import Events, StoreFailed, StoreRecovered
from redrive.events import Swept as SweptEvent
from redrive.testing import Fault
from tests.support.lab import Lab, Seen


async def test_finished_items_go_after_their_time_and_letters_stay(lab: Lab) -> None:
    app = await lab.app()

    @app.handler("q", policy=Policy(never()))
    async def handle(*, fine: bool) -> str:
        if not fine:
            raise ValueError("no")
        return "result"

    await lab.store.configure("q", QueueChange(keep=150_000, keep_results=60_000))
    seen = Seen(app)
    done, dead = str(await app.enqueue("q", {"fine": True})), str(await app.enqueue("q", {"fine": False}))
    async with lab.working(app):
        await lab.pass_time("30s")
        assert (await lab.item(done)).result == b'"result"'
        await lab.pass_time("2m")
        item = await lab.item(done)
        assert (item.state, item.result) == (State.DONE, None)
        await lab.pass_time("2m")
        with pytest.raises(NotFound):
            await lab.item(done)
        assert (await lab.item(dead)).state is State.DEAD
    stone = await lab.store.tombstone(done)
    assert stone is not None
    assert (stone.actor, stone.reason) == ("retention", "kept as long as its queue says")
    assert [(event.pruned, event.results) for event in seen.of(SweptEvent)] == [(0, 1), (1, 0)]


async def test_without_retention_nothing_goes(lab: Lab) -> None:
    app = await lab.app()
    app.handler("q")(nothing)
    item_id = await app.enqueue("q")
    async with lab.working(app):
        await lab.pass_time("5m")
    assert (await lab.item(item_id)).state is State.DONE


async def test_discarded_letters_go_when_the_time_of_the_trash_is_over(memory_lab: Lab) -> None:
    """Also where no queue says how long it keeps what is finished."""
    lab = memory_lab
    app = await lab.app()

    @app.handler("q", policy=Policy(never()))
    async def handle() -> None:
        raise ValueError("no")

    app.queue("q", keep_trash="10m")
    kept, gone = str(await app.enqueue("q")), str(await app.enqueue("q"))
    async with lab.working(app):
        await lab.pass_time("1m")
        await app.letters.discard(gone, reason="not needed")
        await lab.pass_time("9m")
        assert (await lab.item(gone)).state is State.DEAD
        await lab.pass_time("3m")
        with pytest.raises(NotFound):
            await lab.item(gone)
        assert (await lab.item(kept)).state is State.DEAD


class Slow:
    """A store of which each bite takes a second, and which has so many."""

    def __init__(self, lab: Lab, bites: int, *, lead: bool = True) -> None:
        self.lab = lab
        self.bites = bites
        self.lead = lead
        self.cursors: list[int] = []
        self.acts: list[Act] = []
        self.trouble: list[BaseException] = []

    async def elect(self, name: str, owner: str, ttl: int) -> bool:
        assert (name, owner) == ("maintainer", "w")
        return self.lead

    async def document(self, kind: str, key: str) -> None:
        """Nothing was sealed yet, and nothing is to be sealed."""

    async def journal(self, topic: str, after: int, limit: int) -> tuple[()]:
        return ()

    async def sweep(self, limit: int, by: Act, cursor: int = 0) -> Swept:
        assert limit == BITE
        self.cursors.append(cursor)
        self.acts.append(by)
        if self.trouble:
            raise self.trouble.pop()
        await self.lab.clock.sleep(1000)
        return Swept(next=None if len(self.cursors) >= self.bites else cursor + 7)


async def test_a_round_goes_on_from_bite_to_bite_and_takes_one_part_in_twenty(memory_lab: Lab) -> None:
    lab = memory_lab
    store = Slow(lab, 5)
    begun = lab.clock.monotonic()
    await lab.drive(Maintainer("w", store, Events(), lab.clock).round())  # type: ignore[arg-type]  # what it needs
    assert store.cursors == [0, 7, 14, 21, 28]
    assert lab.clock.monotonic() - begun == 5 * 1000 + 4 * REST * 1000
    assert len({act.request_id for act in store.acts}) == 5


async def test_only_the_elected_one_sweeps(memory_lab: Lab) -> None:
    store = Slow(memory_lab, 5, lead=False)
    await memory_lab.drive(Maintainer("w", store, Events(), memory_lab.clock).round())  # type: ignore[arg-type]
    assert store.cursors == []


async def test_a_bite_that_failed_is_taken_again_under_the_same_request(memory_lab: Lab) -> None:
    store = Slow(memory_lab, 3)
    store.trouble = [StoreUnavailable("gone"), StoreUnavailable("gone")]
    events = Events()
    told: list[object] = []
    events.subscribe(told.append)
    await memory_lab.drive(Maintainer("w", store, events, memory_lab.clock).round())  # type: ignore[arg-type]
    assert store.cursors == [0, 0, 0]
    assert len({act.request_id for act in store.acts}) == 1
    assert [type(event) for event in told] == [StoreFailed, StoreRecovered]


async def test_two_workers_never_sweep_together_and_the_other_follows(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BITE", 1)
    first, second = await lab.app(), await lab.app()
    for app in (first, second):
        app.handler("q")(nothing)
    await lab.store.configure("q", QueueChange(keep=60_000))
    seen = {"first": Seen(first), "second": Seen(second)}
    await first.enqueue_many("q", [None] * 4)
    async with lab.working(second):
        async with lab.working(first):
            await lab.pass_time("3m")
        swept = {name: sum(event.pruned for event in each.of(SweptEvent)) for name, each in seen.items()}
        assert sorted(swept.values()) == [0, 4]
        leader = max(swept, key=lambda name: swept[name])
        await first.enqueue_many("q", [None] * 2)
        await lab.pass_time("4m")
    (row,) = [row for row in (await first.tally()).queues if row.queue == "q"]
    assert row.done == 0, f"nobody followed {leader}"


async def test_a_store_in_trouble_does_not_end_the_worker(lab: Lab) -> None:
    app, faulty = await lab.faulty()
    app.handler("q")(nothing)
    await lab.store.configure("q", QueueChange(keep=60_000))
    item_id = str(await app.enqueue("q"))
    faulty.fail("sweep", Fault.UNAVAILABLE, times=5)
    async with lab.working(app) as working:
        await lab.pass_time("4m")
        assert not working.done()
    with pytest.raises(NotFound):
        await lab.item(item_id)


async def nothing() -> None:
    await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop, no time
