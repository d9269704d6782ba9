"""R21: more is offered than can be taken. What is too much is refused aloud, and whatever was accepted is done."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from redrive import Item
from redrive.core.acts import Discard
from redrive.core.decide import Charge, ToDead
from redrive.core.item import Ending, NewItem
from redrive.core.select import And, Ids, Match
from redrive.core.states import State
from redrive.core.verbs import (
    QueueChange,
    Settlement,
    Verdict,
)
from redrive.errors import QueueFull
from redrive.stores.base import Store
from redrive.testing.conformance.kit import act, asking, ended, failure
from tests.support.lab import Lab

CAPACITY = 20
SLOTS = 5
TAKES = 50
"""Milliseconds that each item takes: a hundred a second with all slots."""
PRODUCERS = 3

numbers = itertools.count()


class Offers:
    """Producers that offer three times what can be taken, and remember what they were told."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.accepted: set[str] = set()
        self.refused = 0
        self.told: set[tuple[str, int, int]] = set()

    async def offer(self) -> None:
        item = NewItem(f"item-{next(numbers):07}", "busy", b"null")
        try:
            result = await self._store.put([item])
        except QueueFull as error:
            self.refused += 1  # a count: ids kept here would be memory that grows
            self.told.add((error.queue, error.fill, error.capacity))
        else:
            assert result.added == (item.id,)
            self.accepted.add(item.id)


async def fill(store: Store) -> int:
    (row,) = [row for row in (await store.tally()).queues if row.queue == "busy"]
    return row.ready + row.held + row.parked + row.leased


async def too_much(lab: Lab, count: int) -> None:
    app = await lab.app()
    running: set[str] = set()
    most = 0
    overfull: list[int] = []

    @app.handler("busy", concurrency=SLOTS)
    async def handle(item: Item) -> None:
        nonlocal most
        running.add(item.id)
        most = max(most, len(running))
        await lab.clock.sleep(TAKES)
        running.discard(item.id)

    await lab.store.configure("busy", QueueChange(capacity=CAPACITY))
    offers = Offers(lab.shared)
    pause = PRODUCERS * TAKES // (3 * SLOTS)

    async def produce() -> None:
        for _ in range(count // PRODUCERS):
            await offers.offer()
            overfull.append(await fill(lab.shared))
            await lab.clock.sleep(pause)

    async with lab.working(app):
        await lab.drive(asyncio.gather(*(produce() for _ in range(PRODUCERS))), limit="10d")
        await lab.until(lambda: not running)
    await lab.drain(app)
    assert len(offers.accepted) + offers.refused == count // PRODUCERS * PRODUCERS
    assert max(overfull) <= CAPACITY
    # A third is taken, and what the queue holds; the rest was refused.
    assert offers.refused >= len(offers.accepted)
    assert most == SLOTS
    await settled_as_told(lab.store, offers)


async def settled_as_told(store: Store, offers: Offers) -> None:
    """Nothing accepted is missing, nothing refused is there, and nobody was refused while there was room."""
    assert offers.told == {("busy", CAPACITY, CAPACITY)}
    (row,) = [row for row in (await store.tally()).queues if row.queue == "busy"]
    assert (row.done, row.ready, row.leased, row.open) == (len(offers.accepted), 0, 0, 0)
    found: set[str] = set()
    cursor = None
    while True:
        page = await store.ids(Match("queue", "=", "busy"), cursor=cursor)
        found.update(page.ids)
        cursor = page.next
        if cursor is None:
            break
    assert found == offers.accepted


@pytest.mark.slow
async def test_r21_excess_is_refused_and_the_rest_is_done(lab: Lab) -> None:
    await too_much(lab, 300)


# --- routes -----------------------------------------------------------------------------------------------------------

ROOM = 5
LATER = 60_000


async def test_r21_a_full_route_keeps_items_live_and_evicts_nothing(lab: Lab) -> None:
    """Twenty want to die to a route with room for five. Each becomes a letter when there is room, and none before."""
    store = lab.store
    await store.configure_route("poison", ROOM)
    everybody = {f"item-{number}" for number in range(20)}
    await store.put([NewItem(item_id, "q", b"payload") for item_id in sorted(everybody)])
    kept = await _die(store)
    assert kept == 20 - ROOM
    buried: set[str] = set()
    while len(buried) < 20:
        letters = (await store.find(And((Match("state", "=", "dead"), Match("disposition", "=", "open"))))).items
        assert len(letters) <= ROOM
        assert {row.route: row.open for row in (await store.tally()).routes} == {"poison": len(letters)}
        live = everybody - buried - {item.id for item in letters}
        assert {(await lab.item(item_id)).state for item_id in live} <= {State.READY}
        assert (await store.lease(asking(1, queue="q"))).items == (), "who found no room backs off"
        first = letters[0].id
        await store.amend(Ids((first,)), Discard(), act())
        buried.add(first)
        lab.clock.advance(LATER)
        await _die(store)
    (row,) = (await store.tally()).queues
    assert (row.trash, row.open, row.ready, row.leased) == (20, 0, 0, 0)
    assert (await store.check()).findings == ()


async def _die(store: Store) -> int:
    """All that is due, in three settles at once. How many were kept for want of room."""
    items = (await store.lease(asking(20, queue="q"))).items
    why = failure()
    settlements = [
        Settlement(
            item.id,
            item.deliveries,
            ToDead("max_attempts", Charge.ERROR, why, "poison", LATER),
            ended(item, Ending.FAILED, why),
        )
        for item in items
    ]
    settled = await asyncio.gather(*(store.settle(settlements[part::3]) for part in range(3)))
    verdicts = [answer.verdict for one in settled for answer in one.answers]
    assert set(verdicts) <= {Verdict.APPLIED, Verdict.KEPT}
    return verdicts.count(Verdict.KEPT)
