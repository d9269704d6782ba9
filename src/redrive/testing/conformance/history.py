"""`get`: the item with its evidence; attempts are append-only and bounded from the middle."""

from __future__ import annotations

import pytest
from msgspec import structs

from redrive.core.acts import Replay
from redrive.core.decide import Charge, ToReady
from redrive.core.item import ATTEMPTS_FIRST, ATTEMPTS_LAST, Attempt, Ending, Item
from redrive.core.select import Ids
from redrive.core.states import State
from redrive.core.verbs import Settlement
from redrive.errors import NotFound
from redrive.testing.conformance.kit import (
    DURABLE,
    QUEUE,
    TTL,
    World,
    act,
    asking,
    dead,
    ended,
    failed,
    failure,
    finished,
    next_leases,
    released,
)


async def test_get_of_the_unknown_is_not_found(world: World) -> None:
    with pytest.raises(NotFound):
        await world.store.get("nobody")


async def test_get_shows_no_attempt_for_a_first_try_success(world: World) -> None:
    done = await world.done()
    history = await world.store.get(done.id)
    assert (history.attempts, history.omitted, history.deeds) == ((), 0, ())


async def test_get_shows_the_output_of_a_first_try_success(world: World) -> None:
    item = await world.held()
    settlement = finished(item, b'"sent"')
    kept = structs.replace(ended(item, Ending.DONE), output=b"\x00\xff 250 OK\r\n")
    await world.finish(structs.replace(settlement, attempt=kept))
    history = await world.store.get(item.id)
    assert (history.item.state, history.item.result, history.attempts) == (State.DONE, b'"sent"', (kept,))
    await world.sound()


async def test_get_shows_every_attempt_in_order(world: World) -> None:
    item = await world.held()
    records = []
    for make in (failed, released, failed):
        settlement = make(item)
        records.append(settlement.attempt)
        await world.finish(settlement)
        item = await world.lease_one()
    last = finished(item)
    await world.finish(last)
    history = await world.store.get(item.id)
    assert history.attempts == (*records, last.attempt)
    assert [record.delivery for record in history.attempts] == [1, 2, 3, 4]


async def test_get_shows_each_attempt_as_it_was_given(world: World) -> None:
    """Every field, every kind of ending, with and without a failure, whatever the text and the output."""
    item = await world.held()
    given = []
    for number, ending in enumerate(Ending):
        why = failure(text=f"{ending} \x00 ☃") if number % 2 else None
        ran, note, output = 10_000 * number, f"n {ending}", bytes(range(256)) * 32 * number
        numbers = (item.deliveries, number, f"w {number}", 5 + number, ran)
        record = Attempt(*numbers, ending, why, note, f"1.{number}", output)
        given.append(record)
        settlement = Settlement(item.id, item.deliveries, ToReady(0, Charge.NOTHING), record)
        (item,) = next_leases(await world.settle(settlement, then=asking(1))).items
    assert (await world.store.get(item.id)).attempts == tuple(given)


async def test_get_keeps_the_first_20_and_last_180_attempts(world: World) -> None:
    """The first failures tell how it began, the last how it stands; the gap is counted, never silent."""
    bound, extra = ATTEMPTS_FIRST + ATTEMPTS_LAST, 7
    item = await world.held()
    item = await _fail_times(world, item, bound)
    full = await world.store.get(item.id)
    assert ([record.delivery for record in full.attempts], full.omitted) == ([*range(1, bound + 1)], 0)
    item = await _fail_times(world, item, extra)
    history = await world.store.get(item.id)
    first = [*range(1, ATTEMPTS_FIRST + 1)]
    last = [*range(bound + extra - ATTEMPTS_LAST + 1, bound + extra + 1)]
    assert [record.delivery for record in history.attempts] == first + last
    assert history.omitted == extra
    assert history.item.deliveries == bound + extra + 1


async def test_get_keeps_all_attempts_of_many_deliveries(world: World) -> None:
    """Those that ended without a record, as those of a reaper that died, take no room from those that have one."""
    bound = ATTEMPTS_FIRST + ATTEMPTS_LAST
    item = await _fail_times(world, await world.held(), 2)
    for _ in range(bound):
        (item,) = await world.store.reclaim("reaper", [QUEUE], TTL, 1, force=True)
    assert item.deliveries > bound
    await world.finish(failed(item))
    history = await world.store.get(item.id)
    assert ([record.delivery for record in history.attempts], history.omitted) == ([1, 2, item.deliveries], 0)


async def _fail_times(world: World, item: Item, times: int) -> Item:
    for _ in range(times):
        (item,) = next_leases(await world.settle(failed(item), then=asking(1))).items
    return item


async def test_get_keeps_the_history_through_replays(world: World) -> None:
    """A letter that died twice shows both lives, and who sent it back."""
    item = await world.held()
    first = dead(item)
    await world.finish(first)
    by = act("request-1")
    world.tick(3)
    await world.store.amend(Ids((item.id,)), Replay(), by)
    at = world.clock.now()
    again = await world.lease_one()
    second = dead(again, reason="rule")
    await world.finish(second)
    history = await world.store.get(item.id)
    assert history.attempts == (first.attempt, second.attempt)
    (deed,) = history.deeds
    assert (deed.at, deed.actor, deed.reason, deed.request_id) == (at, by.actor, by.reason, "request-1")
    assert history.item.letter is not None
    assert history.item.letter.reason == "rule"


async def test_get_shows_the_same_after_reopening(world: World) -> None:
    world.needs(DURABLE)
    item = await world.held()
    await world.finish(failed(item))
    item = await world.lease_one()
    await world.finish(dead(item))
    await world.store.amend(Ids((item.id,)), Replay("once"), act())
    before = await world.store.get(item.id)
    await world.store.close()
    assert await (await world.another()).get(item.id) == before


async def test_get_gives_values_that_do_not_change(world: World) -> None:
    """What was read stays as it was read: no shared references into the store."""
    item = await world.held()
    read = await world.store.get(item.id)
    await world.finish(Settlement(item.id, item.deliveries, ToReady(0, Charge.ERROR), ended(item, Ending.FAILED)))
    assert (read.item, read.attempts) == (item, ())
