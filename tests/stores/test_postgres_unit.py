"""The PostgreSQL store's own promises: each trap that the engine has for a queue, and that this one avoids."""

from __future__ import annotations

import asyncio
import hashlib
import re

import pytest

from redrive.core.item import ATTEMPTS_FIRST, ATTEMPTS_LAST, Item, NewItem
from redrive.core.lanes import PRIORITIES
from redrive.core.states import State
from redrive.core.verbs import Held, Verdict, WorkerFacts
from redrive.errors import StoreUnavailable
from redrive.stores import migrate
from redrive.stores.postgres import install, lease
from redrive.stores.postgres.session import TRIES, Tx
from redrive.stores.statements import load
from tests.stores.postgres_hot_kit import *  # noqa: F403 - the fixtures are meant
from tests.stores.postgres_hot_kit import (
    MINE,
    Open,
    asking,
    failed,
    finished,
    gone,
    keep_from_statistics,
    news,
    session_of,
)
from tests.stores.postgres_kit import behind, rows, somebody_waits

FUNCTIONS = "a940ba4aac4e5672"
"""Checksum of the functions. A database gets functions only together with a migration: after 0.1.0, a change of a
function needs a new migration, if an empty one. Until then it is corrected here, and databases are made anew (ADR 35).
"""


# --- plans ---


async def test_a_lease_never_gives_more_than_asked_whatever_the_planner_prefers(url: str, opened: Open) -> None:
    """The well-known trap: a nested loop runs a limited subquery once per row, and everything is taken."""
    store = await opened()
    await store.put(news(200))
    # Of one queue by the way of plain items, of the other one by priorities.
    await store.put([NewItem(f"p-{n:03}", "mixed", b"{}", priority=PRIORITIES[n % 3]) for n in range(200)])
    switches = ("enable_hashjoin", "enable_mergejoin", "enable_indexscan", "enable_material", "enable_nestloop")
    call = """
        select count(*) from lease(
            null, %s, %s, 0, '{q, mixed}', '{3, 3}', '{30000, 30000}', '{2, 2}', '{-1, -1}', '{0, 0}',
            '{-1, -1}', '{0, 0}'
        ) where note = 0
    """
    for number, off in enumerate(switches):
        async with behind(url) as connection:
            await connection.execute(f"set {off} = off".encode())
            given = await connection.execute(call.encode(), (f"w-{number}", f"n-{number}"))
            assert await given.fetchone() == (6,)
    assert [queue.leased for queue in (await store.tally()).queues] == [3 * len(switches)] * 2


async def test_the_verbs_use_indexes_before_there_are_statistics(unused: str, opened: Open) -> None:
    """A table that was empty when its plan was made must not be read as a whole when it is large."""
    await (await opened(where=unused)).close()
    await keep_from_statistics(unused)
    await gone(unused)
    # Making tables and their indexes is a scan of them, too.
    scans = """
        select relname, seq_scan, coalesce(idx_scan, 0) from pg_stat_user_tables
        where schemaname = current_schema() and relname in ('item', 'course', 'nonce', 'tombstone', 'terms', 'slot')
        order by relname
    """
    before = await rows(unused, scans)
    store = await opened(where=unused)
    await store.put(news(300))
    await store.put(news(1))
    items = (await store.lease(asking(100, "a"))).items
    await store.extend([Held(item.id, item.deliveries) for item in items], 60_000)
    await store.settle([failed(item) for item in items[:20]], asking(10, "b"))
    await store.settle(finished(items[10:60]), asking(10, "c"))
    await store.settle(finished(items[10:60]), asking(10, "c"))
    await store.reclaim("r", ["q"], 1_000, 10, force=True)
    await store.reclaim("r", ["q"], 1_000, 10, [items[0].id])
    await store.close()
    await gone(unused)
    after = await rows(unused, scans)
    assert [(name, seq_scans) for name, seq_scans, _ in after] == [(name, seq_scans) for name, seq_scans, _ in before]
    used = {name for (name, _, now), (_, _, then) in zip(after, before, strict=True) if now > then}
    assert used >= {"course", "item", "nonce", "tombstone"}


