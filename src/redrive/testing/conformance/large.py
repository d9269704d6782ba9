"""Large bodies: a store may keep them as it likes; whoever reads gets what was put, byte for byte, from every verb."""

from __future__ import annotations

import random
import zlib

import pytest

from redrive.core.acts import Discard, Replay
from redrive.core.item import Item, NewItem
from redrive.core.select import EVERYTHING, Ids, Match
from redrive.core.states import State
from redrive.errors import StoreUnavailable
from redrive.testing.conformance.kit import (
    DURABLE,
    QUEUE,
    TTL,
    WORKER,
    World,
    act,
    asking,
    dead,
    failed,
    finished,
    fresh,
    new,
    next_leases,
    sha256,
)

_noise = random.Random(30).randbytes
TEXT = b'{"line": "the quick brown fox", "n": 12345678901234567}\r\n' * 6_000
NOISE = _noise(300_000)
LARGE = (
    TEXT,
    NOISE,
    bytes(1_000_000),
    b"x" * 65_536,
    b"x" * 65_537,
    NOISE[:30_000] + TEXT + NOISE[30_000:60_000],
    zlib.compress(NOISE),
    zlib.compress(TEXT) * 60,
)
"""What compresses well, badly and not at all, on both sides of a usual threshold, and what looks compressed already."""


def is_exactly(found: bytes | None, put: bytes) -> bool:
    """Also by its type: a value of a store's own class would surprise whoever pickles or compares it."""
    return type(found) is bytes and found == put


async def test_large_payloads_are_the_same_wherever_they_are_read(world: World) -> None:
    made = [new(body) for body in LARGE]
    await world.put(*made)
    bodies = {item.id: item.payload for item in made}

    def same(items: tuple[Item, ...], count: int = len(LARGE)) -> bool:
        return len(items) == count and all(is_exactly(item.payload, bodies[item.id]) for item in items)

    for item_id, body in bodies.items():
        assert is_exactly((await world.item(item_id)).payload, body)
    assert same((await world.store.find(EVERYTHING)).items)
    items = await world.lease(50, nonce="asked")
    assert same(items)
    assert same(await world.lease(50, nonce="asked"))
    settled = await world.settle(*(failed(item) for item in items), then=asking(50))
    assert same(next_leases(settled).items)
    world.tick(TTL + 1)
    taken = await world.store.reclaim("reaper", [QUEUE], TTL, 50)
    assert same(taken)
    await world.finish(*(dead(item) for item in taken))
    assert same((await world.store.find(Match("state", "=", "dead"))).items)
    for item_id, body in bodies.items():
        letter = await world.item(item_id)
        assert letter.letter is not None
        assert is_exactly(letter.payload, body)


async def test_large_payloads_come_back_from_a_replay_and_leave_their_digest(world: World) -> None:
    made = [new(body) for body in LARGE]
    await world.put(*made)
    await world.finish(*(dead(item) for item in await world.lease(50)))
    named = Ids(tuple(item.id for item in made))
    await world.store.amend(named, Replay(), act())
    again = await world.lease(50)
    assert {item.id: item.payload for item in again} == {item.id: item.payload for item in made}
    await world.finish(*(dead(item) for item in again))
    await world.store.amend(named, Discard(), act())
    tombstones = await world.store.prune(named, 50, act())
    digests = {tombstone.id: tombstone.payload_sha256 for tombstone in tombstones}
    assert digests == {item.id: sha256(item.payload) for item in made}


async def test_large_results_are_the_same_wherever_they_are_read(world: World) -> None:
    for body in LARGE:
        item = await world.held()
        await world.finish(finished(item, result=body))
        done = await world.item(item.id)
        assert done.state is State.DONE
        assert is_exactly(done.result, body)
    results = [item.result for item in (await world.store.find(EVERYTHING)).items]
    assert results == list(LARGE[::-1])
    assert all(type(result) is bytes for result in results)


async def test_large_follow_ups_are_whole(world: World) -> None:
    item = await world.held()
    more = [NewItem(fresh(), QUEUE, body) for body in LARGE]
    settled = await world.settle(finished(item, follow_ups=more), then=asking(50))
    assert [it.payload for it in next_leases(settled).items] == list(LARGE)


async def test_large_and_small_keep_their_order(world: World) -> None:
    made = [new(body) for body in (b"a", TEXT, b"b", NOISE, b"")]
    await world.put(*made)
    items = await world.lease(50)
    assert [item.id for item in items] == [item.id for item in made]
    assert [item.payload for item in items] == [item.payload for item in made]


async def test_large_payloads_are_there_when_it_is_opened_again(world: World) -> None:
    world.needs(DURABLE)
    made = [new(body) for body in LARGE]
    await world.put(*made)
    held = await world.lease(2, worker=WORKER)
    await world.finish(finished(held[0], result=TEXT))
    await world.store.close()
    again = await world.another()
    for item in made:
        assert is_exactly((await again.get(item.id)).item.payload, item.payload)
    assert is_exactly((await again.get(held[0].id)).item.result, TEXT)


async def test_large_payloads_are_refused_by_a_closed_store(world: World) -> None:
    await world.store.close()
    with pytest.raises(StoreUnavailable):
        await world.store.put([new(TEXT)])
