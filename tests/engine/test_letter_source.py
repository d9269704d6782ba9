"""LetterSource: letters of a selection, leased in place."""

from __future__ import annotations

import pytest

from redrive.core.acts import Act, Replay
from redrive.core.decide import Charge, ToDead, ToReady
from redrive.core.item import Attempt, Ending, Failure, Item, Millis, NewItem, Priority
from redrive.core.select import Ids
from redrive.core.verbs import (
    LeaseRequest,
    Settlement,
    Want,
)
from redrive.engine import letter_source
from redrive.engine.evidence import plain_failure
from redrive.engine.letter_source import LetterSource, at_death, open_letters
from redrive.stores.base import Store
from redrive.stores.memory import MemoryStore
from redrive.testing.clock import FakeClock
from redrive.testing.faults import FaultyStore

ROUTE = "requests-dlq"
WHY = plain_failure("builtins.ValueError", "no", "data")


async def lease_one(store: Store, nonce: str, ttl: Millis = 60_000) -> Item:
    request = LeaseRequest("worker", (Want("requests", 1, ttl, 1_000),), nonce)
    return (await store.lease(request)).items[0]


def attempt_of(item: Item, ending: Ending, failure: Failure = WHY) -> Attempt:
    return Attempt(item.deliveries, item.attempt, "worker", item.leased_at or 0, 0, ending, failure)


async def die(store: Store, item_id: str, priority: Priority = Priority.NORMAL) -> None:
    await store.put([NewItem(item_id, "requests", b"{}", priority=priority)])
    item = await lease_one(store, f"for {item_id}")
    dead = ToDead("handler", Charge.ERROR, WHY, ROUTE)
    await store.settle([Settlement(item.id, item.deliveries, dead, attempt_of(item, Ending.DEAD))])


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def store(clock: FakeClock) -> MemoryStore:
    return await MemoryStore(clock).open()


def letters_of(store: Store, clock: FakeClock) -> LetterSource:
    return LetterSource(store, clock, "here", open_letters(ROUTE))


def ids_of(items: list[Item]) -> list[str]:
    return [item.id for item in items]


async def test_the_longest_dead_come_first_and_nobody_gets_one_twice(store: MemoryStore, clock: FakeClock) -> None:
    for each in "abc":
        await die(store, each)
        clock.advance(1)
    one, other = letters_of(store, clock), letters_of(store, clock)
    assert ids_of(await one.take(2, 30_000)) == ["a", "b"]
    assert ids_of(await one.take(2, 30_000)) == ["c"], "the same mailbox does not get what it holds already"
    assert await other.take(2, 30_000) == []
    clock.advance(30_000)
    assert ids_of(await other.take(10, 30_000)) == ["a", "b", "c"]


async def test_urgent_letters_come_before_older_ones(store: MemoryStore, clock: FakeClock) -> None:
    await die(store, "low", Priority.LOW)
    await die(store, "plain")
    await die(store, "urgent", Priority.HIGH)
    assert ids_of(await letters_of(store, clock).take(3, 30_000)) == ["urgent", "plain", "low"]


async def test_a_walk_behind_very_many_that_are_held_goes_on_where_it_stopped(
    store: MemoryStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letter_source, "LOOK", 2)
    monkeypatch.setattr(letter_source, "MOST", 2)
    monkeypatch.setattr(letter_source, "WALK", 2)
    for each in "abcdefg":
        await die(store, each)
    await store.lease_letters(list("abcdef"), "somebody", 60_000)
    letters = letters_of(store, clock)
    assert await letters.take(1, 30_000) == []
    assert ids_of(await letters.take(1, 30_000)) == ["g"]
    assert await letters.take(1, 30_000) == []
    await store.settle_letters([Settlement("a", 2, ToReady(0, Charge.NOTHING))])
    taken = [ids_of(await letters.take(1, 30_000)) for _ in range(2)]
    assert ["a"] in taken, "it begins again at the front"


async def test_a_long_walk_for_nothing_is_not_made_again_at_once(
    store: MemoryStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letter_source, "LOOK", 2)
    faulty = FaultyStore(store)
    letters = letters_of(faulty, clock)

    async def walks(*expected: str) -> int:
        before = len(faulty.calls_of("find"))
        assert ids_of(await letters.take(1, 60_000)) == list(expected)
        return len(faulty.calls_of("find")) - before

    for each in "abcd":
        await die(store, each)
    await store.lease_letters(list("abcd"), "somebody", 60_000)
    assert await walks() == 2
    assert await walks() == 0
    await die(store, "new")
    assert await walks("new") == 2, "one has come"
    assert [await walks(), await walks()] == [2, 0]
    letters.look_again()
    assert [await walks(), await walks()] == [2, 0], "one was given back here"
    clock.advance(5_000)
    assert await walks() == 2, "one may have been given back elsewhere"
    clock.advance(55_000)
    assert await walks("a") == 1, "one is due"


async def test_what_happens_to_a_letter_is_not_what_it_died_of(store: MemoryStore, clock: FakeClock) -> None:
    """All in one millisecond, and with one and the same error: only the order tells them apart."""
    await store.put([NewItem("a", "requests", b"{}")])
    for number in range(3):
        item = await lease_one(store, f"try {number}")
        again = Settlement(item.id, item.deliveries, ToReady(0, Charge.ERROR), attempt_of(item, Ending.FAILED))
        await store.settle([again])
    item = await lease_one(store, "released")
    free = ToReady(0, Charge.NOTHING)
    await store.settle([Settlement(item.id, item.deliveries, free, attempt_of(item, Ending.RELEASED))])
    item = await lease_one(store, "last")
    dead = ToDead("handler", Charge.ERROR, WHY, ROUTE)
    await store.settle([Settlement(item.id, item.deliveries, dead, attempt_of(item, Ending.DEAD))])
    for _ in range(2):
        (held,) = await letters_of(store, clock).take(1, 30_000)
        failed = attempt_of(held, Ending.FAILED)
        await store.settle_letters([Settlement(held.id, held.deliveries, ToReady(0, Charge.ERROR), failed)])
    died, deliveries = at_death(await store.get("a"))
    assert [one.ending for one in died.attempts] == ["failed", "failed", "failed", "released", "dead"]
    assert deliveries == 5
    assert (await store.get("a")).item.deliveries == 7


async def test_a_letter_that_was_replayed_is_told_by_its_last_death(store: MemoryStore, clock: FakeClock) -> None:
    await die(store, "a")
    clock.advance(1)
    await store.amend(Ids(("a",)), Replay(), Act("ann", "again", "1"))
    item = await lease_one(store, "again")
    dead = ToDead("handler", Charge.ERROR, WHY, ROUTE)
    await store.settle([Settlement(item.id, item.deliveries, dead, attempt_of(item, Ending.DEAD))])
    died, deliveries = at_death(await store.get("a"))
    assert (len(died.attempts), deliveries) == (2, 2)
