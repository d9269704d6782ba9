"""Order, dedupe, dependencies and limits on SQLite: shared commits, plans, and work that does not grow."""

import asyncio
import re
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from redrive.core.acts import (
    Act,
    Cancel,
    Discard,
    Replay,
    Reserve,
)
from redrive.core.filters import parse
from redrive.core.item import Dedupe, NewItem, Terms
from redrive.core.select import Ids, Match
from redrive.core.verbs import (
    Duplicate,
    Held,
    PutResult,
    QueueChange,
)
from redrive.errors import BadDependency, QueueFull
from redrive.stores.sqlite import SqliteStore
from redrive.stores.sqlite.compile import compiled
from redrive.stores.sqlite.tx import Tx
from redrive.stores.statements import load
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.kit import dead, failed, finished
from tests.stores.sqlite_kit import Open, asking, lane
from tests.stores.upkeep_kit import execute

BY = Act("ops", "why not", "r-10")
MANY, FEW = 2_000, 10
Given = TypeVar("Given")


def bound(item_id: str, terms: Terms, queue: str = "q") -> NewItem:
    return NewItem(item_id, queue, b"{}", terms=terms)


# --- puts that wait together ---


async def together(store: SqliteStore, *calls: Callable[[], Awaitable[object]]) -> list[object]:
    """In one commit: the writer is busy while they come."""
    begun, over = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def hold(_: Tx) -> None:
        loop.call_soon_threadsafe(begun.set)
        over.wait(10)

    holding = asyncio.ensure_future(lane(store).submit(hold))
    await begun.wait()
    tasks = [asyncio.ensure_future(call()) for call in calls]
    await asyncio.wait(tasks, timeout=0)
    over.set()
    await holding
    return await asyncio.gather(*tasks, return_exceptions=True)


async def test_of_puts_that_wait_together_each_hears_of_its_own_twins(opened: Open) -> None:
    store = await opened()
    key = Terms(dedupe=Dedupe("k"))
    first, second = await together(
        store,
        lambda: store.put([bound("a", key), bound("b", Terms())]),
        lambda: store.put([bound("c", key), bound("d", Terms())]),
    )
    assert first == PutResult(("a", "b"))
    assert second == PutResult(("d",), (), (Duplicate("c", "a"),))


async def test_of_puts_that_wait_together_only_those_without_room_are_refused(opened: Open) -> None:
    store = await opened()
    await store.configure("q", QueueChange(capacity=2))
    results = await together(
        store, lambda: store.put([bound("a", Terms())]), *(partial(store.put, [bound(name, Terms())]) for name in "bc")
    )
    assert [type(result) for result in results] == [PutResult, PutResult, QueueFull]
    assert (await store.tally()).queues[0].ready == 2


async def test_puts_that_wait_together_cannot_wait_for_each_other(opened: Open) -> None:
    store = await opened()
    results = await together(
        store,
        lambda: store.put([bound("a", Terms(after=("b",)))]),
        lambda: store.put([bound("b", Terms(after=("a",)))]),
    )
    assert [type(result) for result in results] == [BadDependency, BadDependency]


# --- plans ---


def counted(sql: str) -> tuple[None, ...]:
    """As many values as a statement takes: those with a number may stand in it more than once."""
    numbered = {int(number) for number in re.findall(r"\?(\d+)", sql)}
    return (None,) * (max(numbered) if numbered else sql.count("?"))


HOT = ("put", "terms", "order", "after", "dedupe", "limits", "lease", "settle", "extend", "count", "reclaim")
STOPS_AT_ONCE = {"any_tombstone"}
"""Asks whether a table has a row at all."""
ALIASES = frozenset("itplnfeads")


@pytest.mark.parametrize("verb", HOT)
async def test_no_statement_of_the_hot_verbs_scans_a_table(opened: Open, path: Path, verb: str) -> None:
    await (await opened()).close()
    with closing(sqlite3.connect(path)) as connection:
        tables = {table for (table,) in connection.execute("select name from sqlite_master where type = 'table'")}
        for name, sql in load("sqlite", verb).items():
            plan = [row[3] for row in connection.execute(f"explain query plan {sql}", counted(sql))]
            scanned = [step for step in plan if step.startswith("SCAN") and step.split()[1] in tables | ALIASES]
            assert scanned == [] or name in STOPS_AT_ONCE, name


async def test_the_ready_are_read_in_the_order_of_their_index(opened: Open, path: Path) -> None:
    await (await opened()).close()
    for name in ("pick", "waiting"):
        sql = load("sqlite", "lease")[name]
        with closing(sqlite3.connect(path)) as connection:
            plan = [row[3] for row in connection.execute(f"explain query plan {sql}", counted(sql))]
        assert any("item_ready (queue=? AND kind=? AND level=? AND due_at<?)" in step for step in plan), plan
        assert not any("TEMP B-TREE" in step for step in plan), plan