async def test_a_settle_finds_items_by_their_number_only(unused: str, opened: Open) -> None:
    """By the index of the leased it would walk through all that the fleet holds."""
    store = await opened(where=unused)
    await keep_from_statistics(unused)
    await store.put(news(300))
    items = (await store.lease(asking(300))).items
    await store.settle(finished(items[:20]))
    await store.close()
    await gone(unused)
    uses = "select indexrelname, idx_scan > 0 from pg_stat_user_indexes where schemaname = current_schema()"
    seen: dict[str, bool] = dict(await rows(unused, uses))
    assert (seen["course_leased"], seen["course_pkey"]) == (False, True)


async def test_extending_a_lease_touches_no_index(unused: str, opened: Open) -> None:
    store = await opened(where=unused)
    await store.put(news(20))
    items = (await store.lease(asking(20))).items
    await store.extend([Held(item.id, item.deliveries) for item in items], 60_000)
    await store.close()
    await gone(unused)
    updates = "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where schemaname = current_schema()"
    assert await rows(unused, f"{updates} and relname = 'course'") == [(40, 20)]


async def test_an_old_snapshot_does_not_slow_leases_down(unused: str, opened: Open) -> None:
    """What was taken stays in the index while anybody looks at an old state. Each lease begins behind it."""
    store = await opened(where=unused)
    await store.put(news(1_000))
    async with behind(unused) as connection:
        await connection.execute(b"begin isolation level repeatable read")
        await connection.execute(b"select count(*) from course")
        for number in range(40):
            items = (await store.lease(asking(20, f"n-{number}"))).items
            assert len(items) == 20
            await store.settle(finished(items))
        await store.close()
        await gone(unused)
        passed = "select idx_tup_read from pg_stat_user_indexes where schemaname = current_schema()"
        ((entries,),) = await rows(unused, f"{passed} and indexrelname = 'course_ready'")
    # Without a floor each lease would pass all that were given before it: 20 + 40 + … + 800.
    assert entries < 2_000


# --- floors ---

_LATE = """
    select put(
        null, '{late}', '{q}', '{0}', '{2745614147}', '{0}', array['{}'::bytea], null, null,
        null, null, null, null, null, null, null, null, null, null, null, null, true
    )
"""


async def test_what_is_committed_late_is_given_as_soon_as_nothing_else_is(url: str, opened: Open) -> None:
    store = await opened()
    async with behind(url) as connection, connection.transaction():
        await connection.execute(_LATE.encode())
        await store.put(news(2))
        assert len((await store.lease(asking(1, "a"))).items) == 1
        assert len((await store.lease(asking(1, "b"))).items) == 1
    assert [item.id for item in (await store.lease(asking(1, "c"))).items] == ["late"]


def test_a_floor_is_dropped_after_a_second() -> None:
    now = 100.0
    floors = lease.Floors(lambda: now)
    request = asking()
    item = Item("i", "q", b"", 7, State.LEASED, 1, 5, 1, leased_at=6)
    floors.learn(request, floors.look(request), [item])
    assert floors.look(request).floors == [(5, 7)]
    now = 100.9
    floors.learn(request, floors.look(request), [item])
    now = 101.0
    assert floors.look(request).floors == [(-1, 0)]


def test_a_floor_is_dropped_when_nothing_was_found_above_it() -> None:
    floors = lease.Floors(lambda: 0.0)
    request = asking()
    item = Item("i", "q", b"", 7, State.LEASED, 1, 5, 1, leased_at=6)
    floors.learn(request, floors.look(request), [item])
    floors.learn(request, floors.look(request), [])
    assert floors.look(request).floors == [(-1, 0)]


def test_a_floor_leaves_room_for_what_becomes_due_in_the_same_millisecond() -> None:
    floors = lease.Floors(lambda: 0.0)
    request = asking()
    floors.learn(request, floors.look(request), [Item("i", "q", b"", 7, State.LEASED, 1, 5, 1, leased_at=5)])
    assert floors.look(request).floors == [(5, 0)]


