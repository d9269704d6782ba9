"""`check` and `repair` on PostgreSQL: each harm is found and named, and what is counted wrong is counted anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest
from msgspec import structs

from redrive.core.select import EVERYTHING
from redrive.core.verbs import Checkup
from redrive.errors import StoreCorrupt
from redrive.stores.postgres import PostgresStore, checkup
from redrive.stores.postgres.session import Session
from redrive.stores.postgres.shape import SHAPE
from redrive.stores.statements import load
from redrive.stores.url import store_from_url
from tests.stores.postgres_hot_kit import session_of
from tests.stores.postgres_kit import behind, execute, rows, somebody_waits
from tests.stores.sqlite_kit import asking, new
from tests.stores.upkeep_kit import died, fill
from tests.support.stores import fresh_store


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with fresh_store("postgres", tmp_path) as url:
        yield url


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    store = store_from_url(url)
    assert isinstance(store, PostgresStore)
    yield await store.open()
    await store.close()


@pytest.fixture
async def filled(store: PostgresStore) -> PostgresStore:
    """Six items, a to f, with the numbers 1 to 6."""
    await fill(store)
    return store


HARM = {
    "a counter": ("insert into counter (queue, ready) values ('q', 5)", "counters", "q: ready 7 (there are 2)"),
    "a counter of nothing": (
        "insert into counter (queue, done) values ('x', 1)",
        "counters",
        "x: done 1 (there are 0)",
    ),
    "an undeclared queue": ("delete from counter", "counters", "q"),
    "a cause's count": ("insert into cause values ('c1', 'q', 4)", "causes", "c1 in q: 5 (there are 1)"),
    "a lost cause": ("delete from cause", "causes", "c1 in q: 0 (there are 1)"),
    "the sequence": ("select setval('item_seq', 3)", "sequence", None),
    "an unused sequence": ("select setval('item_seq', 1, false)", "sequence", None),
    "a dead item without a letter": ("delete from letter where cause = 'c1'", "letters", "b"),
    "a letter of the living": ("update course set state = 'ready', ended_at = null where seq = 2", "letters", "b"),
    "a letter without an item": ("delete from item where seq = 2", "letters", "#2"),
    "a letter without a course": ("delete from course where seq = 2", "letters", "b"),
    "a letter of another queue": ("update letter set queue = 'x' where seq = 2", "letters", "b"),
    "a letter nowhere": ("update letter set disposition = 'lost' where seq = 2", "letters", "b"),
    "evidence of another cause": ("update letter set cause = 'c9' where seq = 2", "letters", "b"),
    "evidence of another error": ("update letter set error = 'E9' where seq = 2", "letters", "b"),
    "unreadable evidence": ("update letter set failure = '{' where seq = 2", "letters", "b"),
    "no payload": ("delete from item where seq = 1", "payloads", "#1"),
    "put into another queue": ("update item set queue = 'x' where seq = 1", "payloads", "a"),
    "no course": ("delete from course where seq = 1", "states", "a"),
    "another payload": ("update item set body = '{}' where seq = 1", "payloads", "a"),
    "another checksum": ("update item set crc = crc + 1 where seq = 1", "payloads", "a"),
    "packed in an unknown way": ("update item set packing = 99 where seq = 1", "payloads", "a"),
    "a result that does not unpack": ("update result set packing = 1", "results", "c"),
    "a result alone": ("insert into result (seq, body) values (99, '')", "results", "#99"),
    "an attempt alone": ("update attempt set seq = 99 where seq = 4", "history", "#99"),
    "an unreadable attempt": ("update attempt set body = '' where seq = 4", "history", "d"),
    "an attempt of a later delivery": ("update attempt set delivery = 0 where seq = 4", "history", "d"),
    "a deed alone": ("update deed set seq = 99", "history", "#99"),
    "a deed without its entry": ("delete from journal", "history", "#5"),
    "a tag that is not told": ("insert into tag values ('x', 1)", "tags", "a"),
    "a tag that is told and not there": ("update course set ties = 128 where seq = 1", "tags", "a"),
    "a tag alone": ("insert into tag values ('x', 99)", "tags", "#99"),
    "a letter without a change number": ("delete from unnumbered where seq = 2", "changes", "b"),
    "an unknown state": ("update course set state = 'lost' where seq = 1", "states", "a"),
    "leased to nobody": ("update course set lease_until = null where seq = 1", "states", "a"),
    "held although it ended": ("update course set lease_until = 1 where seq = 3", "states", "c"),
    "ended at no time": ("update course set ended_at = null where seq = 3", "states", "c"),
    "pruned and there": (
        "insert into tombstone values ('a', 'q', 'done', '', 0, 'x', 'y')",
        "tombstones",
        "a",
    ),
    "other contents of a migration": ("update migration set checksum = 'x' where number = 1", "schema", "1"),
    "a lost index": ("drop index course_ready", "schema", "course_ready is missing"),
    "a lost table": ("drop table tombstone", "schema", "tombstone is missing"),
    "another table": (
        "alter table tombstone rename column actor to who",
        "schema",
        "tombstone has the columns id, queue, state, payload_sha256, at, who, reason",
    ),
}
BODIES = {
    "evidence of another cause",
    "evidence of another error",
    "unreadable evidence",
    "another payload",
    "another checksum",
    "packed in an unknown way",
    "a result that does not unpack",
    "an unreadable attempt",
    "an attempt of a later delivery",
}
"""What a quick check does not look at."""


@pytest.mark.parametrize("harm", HARM)
async def test_each_harm_is_found_and_named(url: str, filled: PostgresStore, harm: str) -> None:
    statement, kind, example = HARM[harm]
    await execute(url, statement)
    found = [finding for finding in (await filled.check()).findings if finding.kind == kind]
    assert found
    assert example is None or example in [each for finding in found for each in finding.examples]
    quickly = [finding.kind for finding in (await filled.check(quick=True)).findings]
    assert (kind in quickly) is (harm not in BODIES)


async def test_an_index_that_was_not_finished_is_none(url: str, filled: PostgresStore) -> None:
    await execute(url, "drop index course_leased")
    with pytest.raises(psycopg.errors.UniqueViolation):
        await execute(url, "create unique index concurrently course_leased on course (queue)")
    (finding,) = (await filled.check()).findings
    # Gone for good, so that no other test is given this schema.
    await execute(url, "drop index course_leased")
    assert (finding.kind, finding.examples) == ("schema", ("course_leased is missing",))


async def test_the_harmless_is_not_found(url: str, filled: PostgresStore) -> None:
    """Tables and indexes of the user's own, beside ours, are his affair; and so are statistics and settings."""
    await execute(
        url,
        "create index mine on item (enqueued_at)",
        "create table notes (text text)",
        "alter table course set (fillfactor = 50)",
        "analyze item, course",
    )
    assert await filled.check() == Checkup(6)