@pytest.mark.parametrize(("field", "index"), [("key", "terms_key"), ("route", "letter_route")])
async def test_keys_and_routes_are_found_by_an_index(opened: Open, path: Path, field: str, index: str) -> None:
    await (await opened()).close()
    letters = field == "route"
    where, values = compiled(Match(field, "=", "x"), 0, letters=letters)
    sql = load("sqlite", "find")["letters" if letters else "items"].replace("{where}", where)
    with closing(sqlite3.connect(path)) as connection:
        rest = (0,) * (sql.count("?") - len(values))
        plan = [row[3] for row in connection.execute(f"explain query plan {sql}", (*values, *rest))]
    assert any(f"INDEX {index} (" in step for step in plan), plan


@pytest.mark.parametrize("verb", ["find", "find_oldest"])
async def test_open_letters_of_a_route_are_walked_in_the_order_of_its_index(
    opened: Open, path: Path, verb: str
) -> None:
    """From both ends: a page costs what is on it, however many letters there are."""
    await (await opened()).close()
    where, values = compiled(parse("state:dead disposition:open route:x"), 0, letters=True)
    sql = load("sqlite", verb)["letters"].replace("{where}", where)
    with closing(sqlite3.connect(path)) as connection:
        rest = (0,) * (sql.count("?") - len(values))
        plan = [row[3] for row in connection.execute(f"explain query plan {sql}", (*values, *rest))]
    assert "letter_route (route=? AND disposition=? AND died_at>? AND died_at<?)" in plan[0], plan
    assert not any("TEMP B-TREE" in step for step in plan), plan


async def test_what_is_not_used_costs_no_statement(opened: Open) -> None:
    """As many as before there was anything that binds items or bounds queues."""
    store = await opened()
    seen: list[str] = []

    def trace(tx: Tx) -> None:
        assert isinstance(tx.connection, sqlite3.Connection)
        tx.connection.set_trace_callback(seen.append)

    await lane(store).submit(trace)
    counts: list[int] = []

    async def counted(call: Awaitable[Given]) -> Given:
        seen.clear()
        given = await call
        counts.append(len(seen))
        return given

    await counted(store.put([NewItem(name, "q", b"{}") for name in "abcdef"]))
    (first,) = (await counted(store.lease(asking(1)))).items
    settled = await counted(store.settle([finished(first)], asking(3, nonce="n-2")))
    assert settled.leases is not None
    again, letter, last = settled.leases.items
    await counted(store.settle([failed(again), dead(letter)]))
    await counted(store.extend([Held(last.id, 1)], 90_000))
    await counted(store.lease(asking(queue="nothing", nonce="n-3")))
    # Each row of an executemany is one: put has 6 items with 6 payloads.
    # A letter costs two: its change number is taken and kept.
    assert counts == [19, 9, 12, 13, 3, 5]
    await store.amend(Ids((letter.id,)), Reserve("replay"), BY)
    counts.clear()
    await counted(store.put([NewItem(name, "r", b"{}") for name in "ghijkl"]))
    (other,) = (await counted(store.lease(asking(1, queue="r", nonce="n-4")))).items
    await counted(store.settle([finished(other)], asking(3, queue="r", nonce="n-5")))
    assert counts == [19, 9, 12], "letters, change numbers and reservations cost other queues nothing"


# --- work that does not grow with what waits ---


