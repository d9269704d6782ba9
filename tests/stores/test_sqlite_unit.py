"""What is special to SQLite: one writer and shared commits, the file and its schema."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from redrive.core.acts import Act, Discard
from redrive.core.item import Item, NewItem
from redrive.core.select import EVERYTHING, And, Ids, Match, Not, Or, Selection, matches
from redrive.core.verbs import (
    DocumentWrite,
    PutResult,
    Verdict,
)
from redrive.errors import (
    ConfigError,
    Conflict,
    OutcomeUnknown,
    StoreCorrupt,
    StoreError,
    StoreTooNew,
    StoreUnavailable,
)
from redrive.stores.clock import StoreTime, SystemClock
from redrive.stores.migrate import known
from redrive.stores.sqlite import SqliteStore, boot, checkpoint, connect, writer
from redrive.stores.sqlite.binding import Connection
from redrive.stores.sqlite.put import put
from redrive.stores.sqlite.tx import Tx
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.kit import dead, failure, finished
from tests.stores.sqlite_kit import Open, asking, exists, lane, new
from tests.stores.upkeep_kit import fill, rows
from tests.support.migrations import add_migration

NEWEST = known("sqlite")[-1].number


@asynccontextmanager
async def busy(store: SqliteStore) -> AsyncIterator[None]:
    """Keeps the writer at work, so that what is asked meanwhile gathers for the next commit."""
    begun, over = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def hold(_: Tx) -> None:
        loop.call_soon_threadsafe(begun.set)
        over.wait(10)

    holding = asyncio.ensure_future(lane(store).submit(hold))
    await begun.wait()
    try:
        yield
    finally:
        over.set()
        await holding


async def gathered(*calls: Awaitable[Any]) -> list[asyncio.Future[Any]]:
    """Started, so that their closures wait in the order given."""
    tasks: list[asyncio.Future[Any]] = [asyncio.ensure_future(call) for call in calls]
    await asyncio.wait(tasks, timeout=0)
    return tasks


async def answers(tasks: list[asyncio.Future[Any]]) -> list[Any]:
    return await asyncio.gather(*tasks, return_exceptions=True)


# --- one writer, shared commits ---


async def test_concurrent_puts_share_a_commit(opened: Open) -> None:
    store = await opened()
    before = lane(store).commits
    async with busy(store):
        tasks = await gathered(*(store.put([new(f"i-{n}")]) for n in range(writer.GROUP + 10)))
    await asyncio.gather(*tasks)
    # The one that kept the writer busy, one full group, and the rest.
    assert lane(store).commits - before == 3
    assert (await store.tally()).queues[0].ready == writer.GROUP + 10


@pytest.mark.parametrize("refused", [False, True])
async def test_puts_that_wait_together_answer_each_for_itself(
    opened: Open, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    """Also when they cannot be done as one and each goes alone."""
    store = await opened()
    await store.put([new("old")])

    sizes: list[int] = []

    def put_few(tx: Tx, items: Sequence[NewItem]) -> PutResult:
        sizes.append(len(items))
        result = put(tx, items)
        if refused and len(items) > 2:
            raise sqlite3.DataError("string or blob too big")
        return result

    monkeypatch.setattr(writer, "put", put_few)
    async with busy(store):
        tasks = await gathered(store.put([new("a"), new("old")]), store.put([new("b", queue="other")]))
    assert await answers(tasks) == [PutResult(("a",), ("old",)), PutResult(("b",))]
    assert {row.queue: row.ready for row in (await store.tally()).queues} == {"other": 1, "q": 2}
    assert sizes == ([3, 2, 1] if refused else [3])


async def test_of_puts_that_bring_the_same_id_one_adds_it(opened: Open) -> None:
    store = await opened()
    async with busy(store):
        tasks = await gathered(*(store.put([new("same")]) for _ in range(5)))
    results = await answers(tasks)
    assert sorted(len(result.added) for result in results) == [0, 0, 0, 0, 1]
    assert (await store.tally()).queues[0].ready == 1


async def test_a_closure_that_fails_fails_alone(opened: Open) -> None:
    store = await opened()
    await store.write_documents([DocumentWrite("k", "a", b"1")])

    def mistake(tx: Tx) -> None:
        tx.execute("insert into document (kind, key, version, body) values ('k', 'c', 1, x'00')")
        raise ZeroDivisionError

    async with busy(store):
        tasks = await gathered(
            store.put([new("before")]),
            store.write_documents([DocumentWrite("k", "b", b"1"), DocumentWrite("k", "a", b"2", expect=7)]),
            lane(store).submit(mistake),
            lane(store).submit(lambda tx: tx.execute("insert into item (id) values ('half')")),
            store.put([new("after")]),
        )
    first, conflict, own, refused, last = await answers(tasks)
    assert (first.added, last.added) == (("before",), ("after",))
    assert isinstance(conflict, Conflict)
    assert isinstance(own, ZeroDivisionError)
    assert isinstance(refused, StoreUnavailable)
    assert [document.key for document in await store.documents("k")] == ["a"]
    assert (await store.tally()).queues[0].ready == 2


async def test_a_failed_closure_alone_in_its_commit_leaves_nothing(opened: Open) -> None:
    store = await opened()
    with pytest.raises(Conflict):
        await store.write_documents([DocumentWrite("k", "b", b"1"), DocumentWrite("k", "a", b"2", expect=7)])
    assert await store.documents("k") == ()
    await store.put([new("next")])


def make_orphans_possible(tx: Tx) -> None:
    tx.execute("create table parent (id integer primary key)")
    tx.execute("create table child (parent references parent (id) deferrable initially deferred)")


async def test_a_failed_commit_fails_all_and_leaves_nothing(opened: Open) -> None:
    """A deferred foreign key makes SQLite itself refuse the COMMIT, after every statement has succeeded."""
    store = await opened()
    await lane(store).submit(make_orphans_possible)
    async with busy(store):
        tasks = await gathered(
            store.put([new("one")]),
            lane(store).submit(lambda tx: tx.change("insert into child (parent) values (1)")),
            store.put([new("two")]),
        )
    results = await answers(tasks)
    assert [type(result) for result in results] == [StoreUnavailable] * 3
    assert not await exists(store, "one")
    assert not await exists(store, "two")
    assert (await store.tally()).queues == ()
    assert (await store.put([new("one")])).added == ("one",)


@pytest.mark.parametrize("there", [True, False])
async def test_a_commit_that_nobody_can_tell_is_an_unknown_outcome(
    opened: Open, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    store = await opened()
    commit = lane(store).commit

    def failing(connection: Connection) -> None:
        if there:
            commit(connection)
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_IOERR_FSYNC, "SQLITE_IOERR_FSYNC"
        raise error

    monkeypatch.setattr(lane(store), "commit", failing)
    with pytest.raises(OutcomeUnknown, match="SQLITE_IOERR_FSYNC"):
        await store.put([new("one")])
    monkeypatch.undo()
    repeated = await store.put([new("one")])
    assert (repeated.added, repeated.already) == (((), ("one",)) if there else (("one",), ()))
    assert (await store.tally()).queues[0].ready == 1


async def test_a_locked_database_is_said_and_survived(opened: Open, path: Path) -> None:
    store = await opened(busy_timeout="50ms")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("begin immediate")
    with pytest.raises(StoreUnavailable, match="database is locked"):
        await store.put([new("one")])
    other.execute("rollback")
    other.close()
    assert (await store.put([new("one")])).added == ("one",)


async def test_a_cancelled_call_that_has_not_begun_never_happens(opened: Open) -> None:
    store = await opened()
    async with busy(store):
        (task,) = await gathered(store.put([new("one")]))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await store.put([new("two")])
    assert not await exists(store, "one")


async def test_a_cancelled_call_that_has_begun_is_over_when_it_returns(opened: Open) -> None:
    store = await opened()
    begun, over = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow(tx: Tx) -> None:
        loop.call_soon_threadsafe(begun.set)
        over.wait(10)
        tx.execute("insert into document (kind, key, version, body) values ('k', 'a', 1, x'00')")

    task = asyncio.ensure_future(lane(store).submit(slow))
    await begun.wait()
    task.cancel()
    loop.call_soon(over.set)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await store.document("k", "a") is not None


async def test_close_serves_what_was_accepted(opened: Open, path: Path) -> None:
    store = await opened()
    async with busy(store):
        tasks = await gathered(*(store.put([new(f"i-{n}")]) for n in range(100)))
        closing = asyncio.ensure_future(store.close())
    await closing
    assert all(result.added for result in await asyncio.gather(*tasks))
    again = await opened(path)
    assert (await again.tally()).queues[0].ready == 100


async def test_the_log_is_cut_as_it_grows(opened: Open, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "AFTER", 50)
    store = await opened()
    for n in range(40):
        await store.put([new(f"i-{n}-{m}", payload=b"x" * 2_000) for m in range(20)])
    size = path.stat().st_size
    assert size > 40 * 20 * 2_000
    assert path.with_name("redrive.db-wal").stat().st_size < size


async def test_a_reader_does_not_stop_the_writers(opened: Open, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long read transaction keeps the log from being cut; writing goes on."""
    monkeypatch.setattr(checkpoint, "AFTER", 50)
    store = await opened()
    await store.put([new("first")])
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("begin")
    assert other.execute("select count(*) from item").fetchone() == (1,)
    for n in range(40):
        await store.put([new(f"i-{n}-{m}", payload=b"x" * 2_000) for m in range(20)])
    assert other.execute("select count(*) from item").fetchone() == (1,)
    other.close()
    assert (await store.tally()).queues[0].ready == 801