async def test_the_shape_is_that_of_a_new_schema(url: str, store: PostgresStore) -> None:
    """Whoever changes the migrations changes the shape as well."""
    session = await session_of(store)
    there = await session.read(session.sql("check", "shape"), (session.schema, session.schema))
    made = {(kind, name): columns for kind, name, columns in there if not name.startswith("migration")}
    assert made == SHAPE


async def test_tables_that_are_not_ours_are_left_alone(url: str, filled: PostgresStore) -> None:
    await execute(url, "drop table tombstone")
    found = await filled.check()
    assert found.left_out == ("counters and rows: its tables are not those that this redrive knows",)
    assert not checkup.can_repair(found)


async def test_a_newer_and_an_older_schema_are_left_alone(url: str, filled: PostgresStore) -> None:
    await execute(url, "insert into migration values (9999, 'x', 0)")
    (newer,) = (await filled.check()).left_out
    assert "it has schema 9999" in newer
    await execute(url, "delete from migration")
    (older,) = (await filled.check()).left_out
    assert "redrive db migrate brings it to" in older


def test_what_is_found_comes_in_order_whatever_the_plan() -> None:
    """The first of them are told as examples, and where rows lie depends on who wrote them last."""
    statements = load("postgres", "check")
    named = [name for name in statements if name.endswith("_bodies") and name != "window_of_bodies"]
    for name in (*checkup._TABLES, *named):  # noqa: SLF001 - one statement for each
        assert "order by" in statements[name], name