def test_looking_without_a_floor_takes_a_small_part_of_the_time() -> None:
    now = 0.0
    floors = lease.Floors(lambda: now)
    request = asking()
    item = Item("i", "q", b"", 7, State.LEASED, 1, 5, 1, leased_at=6)
    look = floors.look(request)
    now = 0.5
    floors.learn(request, look, [item])
    now = 9.9
    assert floors.look(request).floors == [(5, 7)]
    now = 10.0
    assert floors.look(request).floors == [(-1, 0)]


# --- put ---


@pytest.mark.parametrize("count", [10, 200])
async def test_a_put_of_few_or_many_leaves_what_is_there(opened: Open, count: int) -> None:
    """Many are put as if all were new, and again with care if one was not."""
    store = await opened()
    batch = news(count)
    await store.put([batch[3]])
    twice = [*batch, batch[5]]
    result = await store.put(twice)
    assert result.already == (batch[3].id, batch[5].id)
    assert result.added == tuple(new.id for new in batch if new is not batch[3])
    assert (await store.tally()).queues[0].ready == count


@pytest.mark.parametrize("count", [1, 200])
async def test_an_id_that_is_pruned_while_it_is_put_stays_taken(url: str, opened: Open, count: int) -> None:
    """The put waits for the prune's transaction; then there is no item any more, but a tombstone."""
    store = await opened()
    batch = news(count)
    await store.put(batch[:1])
    await store.settle(finished((await store.lease(asking())).items))
    async with behind(url) as connection:
        await connection.execute(b"begin")
        await connection.execute(b"delete from item where id = 'i-00000'")
        await connection.execute(b"delete from course")
        await connection.execute(b"insert into tombstone values ('i-00000', 'q', 'done', '', 1, 'a', 'r')")
        putting = asyncio.ensure_future(store.put(batch))
        await somebody_waits(url, connection)
        await connection.execute(b"commit")
        result = await putting
    assert result.already == ("i-00000",)
    assert len(result.added) == count - 1
    assert await rows(url, "select count(*) from item") == [(count - 1,)]
    assert await rows(url, "select count(*) from course") == [(count - 1,)]


# --- transactions, locks, time ---


async def test_nothing_is_held_while_a_handler_runs(url: str, opened: Open) -> None:
    """No transaction, no row lock and no advisory lock outlives its verb."""
    store = await opened()
    await store.put(news(3))
    await store.lease(asking(3))
    await store.beat("w", WorkerFacts(("q",)), 1_000)
    assert await store.elect("maintainer", "w", 1_000)
    assert await rows(url, f"select count(*) {MINE}") != [(0,)]
    assert await rows(url, f"select count(*) {MINE} and xact_start is not null") == [(0,)]
    assert await rows(url, f"select count(*) from pg_locks where pid in (select pid {MINE})") == [(0,)]


async def test_a_repeated_request_waits_for_the_first_and_gets_the_same(url: str, opened: Open) -> None:
    """The first is still under way when its caller has given up and asks again: nothing may be leased twice."""
    store, other = await opened(), await opened()
    await store.put(news(4))
    # An open transaction of somebody who leases under the same nonce, by the same function.
    async with behind(url) as connection:
        await connection.execute(b"begin")
        call = (
            "select id from lease(null, 'w', '0:same', 0, '{q}', '{2}', '{30000}', '{2}', '{-1}', '{0}', '{-1}', '{0}')"
        )
        first = await (await connection.execute(call.encode())).fetchall()
        asking_again = asyncio.ensure_future(other.lease(asking(2, "same")))
        await somebody_waits(url, connection)
        await connection.execute(b"commit")
        again = await asking_again
    assert [item.id for item in again.items] == [item_id for (item_id,) in first]
    assert (await store.tally()).queues[0].leased == 2


async def test_time_goes_on_within_a_transaction(url: str) -> None:
    """now() would be the beginning of the transaction, and a lease shorter than it was asked for."""
    async with behind(url) as connection, connection.transaction():
        first = await (await connection.execute(b"select now_ms(null)")).fetchone()
        await connection.execute(b"select pg_sleep(0.02)")
        second = await (await connection.execute(b"select now_ms(null)")).fetchone()
        pinned = await (await connection.execute(b"select now_ms(7)")).fetchone()
    assert first is not None
    assert second is not None
    assert second[0] >= first[0] + 20
    assert pinned == (7,)


