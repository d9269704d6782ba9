"""What binds items on PostgreSQL: what is looked at to find the next one, who waits for whom, and who does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import psycopg
import pytest

from redrive.core.acts import Cancel, Replay
from redrive.core.decide import ToDone
from redrive.core.item import Dedupe, Item, NewItem, Terms
from redrive.core.select import Ids, Match
from redrive.core.states import State
from redrive.core.terms import DEPENDENCY, DEPENDENCY_BYTES, DEPENDENCY_FAILURE
from redrive.core.verbs import (
    Duplicate,
    LeaseRequest,
    PutResult,
    QueueChange,
    Settlement,
    Want,
)
from redrive.errors import BadDependency, QueueFull
from redrive.stores.postgres import PostgresStore
from redrive.stores.statements import load
from tests.stores.postgres_hot_kit import *  # noqa: F403 - the fixtures are meant
from tests.stores.postgres_hot_kit import Open, keep_from_statistics
from tests.stores.postgres_kit import act, behind, execute, rows, somebody_waits

MANY = 2_000
FEW = 300
"""Rows to look at for the end of one item and the lease of the next; a walk through all is far beyond."""
SMALL = ("counter", "cause", "queue", "pace", "gate", "route", "migration", "journal", "deed")
"""Tables that do not grow with what waits: sums of counters are read as a whole."""
SCANNED = f"""
    select coalesce(sum(pg_stat_get_xact_tuples_fetched(c.oid) + pg_stat_get_xact_tuples_returned(c.oid)), 0)::bigint
    from pg_class c where c.relnamespace = current_schema()::regnamespace and c.relkind in ('r', 'i')
      and c.oid not in (select t.oid from pg_class t where t.relname in {SMALL!r} and t.relkind = 'r')