async def test_windows_leave_nothing_out(store: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However small they are: by rows, and by bytes with a body that is larger than a window."""
    monkeypatch.setattr(checkup, "WINDOW", 3)
    monkeypatch.setattr(checkup, "BODIES", 4)
    monkeypatch.setattr(checkup, "BYTES", 100)
    bodies = [b"x" * size for size in (10, 500, 0, 99, 100, 101, 1, 1, 1, 1, 1)]
    await store.put([new(f"i{number:02}", payload=body) for number, body in enumerate(bodies)])
    assert await store.check() == Checkup(len(bodies))
    await execute(url, "update item set crc = crc + 1", "update course set ended_at = 1")
    payloads, states = (await store.check()).findings
    assert (payloads.kind, payloads.count) == ("payloads", len(bodies))
    assert (states.kind, states.count) == ("states", len(bodies))
    assert payloads.examples == tuple(f"i{number:02}" for number in range(10))


async def test_what_cannot_be_read_is_a_finding(filled: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged page is told as the server tells it, and the other tables are still looked at."""
    read = Session.read

    async def damaged(self: Session, statement: str, params: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
        if ".letter l" in statement:
            raise StoreCorrupt("invalid page in block 7 of relation base/1/2")
        return await read(self, statement, params)

    monkeypatch.setattr(Session, "read", damaged)
    found = await filled.check()
    assert found.items == 6
    assert {finding.kind for finding in found.findings} == {"pages"}
    assert "the table letter cannot be read" in [finding.text for finding in found.findings]
    assert not checkup.can_repair(found)


# --- repair -----------------------------------------------------------------------------------------------------------

COUNTED_WRONG = (
    "insert into counter (queue, ready, open) values ('q', 5, -3)",
    "insert into counter (queue, done) values ('x', 1)",
    "insert into cause values ('c1', 'q', 4), ('c9', 'x', -1)",
    "delete from cause where cause = 'c2'",
    "select setval('item_seq', 2)",
    "insert into tag values ('x', 1)",
    "delete from unnumbered where seq = 2",
)


async def test_repair_counts_anew_and_says_what_was_wrong(url: str, filled: PostgresStore) -> None:
    before = (await filled.find(EVERYTHING)).items
    tally, causes = await filled.tally(), await filled.causes()
    await execute(url, *COUNTED_WRONG)
    checked = await filled.check()
    assert {finding.kind for finding in checked.findings} == checkup.REPAIRABLE - {"families"}
    assert checkup.can_repair(checked)
    assert await checkup.repair(await session_of(filled)) == checked.findings
    assert await filled.check() == Checkup(6)
    # What people said counts: the tag is told now.
    shown = [structs.replace(item, tags=("x",)) if item.id == "a" else item for item in before]
    assert list((await filled.find(EVERYTHING)).items) == shown
    assert [row for row in (await filled.tally()).queues if row.queue != "x"] == list(tally.queues)
    assert await filled.causes() == causes
    assert (await filled.put([new("g")])).added == ("g",)
    assert [one.id for one in await filled.changes()] == ["e", "b"]


async def test_repair_of_a_sound_store_writes_nothing(url: str, filled: PostgresStore) -> None:
    before = await rows(url, "select * from counter order by 1, 2, 3, 4"), await rows(url, "select * from cause")
    assert await checkup.repair(await session_of(filled)) == ()
    after = await rows(url, "select * from counter order by 1, 2, 3, 4"), await rows(url, "select * from cause")
    assert after == before


@pytest.mark.parametrize("harm", [each for each in HARM if HARM[each][1] == "tags"])
async def test_repair_of_tags(url: str, filled: PostgresStore, harm: str) -> None:
    statement, _, example = HARM[harm]
    await execute(url, statement)
    (finding,) = (await filled.check()).findings
    assert await checkup.repair(await session_of(filled)) == (finding,)
    assert finding.examples == (example,)
    assert await filled.check() == Checkup(6)
    assert (await filled.get("a")).item.tags == (("x",) if harm == "a tag that is not told" else ())


async def test_repair_of_tags_waits_for_whoever_tags(url: str, filled: PostgresStore) -> None:
    """The mark of an item that has none is taken away, unless somebody gives it one meanwhile."""
    await execute(url, "update course set ties = 128 where seq = 1")
    async with behind(url) as tagging, tagging.transaction():
        await tagging.execute("select from course where seq = 1 for update")
        await tagging.execute("insert into tag values ('x', 1)")
        repairing = asyncio.create_task(checkup.repair(await session_of(filled)))
        await somebody_waits(url, tagging)
    await repairing
    assert (await filled.get("a")).item.tags == ("x",)
    assert await filled.check() == Checkup(6)


async def test_repair_declares_a_queue_that_was_not(url: str, filled: PostgresStore) -> None:
    await execute(url, "delete from counter")
    await checkup.repair(await session_of(filled))
    (row,) = (await filled.tally()).queues
    assert (row.queue, row.ready, row.leased, row.done, row.open, row.archived) == ("q", 2, 1, 1, 1, 1)


async def test_repair_beside_work_and_another_repair(url: str, filled: PostgresStore) -> None:
    """It adds what is missing; what others add meanwhile, and what they fold, stays counted once."""
    await execute(url, *COUNTED_WRONG[:3])
    other = store_from_url(url)
    await other.open()

    async def work() -> None:
        for number in range(20):
            await other.put([new(f"w{number}"), new(f"v{number}")])
            items = (await other.lease(asking(2, nonce=f"n{number}"))).items
            await other.settle([died(item, f"c{number % 3}") for item in items])

    async def repairing() -> None:
        for _ in range(3):
            await checkup.repair(await session_of(filled))
            await (await session_of(filled)).fold()

    try:
        await asyncio.gather(work(), repairing(), repairing())
    finally:
        await other.close()
    await checkup.repair(await session_of(filled))
    assert (await filled.check()).findings == ()
