"""`put`: all or none, once per id, byte for byte, and never before it is due."""

from __future__ import annotations

import asyncio

import pytest

from redrive.core.item import Dedupe, NewItem, Priority, Terms
from redrive.core.select import EVERYTHING
from redrive.core.states import State
from redrive.core.verbs import PutResult
from redrive.errors import ConfigError
from redrive.testing.conformance.kit import (
    DURABLE,
    QUEUE,
    SECOND,
    TTL,
    World,
    asking,
    dead,
    failed,
    finished,
    ids,
    new,
    news,
    next_leases,
)

HOSTILE = (
    b"",
    b"\x00",
    b"\xff\xfe\x00\x80 not utf-8",
    b"\xef\xbb\xbf{}",
    b'{"n": 12345678901234567, "e": [], "f": 1e999, "d": 1, "d": 2}',
    b'"\\ud800"',
    b'{ "b":1,\r\n "a" : 1.10 }',
    "'; DROP TABLE items; -- ☃ \u202e".encode(),
    b"[" * 5_000,
    bytes(range(256)) * 1_024,
)

TERMS = (
    Terms(policy="gentle ☃"),
    Terms(on_dead="die"),
    Terms("order", "limit", Dedupe("key", "store", 60_000), (), "die", "gentle"),
)


async def test_put_makes_ready_items(world: World) -> None:
    made = new(b"payload", delay=SECOND)
    assert await world.store.put([made]) == PutResult(added=(made.id,))
    history = await world.store.get(made.id)
    now = world.clock.now()
    item = history.item
    assert (item.id, item.queue, item.payload, item.state) == (made.id, QUEUE, b"payload", State.READY)
    assert (item.enqueued_at, item.renewed_at, item.due_at) == (now, now, now + SECOND)
    assert (item.deliveries, item.attempt, item.errors, item.crashes, item.replays) == (0, 0, 0, 0, 0)
    assert (item.last_chance, item.alone, item.worker, item.leased_at, item.lease_until) == (
        False,
        False,
        None,
        None,
        None,
    )
    assert (item.ended_at, item.result, item.letter) == (None, None, None)
    assert (history.attempts, history.omitted, history.deeds) == ((), 0, ())


async def test_put_of_nothing_is_nothing(world: World) -> None:
    assert await world.store.put([]) == PutResult()


async def test_put_numbers_the_items_in_their_order(world: World) -> None:
    made = news(5)
    await world.put(*made)
    more = new()
    await world.put(more)
    order = [(await world.item(it.id)).seq for it in (*made, more)]
    assert order == sorted(set(order))


async def test_put_again_is_already_there(world: World) -> None:
    made = new(b"first")
    await world.put(made)
    world.tick(SECOND)
    again = new(b"second", delay=9 * SECOND, item_id=made.id)
    before = await world.store.get(made.id)
    assert await world.store.put([again]) == PutResult(already=(made.id,))
    assert await world.store.get(made.id) == before


async def test_put_adds_the_new_beside_the_known(world: World) -> None:
    known, first, last = news(3)
    await world.put(known)
    assert await world.store.put([first, known, last]) == PutResult((first.id, last.id), (known.id,))
    assert (await world.count()).ready == 3


async def test_put_of_one_id_twice_in_a_call_adds_it_once(world: World) -> None:
    made = new(b"first")
    result = await world.store.put([made, new(b"second", item_id=made.id)])
    assert result == PutResult((made.id,), (made.id,))
    assert (await world.item(made.id)).payload == b"first"
    assert (await world.count()).ready == 1


async def test_put_again_leaves_an_item_that_moved_on(world: World) -> None:
    """A repeat after an unknown outcome may come when the item is long done, dead or held."""
    done, letter, running = await world.done(), await world.letter(), await world.held()
    for item in (done, letter, running):
        before = await world.store.get(item.id)
        assert (await world.store.put([new(b"other", item_id=item.id)])).already == (item.id,)
        assert await world.store.get(item.id) == before
    assert await world.lease(10) == ()


@pytest.mark.parametrize("bad", [NewItem("", QUEUE, b""), NewItem("bad", "", b""), NewItem("bad", QUEUE, b"", -1)])
async def test_put_of_a_bad_item_refuses_all(world: World, bad: NewItem) -> None:
    good = new()
    with pytest.raises(ConfigError):
        await world.store.put([good, bad])
    assert await world.history(good.id) is None
    item = await world.held()
    with pytest.raises(ConfigError):
        await world.settle(finished(item, follow_ups=[good, bad]))
    assert await world.item(item.id) == item
    assert await world.history(good.id) is None


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (NewItem("bad", QUEUE, b"", 0, -1), "at"),
        (new(terms=Terms(order_key="\0")), "order_key"),
        (new(terms=Terms(limit_key="\0")), "limit_key"),
        (new(terms=Terms(policy="\0")), "policy"),
        (new(terms=Terms(after=("\0",))), "after"),
    ],
)
async def test_put_of_terms_that_cannot_be_kept_refuses_all(world: World, bad: NewItem, field: str) -> None:
    good = new()
    with pytest.raises(ConfigError) as caught:
        await world.store.put([good, bad])
    assert caught.value.field == field
    assert await world.history(good.id) is None
    item = await world.held()
    with pytest.raises(ConfigError):
        await world.settle(finished(item, follow_ups=[good, bad]))
    assert await world.item(item.id) == item


