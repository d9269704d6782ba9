"""Change numbers on PostgreSQL: in the order in which they can be seen, whatever commits in whichever order."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from redrive.core.acts import Archive, Discard, Reserve
from redrive.core.item import NewItem, Terms
from redrive.core.select import Ids
from redrive.stores.postgres import PostgresStore
from tests.stores.postgres_hot_kit import *  # noqa: F403 - the fixtures are meant
from tests.stores.postgres_hot_kit import Open, asking, finished, gone, news
from tests.stores.postgres_kit import act, behind, failure, letters, rows, somebody_waits
from tests.stores.test_postgres_within import dsn

pytestmark = pytest.mark.slow


@pytest.fixture
async def store(opened: Open) -> PostgresStore:
    return await opened()


def doomed(item_id: str, awaited: str) -> NewItem:
    """It enters as a letter."""
    return NewItem(item_id, "q", b"{}", terms=Terms(after=(awaited,), on_dead="die"))


async def ids_after(store: PostgresStore, number: int) -> tuple[int, list[str]]:
    found = await store.changes(number)
    return (found[-1].number if found else number), [one.id for one in found]


async def test_an_open_transaction_keeps_no_reader_waiting_and_loses_nothing(url: str, store: PostgresStore) -> None:
    """Two are open; the second commits first and is read; then the first commits, and is not missed."""
    one, two = await letters(store, failure(), failure())
    last, _ = await ids_after(store, 0)
    async with (
        await psycopg.AsyncConnection.connect(dsn(url)) as first,
        await psycopg.AsyncConnection.connect(dsn(url)) as second,
    ):
        await store.put([doomed("early", one)], within=first)
        await store.put([doomed("late", two)], within=second)
        await second.commit()
        last, found = await ids_after(store, last)
        assert found == ["late"], "the other has noted its change before, and is not done"
        await first.commit()
    last, found = await ids_after(store, last)
    assert found == ["early"]
    async with await psycopg.AsyncConnection.connect(dsn(url)) as third:
        await store.put([doomed("never", one)], within=third)
        await third.rollback()
    assert await ids_after(store, last) == (last, [])


async def test_writers_do_not_wait_for_who_numbers(url: str, store: PostgresStore) -> None:
    one, two = await letters(store, failure(), failure())
    async with behind(url) as connection:
        await connection.execute(b"begin")
        await connection.execute(b"select number_changes()")
        assert (await store.amend(Ids((one,)), Archive(), act("r-2"))).changed == (one,)
        reading = asyncio.ensure_future(store.changes())
        await somebody_waits(url, connection)
        await connection.execute(b"commit")
    assert [change.id for change in await reading] == [two, one]


async def test_numbers_are_given_where_nobody_reads(url: str, store: PostgresStore) -> None:
    """Once there are many, or what is to be numbered would grow with every change."""
    await letters(store, *[failure()] * 60)
    await rows(url, "select fold()")
    assert await rows(url, "select count(*) from unnumbered") == [(60,)]
    again = "insert into unnumbered (seq) select l.seq from letter l cross join generate_series(1, 200) returning 1"
    assert len(await rows(url, again)) == 12_000
    await rows(url, "select fold()")
    assert await rows(url, "select count(*) from unnumbered") == [(0,)]
    assert await rows(url, "select count(*) from change") == [(60,)]


async def test_a_letter_pruned_between_the_two_looks_comes_later(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = await letters(store, failure())
    await store.amend(Ids((one,)), Discard(), act("r-2"))
    session = await store._here()  # noqa: SLF001 - between two of its statements
    page = session.page

    async def pruned(statement: str, params: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
        monkeypatch.undo()
        await store.prune(Ids((one,)), 1, act("r-3"))
        return await page(statement, params)

    monkeypatch.setattr(session, "page", pruned)
    (change,) = await store.changes()
    assert (change.id, change.item) == (one, None)


async def test_numbers_and_reservations_cost_items_that_are_no_letters_nothing(unused: str, opened: Open) -> None:
    """The same writes without any letters as beside them, and no look at what letters alone have."""
    counted = (
        "select relname, n_tup_ins + n_tup_upd + n_tup_del, seq_scan + coalesce(idx_scan, 0) "
        "from pg_stat_user_tables where schemaname = current_schema()"
    )

    async def work(prefix: str) -> dict[str, tuple[int, int]]:
        """Writes to each table, and looks into it."""
        before = {name: counts for name, *counts in await rows(unused, counted)}
        store = await opened(where=unused)
        await store.put(news(20, prefix))
        await store.settle(finished((await store.lease(asking(20, prefix))).items))
        await store.close()
        await gone(unused)
        after = {name: counts for name, *counts in await rows(unused, counted)}
        return {name: (wrote - before[name][0], looked - before[name][1]) for name, (wrote, looked) in after.items()}

    await (await opened(where=unused)).close()
    await gone(unused)
    plain = await work("plain")
    store = await opened(where=unused)
    await store.amend(Ids(tuple(await letters(store, failure(), failure()))), Reserve("replay"), act("r-2"))
    await store.close()
    await gone(unused)
    beside = await work("beside")
    assert {name: wrote for name, (wrote, _) in beside.items()} == {name: wrote for name, (wrote, _) in plain.items()}
    for of_letters in ("change", "unnumbered", "letter"):
        assert beside[of_letters] == plain[of_letters] == (0, 0), of_letters
