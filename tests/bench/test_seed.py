"""The bench seeds by plainer means what would take the verbs hours: it must be what the verbs would have written."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from bench.engines.base import Engine
from bench.seeds import story
from redrive.core.decide import Charge, ToDead
from redrive.core.item import Attempt, Ending, Item, NewItem
from redrive.core.select import EVERYTHING
from redrive.core.verbs import CauseTally, LeaseRequest, QueueChange, Settlement, Want
from redrive.stores.base import Store
from redrive.stores.url import store_from_url
from redrive.testing import FakeClock
from tests.bench.contents import contents

pytestmark = pytest.mark.slow


def live(engine: Engine, seeded: str, paused: str | None = None) -> str:
    """Let the verbs do, at the same instants, what the seeded items say was done. The URL of where they did."""
    items = asyncio.run(_items(store_from_url(seeded)))
    url = engine.empty("lived")
    clock = FakeClock(min(item.enqueued_at for item in items))
    with engine.lax(url) as quick:
        asyncio.run(_live(store_from_url(quick, clock=clock), clock, items, paused))
    return url


async def _items(store: Store) -> list[Item]:
    await store.open()
    page = await store.find(EVERYTHING, 1000)
    await store.close()
    assert page.next is None, "this is meant for few"
    return sorted(page.items, key=lambda item: item.seq)


async def _live(store: Store, clock: FakeClock, items: list[Item], paused: str | None) -> None:
    await store.open()
    for at, item, dies in sorted(_events(items), key=lambda event: event[0]):
        clock.advance(at - clock.now())
        await (_die(store, item) if dies else _put(store, item))
    if paused is not None:
        await store.configure(paused, QueueChange(paused=True))
    await store.close()


def _events(items: list[Item]) -> Iterator[tuple[int, Item, bool]]:
    for item in items:
        yield item.enqueued_at, item, False
        if item.letter is not None:
            yield item.letter.died_at, item, True


async def _put(store: Store, item: Item) -> None:
    """And lease, if it was: right away, so that nothing else is due."""
    await store.put([NewItem(item.id, item.queue, item.payload, item.due_at - item.enqueued_at)])
    if item.leased_at is not None:
        leases = await store.lease(LeaseRequest(story.WORKER, (Want(item.queue, 1, 3 * story.DAY, 3),), item.id))
        assert [leased.id for leased in leases.items] == [item.id]


async def _die(store: Store, item: Item) -> None:
    assert item.letter is not None
    assert item.leased_at is not None
    why = item.letter.failure
    attempt = Attempt(1, 1, story.WORKER, item.leased_at, item.letter.died_at - item.leased_at, Ending.FAILED, why)
    await store.settle([Settlement(item.id, 1, ToDead(story.REASON, Charge.ERROR, why), attempt)])


def assert_same(seeded: str, lived: str) -> None:
    ours, theirs = contents(seeded), contents(lived)
    assert ours.keys() == theirs.keys()
    for name, found in theirs.items():
        assert ours[name] == found, name


def test_seeded_letters_are_what_the_verbs_would_leave(engine: Engine) -> None:
    seeded = engine.letters("seeded", 150)
    assert_same(seeded, live(engine, seeded))


def test_seeded_items_wait_as_if_they_had_been_put(engine: Engine) -> None:
    seeded = engine.waiting("seeded", 40, delayed=30, paused=20)
    assert_same(seeded, live(engine, seeded, story.PAUSED))


def test_seeded_letters_are_of_many_causes_some_common_and_some_rare(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(story, "LOTS", 2_000)
    causes = asyncio.run(_causes(store_from_url(engine.letters("seeded", 2_000))))
    counts = sorted(cause.count for cause in causes)
    assert counts[-1] > 200
    assert counts[0] == 1
    assert len(counts) > story.CAUSES // 2


async def _causes(store: Store) -> tuple[CauseTally, ...]:
    await store.open()
    causes = await store.causes(limit=1000)
    await store.close()
    return causes