async def test_put_keeps_every_byte(world: World) -> None:
    made = [new(payload) for payload in HOSTILE]
    await world.put(*made)
    leased = await world.lease(len(made))
    assert {item.id: item.payload for item in leased} == {item.id: item.payload for item in made}
    reader = await world.another()
    for item in made:
        assert (await reader.get(item.id)).item.payload == item.payload


async def test_put_takes_any_text_as_id_and_queue(world: World) -> None:
    names = ["a b", "q'uote\"", "☃/…", "{tag}:*?", "% _", "UPPER", "upper", "x" * 200]
    for name in names:
        await world.put(new(queue=name, item_id=f"id {name}"))
    for name in names:
        (item,) = await world.lease(5, queue=name)
        assert (item.id, item.queue) == (f"id {name}", name)


async def test_put_declares_its_queues(world: World) -> None:
    assert (await world.store.tally()).queues == ()
    await world.put(new(queue="b"), new(queue="a"))
    assert [row.queue for row in (await world.store.tally()).queues] == ["a", "b"]


async def test_put_is_all_or_none_to_those_who_look(world: World) -> None:
    """Another handle that counts while batches come in never sees part of one."""
    reader = await world.another()
    await world.put(*news(7))
    writing = asyncio.ensure_future(_put_batches(world))
    seen = []
    while not writing.done():
        (row,) = (await reader.tally()).queues
        page = await reader.find(EVERYTHING, limit=1_000)
        seen.append((row.ready, len(page.items)))
    await writing
    assert seen
    assert [pair for pair in seen if pair[0] % 7 or pair[1] % 7] == []
    assert (await world.count()).ready == 77


async def _put_batches(world: World) -> None:
    for _ in range(10):
        await world.put(*news(7))


async def test_put_is_seen_through_every_handle(world: World) -> None:
    other = await world.another()
    made = new()
    await world.put(made)
    assert (await other.get(made.id)).item.id == made.id
    assert (await other.put([made])).already == (made.id,)


async def test_put_with_a_delay_is_not_leased_early(world: World) -> None:
    """P7 to the millisecond: due - 1 is too early, due is due."""
    made = new(delay=5 * SECOND)
    await world.put(made)
    world.tick(5 * SECOND - 1)
    assert await world.lease(10) == ()
    world.tick(1)
    assert ids(await world.lease(10)) == (made.id,)


async def test_put_concurrently_with_the_same_ids_adds_each_once(world: World) -> None:
    other = await world.another()
    made = news(20)
    calls = [handle.put(list(order)) for handle in (world.store, other) for order in (made, made[::-1]) * 2]
    results = await asyncio.gather(*calls)
    added = sorted(item_id for result in results for item_id in result.added)
    assert added == sorted(ids(made))
    assert all(len(result.added) + len(result.already) == len(made) for result in results)
    assert (await world.count()).ready == len(made)


@pytest.mark.parametrize("terms", TERMS)
async def test_put_terms_are_carried_through_an_item_s_life(world: World, terms: Terms) -> None:
    """By whatever verb it is seen: policies are read from it when it fails."""
    made = new(priority=Priority.HIGH, terms=terms)
    await world.put(made)
    found = (await world.store.find(EVERYTHING)).items
    item = await world.lease_one()
    settled = await world.settle(failed(item), then=asking(1))
    world.tick(TTL + 1)
    lost = await world.store.reclaim("reaper", [QUEUE], TTL, 1)
    await world.finish(dead(lost[0]))
    letter = await world.item(made.id)
    await world.replay_dead(made.id)
    seen = (*found, item, *next_leases(settled).items, *lost, letter, await world.item(made.id))
    assert [(one.id, one.terms, one.priority) for one in seen] == [(made.id, terms, Priority.HIGH)] * 6


async def test_put_terms_that_say_nothing_are_none(world: World) -> None:
    made = new(terms=Terms())
    await world.put(made)
    assert (await world.item(made.id)).terms is None


async def test_put_survives_reopening(world: World) -> None:
    world.needs(DURABLE)
    kept = [new(payload) for payload in HOSTILE]
    await world.put(*kept)
    before = [await world.store.get(item.id) for item in kept]
    await world.store.close()
    reopened = await world.another()
    assert [await reopened.get(item.id) for item in kept] == before
    assert (await reopened.lease(asking(len(kept)))).items