async def test_the_server_has_the_clock(url: str, opened: Open) -> None:
    store = await opened()
    ((before,),) = await rows(url, "select now_ms(null)")
    await store.put(news(1))
    ((after,),) = await rows(url, "select now_ms(null)")
    (item,) = (await store.lease(asking())).items
    assert before <= item.enqueued_at <= after


@pytest.mark.parametrize("code", ["40001", "40P01"])
async def test_a_transaction_that_must_be_repeated_is(opened: Open, code: str) -> None:
    session = await session_of(await opened())
    runs = 0

    async def work(tx: Tx) -> int:
        nonlocal runs
        runs += 1
        if runs < 3:
            await tx.execute(f"do $$ begin raise exception sqlstate '{code}'; end $$")
        return runs

    assert await session.write(work) == 3


async def test_a_transaction_is_not_repeated_for_ever(opened: Open) -> None:
    session = await session_of(await opened())
    runs = 0

    async def work(tx: Tx) -> None:
        nonlocal runs
        runs += 1
        await tx.execute("do $$ begin raise exception sqlstate '40001'; end $$")

    with pytest.raises(StoreUnavailable, match="40001"):
        await session.write(work)
    assert runs == TRIES


async def test_two_settles_of_the_same_items_in_opposite_order(opened: Open) -> None:
    """Whatever the server does about it, each is answered, and every item is ended once."""
    store, other = await opened(), await opened()
    await store.put(news(60))
    items = (await store.lease(asking(60))).items
    forth, back = finished(items), finished(items[::-1])
    settled = await asyncio.gather(*(handle.settle(way) for handle in (store, other) for way in (forth, back)))
    verdicts = [answer.verdict for result in settled for answer in result.answers]
    assert verdicts.count(Verdict.APPLIED) == 60
    assert verdicts.count(Verdict.ALREADY) == 180


# --- counters ---


async def test_counters_are_added_up_and_stay_right(url: str, opened: Open) -> None:
    store = await opened()
    for number in range(60):
        await store.put(news(1, f"p{number}"))
        await store.settle(finished((await store.lease(asking(1, f"n-{number}"))).items))
    before = (await store.tally()).queues
    ((many,),) = await rows(url, "select count(*) from counter")
    await store.beat("w", WorkerFacts(("q",)), 1_000)
    ((few,),) = await rows(url, "select count(*) from counter")
    assert (many, few) == (180, 1)
    assert (await store.tally()).queues == before


async def test_adding_up_waits_for_nobody_and_nobody_waits_for_it(url: str, opened: Open) -> None:
    store = await opened()
    for number in range(120):
        await store.put(news(1, f"p{number}"))
    async with behind(url) as connection:
        await connection.execute(b"begin")
        await connection.execute(b"select fold()")
        # Neither the next fold nor a put waits for the one under way.
        await (await session_of(store)).fold()
        await store.put(news(1))
        await connection.execute(b"commit")
    assert await rows(url, "select count(*), sum(ready) from counter") == [(2, 121)]


# --- functions ---


def test_functions_change_only_with_a_migration() -> None:
    text = "\n".join(install.functions("{schema}"))
    newest = max(migration.number for migration in migrate.known("postgres"))
    assert (newest, hashlib.sha256(text.encode()).hexdigest()[:16]) == (1, FUNCTIONS)


def test_functions_find_their_tables_whatever_the_search_path() -> None:
    tables = re.findall(r"create table \{schema\}\.(\w+)", "".join(one.text for one in migrate.known("postgres")))
    for text in install.functions("{schema}"):
        for word in ("from", "join", "into", "update", "using"):
            for table in tables:
                assert f" {word} {table} " not in text


def test_attempts_are_trimmed_as_the_core_says() -> None:
    text = load("postgres", "settle")["keep_evidence"]
    assert f"ended[o.place] > {ATTEMPTS_FIRST + ATTEMPTS_LAST}" in text
    assert f"o.nth > {ATTEMPTS_FIRST} and o.nth <= o.all_of - {ATTEMPTS_LAST}" in text