# --- the file and its schema ---


async def test_leases_of_before_the_machine_started_have_expired(
    opened: Open, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody who held them can be alive; and a clock that was set back by the start must not prolong them."""
    monkeypatch.setattr(boot, "boot_id", lambda: "first")
    clock = FakeClock()
    store = await opened(clock=clock)
    await store.put([new("one")])
    (held,) = (await store.lease(asking())).items
    again = await opened(clock=clock)
    assert await again.reclaim("w", ["q"], 1_000, 10) == (), "the same start: its holder may well be alive"
    await store.close()
    await again.close()
    monkeypatch.setattr(boot, "boot_id", lambda: "second")
    clock.jump_wall(-3_600_000)
    later = await opened(clock=clock)
    (taken,) = await later.reclaim("w", ["q"], 1_000, 10)
    assert (taken.id, taken.deliveries) == ("one", held.deliveries + 1)


async def test_a_system_without_a_boot_id_keeps_its_leases(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boot, "boot_id", lambda: None)
    store = await opened()
    await store.put([new("one")])
    await store.lease(asking())
    await store.close()
    assert await (await opened()).reclaim("w", ["q"], 1_000, 10) == ()


async def test_durability_is_what_is_in_force(opened: Open, tmp_path: Path) -> None:
    for level, synchronous in (("power-loss", 2), ("process-crash", 1)):
        store = await opened(tmp_path / level, durability=level)
        info = store.info()
        assert (info.engine, info.durability, info.schema) == ("sqlite", level, NEWEST)
        assert info.location == str(tmp_path / level)
        assert info.library == f"sqlite {sqlite3.sqlite_version} (stdlib)"
        assert await lane(store).submit(lambda tx: tx.execute("pragma synchronous").fetchone()) == (synchronous,)
        assert await lane(store).submit(lambda tx: tx.execute("pragma journal_mode").fetchone()) == ("wal",)


def test_durability_must_be_known(path: Path) -> None:
    with pytest.raises(ConfigError, match="durability"):
        SqliteStore(path, durability="none")  # type: ignore[arg-type]


def alter(path: Path, statement: str, *values: object) -> None:
    """Changes the file behind the store's back."""
    connection = sqlite3.connect(path)
    connection.execute(statement, values)
    connection.commit()
    connection.close()


async def refused(path: Path, error: type[StoreError | ConfigError]) -> str:
    """The refusal's text, after a check that not a byte of the file has changed."""
    before = path.read_bytes()
    with pytest.raises(error) as caught:
        await SqliteStore(path).open()
    assert path.read_bytes() == before
    return str(caught.value)


async def test_a_newer_schema_is_refused(opened: Open, path: Path) -> None:
    await (await opened()).close()
    alter(path, "insert into redrive_migration values (99, 'x', 0)")
    text = await refused(path, StoreTooNew)
    assert "schema 99" in text
    assert f"up to {NEWEST}" in text
    assert "upgrade" in text


async def test_a_changed_migration_is_refused(opened: Open, path: Path) -> None:
    await (await opened()).close()
    alter(path, "update redrive_migration set checksum = 'other'")
    assert str(path) in await refused(path, StoreCorrupt)


async def test_an_older_database_is_brought_up_to_date_with_all_it_holds(
    opened: Open, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened()
    await fill(store)
    before = await store.find(EVERYTHING)
    await store.close()
    with monkeypatch.context() as patch:
        more = add_migration(patch, "sqlite")
        store = await opened()
        assert store.info().schema == more.number
        assert await store.find(EVERYTHING) == before
        assert (await store.check()).findings == ()
        assert (await store.settle([finished(before.items[-1])])).answers[0].verdict == "applied"
        await store.close()
    assert rows(path, "select count(*) from more") == [(len(before.items),)]
    assert rows(path, "select checksum from redrive_migration where number = 2") == [(more.checksum,)]
    assert f"schema {more.number}" in await refused(path, StoreTooNew)


async def test_of_many_openers_one_migrates(opened: Open, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await (await opened()).close()
    more = add_migration(monkeypatch, "sqlite")
    both, read = threading.Barrier(2), connect.applied_to

    def applied_to(connection: Connection) -> dict[int, str]:
        """Waits for a second opener, which must not come as far as this before the first has written."""
        found = read(connection)
        with suppress(threading.BrokenBarrierError):
            both.wait(0.2)
        return found

    monkeypatch.setattr(connect, "applied_to", applied_to)
    stores = await asyncio.gather(*(opened() for _ in range(6)))
    assert {store.info().schema for store in stores} == {more.number}
    assert rows(path, "select number from redrive_migration") == [(NEWEST,), (more.number,)]


@pytest.mark.parametrize("start", [b"", b"SQLite format 3\x00"])
async def test_a_file_that_is_no_database_is_refused(path: Path, start: bytes) -> None:
    path.write_bytes(start + b"\x93not a database\x00" * 1_000)
    text = await refused(path, StoreCorrupt)
    assert str(path) in text
    assert "backup" in text


async def test_a_truncated_database_is_refused(opened: Open, path: Path) -> None:
    store = await opened()
    await store.put([new(f"i-{n}") for n in range(500)])
    await store.close()
    path.write_bytes(path.read_bytes()[: 4096 * 3])
    await refused(path, StoreCorrupt)


async def test_the_database_of_something_else_is_refused(path: Path) -> None:
    alter(path, "create table customers (name text)")
    text = await refused(path, ConfigError)
    assert "customers" in text
    assert not path.with_name("redrive.db-wal").exists()


async def test_an_empty_file_becomes_a_store(opened: Open, path: Path) -> None:
    path.touch()
    assert (await (await opened()).tally()).queues == ()


async def test_a_missing_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="nowhere"):
        await SqliteStore(tmp_path / "nowhere" / "redrive.db").open()


async def test_a_damaged_payload_is_never_served(opened: Open, path: Path) -> None:
    """It is reported where somebody looks, and laid aside as a letter where it would block its queue."""
    store = await opened()
    await store.put([new("first"), new("bad", payload=b"good bytes"), new("last")])
    alter(path, "update payload set body = x'00' where seq = (select seq from item where id = 'bad')")
    item = (await store.get("bad")).item
    assert ("checksum" in item.flaw, item.payload) == (True, b"\0")
    assert [(item.id, bool(item.flaw)) for item in (await store.find(EVERYTHING)).items] == [
        ("last", False),
        ("bad", True),
        ("first", False),
    ]
    leases = await store.lease(asking())
    assert [item.id for item in leases.items] == ["first", "last"]
    (row,) = (await store.tally()).queues
    assert (row.ready, row.leased, row.open) == (0, 2, 1)
    (cause,) = await store.causes()
    assert (cause.count, cause.error) == (1, "redrive.errors.StoreCorrupt")
    by = Act("ada", "damaged", "r-1")
    assert (await store.amend(Ids(("bad",)), Discard(), by)).changed == ("bad",)
    assert [tombstone.id for tombstone in await store.prune(Ids(("bad",)), 1, by)] == ["bad"]
    assert len((await store.find(EVERYTHING)).items) == 2


async def test_a_lost_payload_is_reported(opened: Open, path: Path) -> None:
    store = await opened()
    await store.put([new("bad")])
    alter(path, "delete from payload")
    item = (await store.get("bad")).item
    assert ("checksum" in item.flaw, item.payload) == (True, b"")
    assert (await store.lease(asking())).items == ()


@pytest.mark.parametrize("value", ["'good bytes'", "7", "null"])
async def test_damage_that_changes_the_type_of_a_payload_stops_nobody(opened: Open, path: Path, value: str) -> None:
    """One bit makes a text of bytes, and SQLite's own check finds nothing wrong."""
    store = await opened()
    await store.put([new("first"), new("bad", payload=b"good bytes"), new("last")])
    alter(path, "create table p (seq integer primary key, crc integer, release text, body, packing integer)")
    alter(path, "insert into p select seq, crc, release, body, packing from payload")
    alter(path, f"update p set body = {value} where seq = (select seq from item where id = 'bad')")
    alter(path, "drop table payload")
    alter(path, "alter table p rename to payload")
    assert [item.id for item in (await store.lease(asking())).items] == ["first", "last"]
    item = (await store.get("bad")).item
    assert item.letter is not None
    assert (item.letter.reason, bool(item.flaw)) == ("damaged", True)


async def test_one_refusal_in_a_full_batch_costs_only_itself(opened: Open) -> None:
    """The quick way settles all at once; the one that is refused must not take the others along."""
    store, other = await opened(), await opened()
    await store.put([new(f"i-{n}") for n in range(20)])
    items = (await store.lease(asking(20))).items
    (taken,) = await other.reclaim("reaper", ["q"], 30_000, 1, [items[7].id], force=True)
    settled = await store.settle([*(finished(item) for item in items), finished(items[0])])
    verdicts = [answer.verdict for answer in settled.answers]
    expected = [Verdict.REFUSED if item.id == taken.id else Verdict.APPLIED for item in items]
    assert verdicts == [*expected, Verdict.ALREADY]
    (row,) = (await store.tally()).queues
    assert (row.done, row.leased) == (19, 1)


TEXTS = ["a\0b", "ab", "a", "a[b", "a?b", "a]b", "A\0B", "☃.a\0b", "x.ab", "", "a*b", "%_"]
PATTERNS = ["a*b", "*\0*", "a*", "*b", "*", "**", "*a*b*", "a[*", "a?*", "*]*", "*.*", "a*b*a*b*c", "☃*", "\ud800*"]


async def test_hostile_texts_are_found_as_the_evaluator_says(opened: Open) -> None:
    """SQLite's GLOB ends at a NUL and knows wildcards that ours does not."""
    clock = FakeClock()
    store = await opened(clock=clock)
    # A queue with a NUL in its name is refused; an error may be called anything.
    queues = [text.replace("\0", "0") or "empty" for text in TEXTS]
    await store.put([new(f"i-{n}", queue=queue) for n, queue in enumerate(queues)])
    for n, (queue, text) in enumerate(zip(queues, TEXTS, strict=True)):
        (item,) = (await store.lease(asking(queue=queue, nonce=f"n-{n}"))).items
        await store.settle([dead(item, why=failure(error=text))])
    await store.put([new("alive")])
    everything = (await store.find(EVERYTHING)).items
    for pattern in (*PATTERNS, *TEXTS):
        for field in ("queue", "error"):
            for op in ("=", "glob"):
                match = Match(field, op, pattern)
                for selection in (match, Not(match), Or((match, Match("state", "=", "ready")))):
                    assert await found(store, selection) == expected(everything, selection, clock), selection


async def test_huge_numbers_are_compared_as_the_evaluator_does(opened: Open) -> None:
    clock = FakeClock()
    store = await opened(clock=clock)
    await store.put([new("one")])
    clock.advance(5)
    everything = (await store.find(EVERYTHING)).items
    for field in ("age", "died", "errors"):
        for op in ("=", "<", "<=", ">", ">=", "glob"):
            for value in (-(10**30), -1, 0, 5, 10**30, "5"):
                match = Match(field, op, value)
                for selection in (match, Not(match), And((Not(match), match))):
                    assert await found(store, selection) == expected(everything, selection, clock), selection


async def found(store: SqliteStore, selection: Selection) -> list[str]:
    return sorted(item.id for item in (await store.find(selection)).items)


def expected(items: tuple[Item, ...], selection: Selection, clock: FakeClock) -> list[str]:
    return sorted(item.id for item in items if matches(selection, item, clock.now()))


async def test_values_that_cannot_be_stored_are_the_caller_s_mistake(opened: Open) -> None:
    store = await opened()
    with pytest.raises(ConfigError):
        await store.put([new("half \ud800")])
    with pytest.raises(ConfigError):
        await store.put([NewItem("far", "q", b"", delay=2**63)])
    assert (await store.tally()).queues == ()


def test_store_time_does_not_go_back_or_run_away() -> None:
    clock = FakeClock()
    time = StoreTime(clock)
    start = time.now()
    clock.jump_wall(-60_000)
    assert time.now() == start
    clock.advance(5)
    assert time.now() == start + 5
    clock.jump_wall(3_600_000)
    assert time.now() == clock.now()


def test_stores_that_are_opened_at_different_times_have_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The milliseconds of the system's two clocks do not begin together."""
    nanos = 5_000_000_000
    monkeypatch.setattr("time.monotonic_ns", lambda: nanos)
    monkeypatch.setattr("time.time_ns", lambda: nanos + 1_700_000_000_000_400_000)
    times = []
    for nanos in range(5_000_000_000, 5_003_000_000, 100_000):  # noqa: B007 - the clocks read it
        times.append(StoreTime(SystemClock()))
        assert len({time.now() for time in times}) == 1
