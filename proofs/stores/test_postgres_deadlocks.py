"""Work that shares keys, limits and dependencies is drained on PostgreSQL without a deadlock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from redrive.core.item import Dedupe, Item
from redrive.core.verbs import LeaseRequest, QueueChange, Want
from redrive.stores.postgres import PostgresStore
from tests.stores.postgres_hot_kit import Open, opened, url
from tests.stores.postgres_kit import rows
from tests.stores.test_postgres_terms import bound, done
from tests.support.servers import schemas

__all__ = ["opened", "url"]


@pytest.fixture
def alone() -> Iterator[str]:
    """On a server where nobody else is: it counts deadlocks of all."""
    with schemas.apart() as made:
        yield made


async def test_bound_items_are_drained_by_many_without_a_deadlock(alone: str, opened: Open) -> None:
    """Order keys, limit keys, dependencies and dedupe keys that cross each other, over connections of their own."""
    stores = [await opened("&pool=4", alone) for _ in range(3)]
    await stores[0].configure("q", QueueChange(max_per_key=2, max_running=12))
    await stores[0].configure("r", QueueChange(max_per_key=3))
    queues = ("q", "r")

    async def puts(store: PostgresStore, name: str) -> None:
        for turn in range(8):
            await store.put(
                [
                    bound(
                        f"{name}-{turn}-{n}",
                        queues[n % 2],
                        order_key=f"o-{n % 5}" if n % 3 else "",
                        limit_key=f"l-{n % 4}",
                        dedupe=Dedupe(f"{name}-{turn}-{n}", "store"),
                        after=(f"{name}-{turn - 1}-{n + 1}",) if turn and n % 4 == 0 else (),
                    )
                    for n in range(12)
                ]
            )

    ran: list[str] = []

    async def works(store: PostgresStore, name: str) -> None:
        wants = tuple(Want(queue, 4, 60_000, 3) for queue in queues)
        items: tuple[Item, ...] = ()
        turn = idle = 0
        while idle < 40:
            turn += 1
            settled = await store.settle(done(items), LeaseRequest(name, wants, f"{name}-{turn}"))
            assert settled.leases is not None
            items = settled.leases.items
            ran.extend([item.id for item in items])
            idle = 0 if items else idle + 1
            await asyncio.sleep(0)  # noqa: TID251 - a turn for the others

    ((before,),) = await rows(alone, "select deadlocks from pg_stat_database where datname = current_database()")
    await asyncio.gather(
        *(puts(store, f"p{number}") for number, store in enumerate(stores)),
        *(works(stores[number % 3], f"w{number}") for number in range(6)),
    )
    await works(stores[0], "last")
    assert sorted(ran) == sorted({f"p{p}-{turn}-{n}" for p in range(3) for turn in range(8) for n in range(12)})
    assert (await stores[0].check()).findings == ()
    ((after,),) = await rows(alone, "select deadlocks from pg_stat_database where datname = current_database()")
    assert after == before
