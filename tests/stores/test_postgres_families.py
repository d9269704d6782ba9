"""The agenda of a family on PostgreSQL: what an open transaction makes leasable is not lost to a lease meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import psycopg
import pytest

from redrive.core.item import Item
from redrive.core.verbs import LeaseRequest, QueueChange, Want, WorkerFacts
from redrive.stores.postgres import PostgresStore
from tests.stores.postgres_hot_kit import *  # noqa: F403 - the fixtures are meant
from tests.stores.postgres_hot_kit import Open, finished, gone
from tests.stores.postgres_kit import Row, behind, execute, rows, somebody_waits
from tests.stores.sqlite_kit import new
from tests.stores.test_postgres_within import dsn

pytestmark = pytest.mark.slow

FAMILY, MEMBER = "hook:*", "hook:a"
NONCES = count()


@pytest.fixture
async def store(opened: Open) -> PostgresStore:
    store = await opened()
    await store.configure(FAMILY, QueueChange())
    return store


async def lease(store: PostgresStore, queue: str = FAMILY) -> tuple[Item, ...]:
    return (await store.lease(LeaseRequest("w", (Want(queue, 10, 30_000, 3),), f"n{next(NONCES)}"))).items


async def leased(store: PostgresStore, queue: str = FAMILY) -> list[str]:
    return [item.id for item in await lease(store, queue)]


async def agenda(url: str) -> list[Row]:
    return await rows(url, "select queue from agenda")


@asynccontextmanager
async def commits_of_settles_wait(url: str) -> AsyncIterator[psycopg.AsyncConnection[Row]]:
    """Each has written all that it writes, and waits for the end of the transaction of this connection."""
    async with behind(url) as hand, behind(url) as gate:
        await hand.execute(
            b"create function hold() returns trigger language plpgsql as $$ begin "
            b"perform pg_advisory_xact_lock(hashtext(tg_table_schema)); return null; end $$"
        )
        await hand.execute(
            b"create constraint trigger hold after insert on counter deferrable initially deferred "
            b"for each row when (new.leased < 0) execute function hold()"
        )
        try:
            async with gate.transaction():
                await gate.execute(b"select pg_advisory_xact_lock(hashtext(current_schema()))")
                yield gate
        finally:
            await hand.execute(b"drop function hold cascade")


async def test_a_put_that_commits_after_a_lease_looked_is_given_by_the_next(url: str, store: PostgresStore) -> None:
    await store.put([new("first", MEMBER)])
    assert await leased(store, MEMBER) == ["first"]
    assert await agenda(url) == [(MEMBER,)], "the lease by its own name leaves the agenda alone"
    async with await psycopg.AsyncConnection.connect(dsn(url)) as connection:
        await store.put([new("second", MEMBER)], within=connection)
        assert await leased(store) == []
        assert await agenda(url) == [], "it looked at the member, and found nothing"
        await connection.commit()
    assert await leased(store) == ["second"]


async def test_a_settle_that_commits_after_a_lease_looked_makes_room_for_the_next(
    url: str, store: PostgresStore
) -> None:
    await store.configure(MEMBER, QueueChange(max_running=1))
    await store.put([new("first", MEMBER), new("second", MEMBER)])
    items = await lease(store)
    await store.put([new("third", MEMBER)])
    async with commits_of_settles_wait(url) as gate:
        settling = asyncio.ensure_future(store.settle(finished(items)))
        await somebody_waits(url, gate)
        assert await leased(store) == []
        assert await agenda(url) == [], "it looked at the member, and one of it ran"
    await settling
    assert await leased(store) == ["second"]


async def test_counters_of_members_that_did_not_move_are_not_read(unused: str, opened: Open) -> None:
    store = await opened(where=unused)
    await store.configure(FAMILY, QueueChange())
    fill = "insert into member_counter (queue, done) select 'hook:' || n, 1 from generate_series(1, 20000) n"
    await execute(unused, fill)
    for number in range(200):
        await store.put([new(str(number), MEMBER)])
    await store.beat("w", WorkerFacts((FAMILY,)), 1_000)
    await store.close()
    await gone(unused)
    assert await rows(unused, f"select count(*), sum(ready) from member_counter where queue = '{MEMBER}'") == [(1, 200)]
    read = "select idx_tup_read from pg_stat_user_indexes where indexrelname = 'member_counter_queue'"
    ((entries,),) = await rows(unused, f"{read} and schemaname = current_schema()")
    assert entries < 2_000


async def test_members_that_wait_for_later_are_not_read(unused: str, opened: Open) -> None:
    """Also where the statistics are of a time when all of them had something to give."""
    store = await opened(where=unused)
    await store.configure(FAMILY, QueueChange())
    await store.close()
    await gone(unused)
    fill = (
        "insert into agenda (family, queue, next_at) select 'hook:*', 'hook:' || n, {} from generate_series(1, 20000) n"
    )
    await execute(unused, fill.format(0), "analyze agenda", "delete from agenda", fill.format(1 << 50), "vacuum agenda")
    read = "select sum(idx_tup_read)::bigint from pg_stat_user_indexes where indexrelname like 'agenda_%'"
    read = f"{read} and schemaname = current_schema()"
    ((before,),) = await rows(unused, read)
    store = await opened(where=unused)
    for number in range(20):
        await store.put([new(str(number), MEMBER)])
        assert await leased(store) == [str(number)]
    await store.close()
    await gone(unused)
    ((after,),) = await rows(unused, read)
    assert after - before < 2_000