"""


def bound(item_id: str, queue: str = "q", **terms: object) -> NewItem:
    return NewItem(item_id, queue, b"{}", terms=Terms(**terms))  # type: ignore[arg-type]


def wanting(limit: int, nonce: str, queue: str = "q", worker: str = "w") -> LeaseRequest:
    return LeaseRequest(worker, (Want(queue, limit, 30_000, 3),), nonce)


def done(items: Sequence[Item]) -> list[Settlement]:
    return [Settlement(item.id, item.deliveries, ToDone()) for item in items]


# --- what is looked at ---


@pytest.fixture
async def store(url: str, opened: Open) -> PostgresStore:
    await keep_from_statistics(url)
    return await opened()


async def looked_at(url: str, *statements: str) -> int:
    """Rows and index entries, for these statements in one transaction that is undone."""
    async with behind(url) as connection:
        await connection.execute(b"begin")
        for statement in statements:
            await connection.execute(statement.encode())
        ((count,),) = await (await connection.execute(SCANNED.encode())).fetchall()
        await connection.execute(b"rollback")
    return int(count)


NOTHING = "null, " * 38
LEASE = "select * from lease(null, 'x', 'x', 0, '{q}', '{1}', '{30000}', '{2}', '{-1}', '{0}', '{-1}', '{0}')"


def settle(seq: int, delivery: int) -> str:
    """Done, and the next one is leased."""
    then = "'x', 'x', 0, '{q}', '{1}', '{30000}', '{2}', '{-1}', '{0}', '{-1}', '{0}'"
    return f"select * from settle(null, '{{{seq}}}', null, '{{{delivery}}}', true, {NOTHING}{then})"


TABLES = "select relname from pg_class where relnamespace = current_schema()::regnamespace and relkind = 'r'"


def put(item_id: str, terms: str) -> str:
    """`terms`: order key, limit key, scope, dedupe key, and what it waits for."""
    order_key, limit_key, scope, dedupe_key, after = terms.split(",")
    places, ids = ("{1}", f"{{{after}}}") if after else ("{}", "{}")
    return f"""select * from put(
        null, '{{{item_id}}}', '{{q}}', '{{0}}', '{{2745614147}}', '{{0}}', array['{{}}'::bytea], null, null,
        '{{1}}', '{{"{order_key}"}}', '{{"{limit_key}"}}', '{{"{scope}"}}', '{{"{dedupe_key}"}}', '{{-1}}', '{{0}}',
        array['{{}}'::bytea], '{places}', '{ids}', null, null, true
    )"""


async def statistics(url: str) -> None:
    """Of our own tables: others on this server count on theirs."""
    await execute(url, *[f"analyze {table}" for (table,) in await rows(url, TABLES)])


async def are_few(url: str, *statements: str) -> None:
    """Each looks at few rows, before there are statistics and with them."""
    for known in (False, True):
        if known:
            await statistics(url)
        for statement in statements:
            assert await looked_at(url, statement) < FEW, (known, statement)


async def test_the_next_of_a_key_is_found_without_a_look_at_the_others(url: str, store: PostgresStore) -> None:
    await store.put([bound(f"i-{n}", order_key="one") for n in range(MANY)])
    await store.put([bound(f"k-{n}", order_key=f"k-{n}") for n in range(MANY // 4)])
    (head,) = (await store.lease(wanting(1, "n"))).items
    assert head.id == "i-0"
    await are_few(url, settle(head.seq, 1), put("more", "one,,,,"))
    assert (await looked_at(url, "select * from item where crc < 0")) >= MANY, "this is how a walk shows"
    await store.settle(done([head]))
    assert (await store.get("i-1")).item.hold == ""
    assert (await store.get("i-2")).blocked_by == ("i-1",)


async def test_those_who_wait_for_an_item_are_found_without_a_look_at_the_others(
    url: str, store: PostgresStore
) -> None:
    await store.put([NewItem(f"a-{n}", "q", b"{}") for n in range(MANY // 2)])
    await store.put([bound(f"b-{n}", after=(f"a-{n}",)) for n in range(MANY // 2)])
    (first,) = (await store.lease(wanting(1, "n"))).items
    await are_few(url, settle(first.seq, 1), put("more", ",,,,a-7"))
    await store.settle(done([first]))
    assert [(await store.get(item_id)).item.hold for item_id in ("b-0", "b-1")] == ["", "after"]


async def test_who_has_a_dedupe_key_is_found_without_a_look_at_the_others(url: str, store: PostgresStore) -> None:
    await store.put([bound(f"i-{n}", dedupe=Dedupe(f"k-{n}")) for n in range(MANY)])
    (first,) = (await store.lease(wanting(1, "n"))).items
    await are_few(url, put("twin", ",,q,k-77,"), settle(first.seq, 1))
    assert (await store.put([bound("twin", dedupe=Dedupe("k-77"))])).duplicates == (Duplicate("twin", "i-77"),)


# --- in a caller's own transaction ---


@pytest.fixture
async def mine(url: str) -> AsyncIterator[psycopg.AsyncConnection[tuple[object, ...]]]:
    async with behind(url) as connection:
        yield connection


async def test_a_refused_put_leaves_the_callers_transaction_whole(
    url: str, opened: Open, mine: psycopg.AsyncConnection[tuple[object, ...]]
) -> None:
    store = await opened()
    await store.put([bound("holder", dedupe=Dedupe("k"))])
    await store.configure("small", QueueChange(capacity=1))
    await store.put([NewItem("s-1", "small", b"{}")])
    async with mine.transaction():
        for more in ([NewItem("s-2", "small", b"{}")], [bound("s-3", "small", order_key="o", dedupe=Dedupe("free"))]):
            with pytest.raises(QueueFull, match="holds 1 of at most 1"):
                await store.put(more, within=mine)
        with pytest.raises(BadDependency, match="no item 'nobody'"):
            await store.put([bound("w", after=("nobody",), order_key="o")], within=mine)
        twin = bound("twin", dedupe=Dedupe("k"))
        assert await store.put([twin], within=mine) == PutResult((), (), (Duplicate("twin", "holder"),))
        assert (await store.put([bound("kept", order_key="o", limit_key="l")], within=mine)).added == ("kept",)
    assert (await store.get("kept")).item.terms == Terms(order_key="o", limit_key="l")
    assert await rows(url, "select count(*) from dedupe") == [(1,)]
    assert (await store.check()).findings == ()


async def test_an_open_transaction_keeps_its_keys_and_nobody_from_leasing(
    url: str, opened: Open, mine: psycopg.AsyncConnection[tuple[object, ...]]
) -> None:
    store = await opened()
    await store.configure("q", QueueChange(capacity=100, max_running=50))
    await store.put([bound("a", order_key="k"), bound("b", order_key="k"), NewItem("plain", "q", b"{}")])
    (head, plain) = (await store.lease(wanting(5, "n"))).items
    async with mine.transaction():
        await store.put([bound("c", order_key="k"), bound("d", dedupe=Dedupe("x"))], within=mine)
        # Others lease and settle what has nothing to do with it.
        await store.settle(done([plain]))
        assert (await store.lease(wanting(5, "n2"))).items == ()
        ending = asyncio.ensure_future(store.settle(done([head])))
        twin = asyncio.ensure_future(store.put([bound("twin", dedupe=Dedupe("x"))]))
        await somebody_waits(url, mine)
        assert not ending.done()
    await ending
    assert (await twin).duplicates == (Duplicate("twin", "d"),)
    assert [item.id for item in (await store.lease(wanting(5, "n3"))).items] == ["b", "d"]
    assert (await store.get("c")).blocked_by == ("b",)
    assert (await store.check()).findings == ()


async def test_a_put_and_the_end_of_what_it_waits_for_never_miss_each_other(
    url: str, opened: Open, mine: psycopg.AsyncConnection[tuple[object, ...]]
) -> None:
    """The put is not committed yet when the end comes: the end waits, and then frees what was put."""
    store = await opened()
    await store.put([NewItem("a", "q", b"{}")])
    items = (await store.lease(wanting(1, "n"))).items
    async with mine.transaction():
        await store.put([bound("b", after=("a",))], within=mine)
        ending = asyncio.ensure_future(store.settle(done(items)))
        await somebody_waits(url, mine)
    await ending
    assert [item.id for item in (await store.lease(wanting(1, "n2"))).items] == ["b"]


async def test_a_put_that_is_rolled_back_leaves_no_trace(
    url: str, opened: Open, mine: psycopg.AsyncConnection[tuple[object, ...]]
) -> None:
    store = await opened()
    await store.put([NewItem("a", "q", b"{}")])
    await mine.execute(b"begin")
    await store.put([bound("b", order_key="k", dedupe=Dedupe("x"), after=("a",))], within=mine)
    await mine.execute(b"rollback")
    for table in ("line", "follower", "dedupe", "edge", "terms"):
        assert await rows(url, f"select count(*) from {table}") == [(0,)]
    assert (await store.put([bound("b", order_key="k", dedupe=Dedupe("x"))])).added == ("b",)
    assert (await store.check()).findings == ()


# --- many at once ---


async def test_cancelling_many_while_their_heads_end_waits_for_nobody_in_a_ring(url: str, opened: Open) -> None:
    """Both want lines and items: always lines first."""
    store, other = await opened(), await opened()
    await store.put([bound(f"i-{n:03}", order_key=f"k-{n % 10}") for n in range(200)])
    items = (await store.lease(wanting(10, "n"))).items
    everything = Ids(tuple([f"i-{n:03}" for n in range(200)]))
    amended, _ = await asyncio.gather(other.amend(everything, Cancel(), act()), store.settle(done(items)))
    ids = [item.id for item in items]
    left = {item.id: item for item in (await store.find(Match("queue", "=", "q"), 1_000)).items}
    assert {left[item_id].state for item_id in ids} == {State.DONE}
    assert {item.state for item in left.values() if item.id not in ids} == {State.CANCELLED}
    assert len(amended.changed) in {190, 200}
    assert await rows(url, "select count(*) from line") == [(0,)]
    assert (await store.check()).findings == ()


async def test_a_letter_whose_wait_has_no_end_runs_only_if_forced(opened: Open) -> None:
    """And does not take its dedupe key meanwhile."""
    store = await opened()
    await store.put([bound("lost", "other"), bound("also", "other")])
    letter = bound("letter", order_key="line", after=("lost", "also"), on_dead="die", dedupe=Dedupe("key"))
    await store.put([letter, bound("next", order_key="line")])
    await store.amend(Ids(("lost",)), Cancel(), act())
    amended = await store.amend(Ids(("letter",)), Replay(), act())
    assert [(one.id, one.reason) for one in amended.skipped] == [
        ("letter", "it waits for lost, which was cancelled; force runs it without waiting")
    ]
    assert (await store.put([bound("twin", dedupe=Dedupe("key"))])).added == ("twin",)
    assert (await store.amend(Ids(("letter",)), Replay(force=True), act())).changed == ("letter",)
    assert {item.id for item in (await store.lease(wanting(5, "n"))).items} == {"letter", "twin"}
    history = await store.get("next")
    assert history is not None
    assert getattr(history, "blocked_by", None) == ("letter",)
    assert (await store.check()).findings == ()


# --- words ---


def test_letters_of_dependencies_say_what_the_core_says() -> None:
    text = "".join(load("postgres", "bonds")["die"].split("\n"))
    pieces = [piece for piece in text.split("'") if '"' in piece or piece.startswith(",")]
    assert DEPENDENCY_BYTES.decode() in "".join([piece for piece in pieces if '"' in piece])
    why = DEPENDENCY_FAILURE
    for word in (DEPENDENCY, why.type, why.type.rpartition(".")[2], why.category, why.rule, why.cause):
        assert f"'{word}'" in text
