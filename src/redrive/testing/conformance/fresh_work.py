"""Fresh work first: retries and replays get their share of what a queue gives, and what first attempts do not use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import structs

from redrive.core.acts import Replay
from redrive.core.item import Item, NewItem
from redrive.core.lanes import CYCLE, PRIORITIES, is_retry, level_of, priority_of
from redrive.core.meters import Rate
from redrive.core.select import Ids
from redrive.core.verbs import (
    GateWrite,
    QueueChange,
    QueueSettings,
)
from redrive.testing.conformance.kit import QUEUE, SECOND, World, act, dead, failed, ids, new, news

FIFTH = 200
"""A share of 0.2."""


class Choice(NamedTuple):
    """What `core.lanes.choose` gives: of items by level, with their due times, these levels one after the other."""

    waiting: Mapping[int, tuple[int, ...]]
    limit: int
    retries: int | None
    share: int | None
    turn: int
    levels: tuple[int, ...]


_BOTH = {0: (9,) * 6, 3: (1,) * 6}
"""First attempts, and retries that were due before them."""
_ALL = {0: (9,) * 4, 1: (9,) * 4, 2: (9,) * 4, 3: (1,) * 4, 4: (1,) * 4, 5: (1,) * 4}
"""First attempts and retries of each priority."""

CHOICES = (
    # A share of 0.5: every second one.
    Choice(_BOTH, 6, None, 500, 0, (0, 3, 0, 3, 0, 3)),
    Choice(_BOTH, 6, None, 500, 1, (3, 0, 3, 0, 3, 0)),
    # One in five, and then what is left.
    Choice(_BOTH, 6, None, FIFTH, 0, (0, 0, 0, 0, 3, 0)),
    Choice(_BOTH, 9, None, FIFTH, 2, (0, 0, 3, 0, 0, 0, 0, 3, 3)),
    Choice(_BOTH, 8, None, 1, 0, (0, 0, 0, 0, 0, 0, 3, 3)),
    # No share, or all of it: in due order.
    Choice(_BOTH, 8, None, None, 0, (3, 3, 3, 3, 3, 3, 0, 0)),
    Choice(_BOTH, 8, None, 1000, 0, (3, 3, 3, 3, 3, 3, 0, 0)),
    # Both lines hold, and neither leaves anything unused.
    Choice(_BOTH, 6, 1, 500, 0, (0, 3, 0, 0, 0, 0)),
    Choice(_BOTH, 8, 1, 500, 0, (0, 3, 0, 0, 0, 0, 0, 3)),
    Choice({3: (1, 2, 3)}, 3, 0, FIFTH, 0, (3, 3, 3)),
    Choice({0: (1, 2)}, 3, 0, FIFTH, 4, (0, 0)),
    # In their turn retries come in due order: those that are due later than first attempts wait.
    Choice({0: (1, 3, 5), 3: (2, 4, 6)}, 6, None, 500, 0, (0, 3, 0, 3, 0, 3)),
    Choice({0: (1, 1, 1), 3: (2, 2, 2)}, 6, None, 500, 0, (0, 0, 0, 3, 3, 3)),
    # The turns of low (19, 39, 59) and of normal (9, 29, 49) meet the retries' turn and the others.
    Choice(_ALL, 1, None, 500, CYCLE - 1, (2,)),
    Choice(_ALL, 1, None, 500, 2 * CYCLE - 1, (5,)),
    Choice(_ALL, 1, None, 500, 3 * CYCLE - 1, (2,)),
    Choice(_ALL, 1, None, 500, 9, (0,)),
    Choice(_ALL, 1, None, 500, CYCLE + 9, (3,)),
    Choice(_ALL, 1, None, FIFTH, 4 * CYCLE - 1, (2,)),
    Choice(_ALL, 1, None, FIFTH, 5 * CYCLE - 1, (5,)),
    Choice(_ALL, 1, None, 50, 20 * CYCLE - 1, (5,)),
    Choice(_ALL, 1, None, 50, 20_001 * CYCLE - 1, (2,)),
    # Around the turns of normal and low, which the others do not count.
    Choice(_BOTH, 6, None, FIFTH, 8, (0, 0, 3, 0, 0, 0)),
    Choice(_BOTH, 6, None, FIFTH, 17, (0, 0, 0, 0, 3, 0)),
    Choice(_ALL, 4, None, 500, CYCLE - 2, (4, 2, 1, 4)),
    # High goes first, whoever's turn it is among retries and first attempts.
    Choice(_ALL, 9, None, 500, 0, (1, 4, 1, 4, 1, 4, 1, 4, 0)),
    Choice({0: (9, 9), 4: (1, 1)}, 3, None, 500, 0, (0, 4, 0)),
)


async def test_fresh_work_is_chosen_as_the_table_says(world: World) -> None:
    for number, choice in enumerate(CHOICES):
        queue = f"choice-{number}"
        await filled(world, queue, choice.waiting)
        items = await world.lease(
            choice.limit, queue=queue, retries=choice.retries, share=choice.share, turn=choice.turn, worker=queue
        )
        assert levels(items) == choice.levels, choice


async def filled(world: World, queue: str, waiting: Mapping[int, tuple[int, ...]]) -> None:
    """All of them are due, in this order."""
    made = [(number, due) for number, rows in waiting.items() for due in rows]
    tried = {_of(number, queue): due for number, due in made if is_retry(number)}
    await world.put(*tried)
    delays = {item.id: due for item, due in tried.items()}
    items = await world.lease(max(1, len(tried)), queue=queue)
    await world.finish(*(failed(item, delays[item.id]) for item in items))
    await world.put(*(structs.replace(_of(number, queue), delay=due) for number, due in made if not is_retry(number)))
    world.tick(SECOND)


def _of(number: int, queue: str) -> NewItem:
    return new(queue=queue, priority=PRIORITIES[priority_of(number)])


def levels(items: tuple[Item, ...]) -> tuple[int, ...]:
    return tuple(level_of(item) for item in items)


# --- where a queue gives less than is asked for ---


async def replays_then_fresh(world: World, replays: int, fresh: int) -> set[str]:
    """So many letters sent back to work, and then first attempts, whose ids these are."""
    await world.put(*news(replays))
    items = await world.lease(replays)
    await world.finish(*(dead(item) for item in items))
    await world.store.amend(Ids(ids(items)), Replay(), act())
    world.tick(SECOND)
    made = news(fresh)
    await world.put(*made)
    return set(ids(made))


async def one_by_one(world: World, count: int, *, each: int) -> list[str]:
    """So many leases, of which each request gets one."""
    given: list[str] = []
    while len(given) < count:
        items = await world.lease(10, share=FIFTH, turn=len(given))
        assert len(items) == 1
        given += ids(items)
        world.tick(each)
    return given


async def test_fresh_work_goes_first_under_a_rate(world: World) -> None:
    """A rate gives a few at a time, and of those retries get their share: first attempts have the others."""
    fresh = await replays_then_fresh(world, 60, 10)
    await world.set(QueueChange(rate=Rate(50, SECOND, 1)))
    given = await one_by_one(world, 30, each=20)
    assert fresh <= set(given[:13])
    assert len(set(given[:11]) - fresh) == 2
    # When no first attempt waits, retries have all of it.
    assert not fresh & set(given[13:])


async def test_fresh_work_goes_first_through_a_breaker(world: World) -> None:
    """A breaker that lets one probe through at a time."""
    fresh = await replays_then_fresh(world, 30, 8)
    await world.set(QueueChange(gate="smtp"))
    await world.store.set_gate(GateWrite("smtp", 0, SECOND * 1_000))
    given = await one_by_one(world, 15, each=SECOND)
    assert fresh <= set(given[:10])
    assert len(set(given[:10]) - fresh) == 2


async def test_fresh_work_that_does_not_wait_lends_its_share(world: World) -> None:
    await replays_then_fresh(world, 12, 0)
    assert len(await world.lease(8, share=1, retries=0)) == 8
    fresh = new()
    await world.put(fresh)
    items = await world.lease(3, share=1)
    assert len(items) == 3
    assert items[0].id == fresh.id


async def test_fresh_work_and_retries_of_every_priority_come_to_their_turn(world: World) -> None:
    """Whose turn it is among priorities and among retries must not go in step, or some would never be given."""
    waiting = {number: (9 if number < 3 else 1,) * 60 for number in range(6)}
    await filled(world, QUEUE, waiting)
    seen: list[int] = []
    for turn in (number for number in range(6 * CYCLE) if number % 10 == 9):
        seen += levels(await world.lease(1, share=500, turn=turn))
    assert [seen.count(number) for number in range(6)] == [3, 0, 3, 3, 0, 3]


async def test_fresh_work_first_is_what_a_new_queue_has(world: World) -> None:
    """None is to be told from what was never set, also after a change of something else."""
    await world.put(new())
    assert (await world.store.settings(QUEUE)).retry_share == QueueSettings().retry_share == 0.5
    await world.set(QueueChange(paused=True))
    assert (await world.count()).settings.retry_share == 0.5
    await world.set(QueueChange(retry_share=None))
    await world.set(QueueChange(max_running=3))
    assert (await world.store.settings(QUEUE)).retry_share is None
    assert (await (await world.another()).tally()).row(QUEUE).settings.retry_share is None
    await world.set(QueueChange(retry_share=0.5, max_running=None))
    assert await world.store.settings(QUEUE) == QueueSettings()