class Steps:
    """How much SQLite does in the writer, in its own steps: the same every time, however busy the machine is."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._count = 0

    def _one_more(self) -> bool:
        self._count += 1
        return False

    async def of(self, work: Callable[[], Awaitable[object]]) -> int:
        await lane(self._store).submit(lambda tx: tx.connection.watch(self._one_more, 10))
        self._count = 0
        await work()
        steps = self._count
        await lane(self._store).submit(lambda tx: tx.connection.watch(None, 0))
        return steps


async def line_of(store: SqliteStore, waiting: int) -> None:
    await store.put([bound(f"i-{n}", Terms(order_key="k")) for n in range(waiting)])


async def ends_a_head(store: SqliteStore) -> None:
    (item,) = (await store.lease(asking())).items
    await store.settle([finished(item)], asking(nonce="n-2"))


async def buries_a_head(store: SqliteStore) -> None:
    (item,) = (await store.lease(asking())).items
    await store.settle([dead(item)])
    await store.amend(Ids((item.id,)), Replay(), BY)


async def parks_and_discards(store: SqliteStore) -> None:
    await store.configure("q", QueueChange(order="park"))
    (item,) = (await store.lease(asking())).items
    await store.settle([dead(item)])
    await store.amend(Ids((item.id,)), Discard(), BY)


async def cancels_a_follower(store: SqliteStore) -> None:
    await store.amend(Ids(("i-5",)), Cancel(), BY)


async def twins(store: SqliteStore, waiting: int) -> None:
    await store.put([bound(f"i-{n}", Terms(dedupe=Dedupe(f"k-{n}"))) for n in range(waiting)])


async def puts_twins(store: SqliteStore) -> None:
    result = await store.put([bound("twin", Terms(dedupe=Dedupe("k-5"))), bound("new", Terms(dedupe=Dedupe("new")))])
    assert (result.added, result.duplicates) == (("new",), (Duplicate("twin", "i-5"),))


async def dependents(store: SqliteStore, waiting: int) -> None:
    """One waits for the first; all others for one that is not done."""
    await store.put([NewItem("first", "q", b""), NewItem("never", "q", b"", delay=1_000_000)])
    await store.put([bound(f"i-{n}", Terms(after=("never" if n else "first",))) for n in range(waiting)])


async def fulfils_one(store: SqliteStore) -> None:
    (item,) = (await store.lease(asking())).items
    await store.settle([finished(item)])
    assert [item.id for item in (await store.lease(asking(nonce="n-2"))).items] == ["i-0"]


async def limited(store: SqliteStore, waiting: int) -> None:
    """As many as a call sets aside at most are so in each."""
    await store.configure("q", QueueChange(max_per_key=1))
    await store.put([bound(f"i-{n}", Terms(limit_key="k")) for n in range(waiting)])
    for n in range(waiting // 1_000 + 1):
        await store.lease(asking(1 if n == 0 else 1_000, nonce=f"l-{n}"))


async def ends_one_of_its_key(store: SqliteStore) -> None:
    (item,) = (await store.find(Match("state", "=", "leased"))).items
    await store.settle([finished(item)], asking(nonce="n-2"))


Case = tuple[Callable[[SqliteStore, int], Awaitable[None]], Callable[[SqliteStore], Awaitable[None]]]
CASES: Sequence[Case] = (
    (line_of, ends_a_head),
    (line_of, buries_a_head),
    (line_of, parks_and_discards),
    (line_of, cancels_a_follower),
    (twins, puts_twins),
    (dependents, fulfils_one),
    (limited, ends_one_of_its_key),
)


@pytest.mark.slow
@pytest.mark.parametrize(("prepare", "work"), CASES, ids=lambda one: one.__name__)
async def test_work_does_not_grow_with_what_waits(
    opened: Open,
    tmp_path: Path,
    prepare: Callable[[SqliteStore, int], Awaitable[None]],
    work: Callable[[SqliteStore], Awaitable[None]],
) -> None:
    steps: list[int] = []
    for waiting in (FEW, MANY):
        store = await opened(tmp_path / f"{waiting}.db", clock=FakeClock(), durability="process-crash")
        await prepare(store, waiting)
        steps.append(await Steps(store).of(partial(work, store)))
        assert (await store.check(quick=True)).findings == ()
    few, many = steps
    assert 0 < many <= few * 1.2, steps


# --- what check finds ---


async def bonds(store: SqliteStore) -> None:
    """Something of each kind."""
    await store.configure("q", QueueChange(max_per_key=1))
    await store.put([bound(name, Terms(order_key="k")) for name in ("head", "next", "last")])
    await store.put([bound(name, Terms(limit_key="l")) for name in ("runs", "aside")])
    await store.put([bound("waits", Terms(after=("last",), dedupe=Dedupe("d")))])
    await store.lease(asking())


HARM: dict[str, tuple[str, str, str]] = {
    "a head that is not there": ("update line set head = 999", "lines", "q: k"),
    "a count of followers that is wrong": ("update line set waiting = 7", "lines", "q: k"),
    "a follower that was lost": ("delete from follower where place = 3", "lines", "last"),
    "a follower that is free": ("update item set hold = 0 where id = 'next'", "lines", "next"),
    "a hold of what runs": ("update item set hold = 2 where id = 'head'", "holds", "head"),
    "a place under a limit key too many": ("update slot set running = 2", "slots", "q: l"),
    "one set aside that is free": ("update item set hold = 0 where id = 'aside'", "slots", "aside"),
    "one set aside that was lost": ("delete from aside", "holds", "aside"),
    "a dependency that was lost": ("delete from edge", "holds", "waits"),
    "a dependency of nobody": ("insert into edge values ('head', 999, 0)", "dependencies", "#999"),
    "a dedupe key of nobody": ("update dedupe set seq = 999", "dedupe", "d"),
    "terms of nobody": ("insert into terms (seq) values (999)", "terms", "#999"),
    "a counter of the held": ("update queue set held = held + 1", "counters", "q: held 5 (there are 4)"),
    "a counter of a route": ("insert into route (name, open) values ('r', 2)", "routes", "r: 2 (there are 0)"),
}


@pytest.mark.parametrize("harm", HARM)
async def test_check_finds_what_binds_items_wrongly(opened: Open, path: Path, harm: str) -> None:
    store = await opened()
    await bonds(store)
    assert (await store.check()).findings == ()
    await store.close()
    statement, kind, example = HARM[harm]
    execute(path, statement)
    found = (await (await opened()).check()).findings
    assert example in [name for finding in found if finding.kind == kind for name in finding.examples], found
