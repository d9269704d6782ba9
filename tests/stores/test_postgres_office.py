"""What the office needs of PostgreSQL beyond the conformance suite: names that are no texts there, and races that only
several writers have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from redrive.core.acts import (
    Archive,
    Cancel,
    Change,
    Discard,
    Replay,
    Restore,
    Skipped,
)
from redrive.core.select import EVERYTHING, And, Ids, Match, Not, Selection, matches
from redrive.core.states import Disposition, State
from redrive.core.verbs import DocumentWrite, NewEntry
from redrive.errors import ConfigError, Conflict, NotFound
from redrive.stores.base import Store
from redrive.stores.packing import Packed, digest
from redrive.stores.postgres import PostgresStore
from redrive.stores.postgres.rows import LONGEST, indexed
from redrive.stores.url import store_from_url
from redrive.testing.clock import FakeClock
from tests.stores.postgres_kit import (
    DEAD,
    OPEN,
    act,
    behind,
    execute,
    failure,
    letters,
    rows,
    schema_of,
    somebody_waits,
)
from tests.stores.sqlite_kit import new
from tests.support.stores import fresh_store


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with fresh_store("postgres", tmp_path) as url:
        yield url


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    store = store_from_url(url, clock=FakeClock())
    assert isinstance(store, PostgresStore)
    yield await store.open()
    await store.close()


async def one_letter(store: PostgresStore) -> str:
    (item_id,) = await letters(store, failure())
    return item_id


# --- names that PostgreSQL would not take -----------------------------------------------------------------------------

LONG = "".join(chr(0x4E00 + number * 7919 % 20_000) for number in range(3_000))
"""Too long for an index, and not to be packed."""
HOSTILE = [
    failure("a\0b"),
    failure("app.a\0b"),
    failure("x.100%_sure\\"),
    failure("x.100%_sure\\\\n"),
    failure("'; drop table letter; --"),
    failure("mod." + LONG, LONG, LONG, LONG),
    failure("mod." + LONG + "!", LONG + "!", LONG + "!", LONG + "!"),
    failure("ÄÖ.ẞ", "Größe", "ursache ☃", "règle"),
    failure("", "", "", ""),
]


def _asked() -> list[Selection]:
    names = [name for why in HOSTILE for name in (why.type, why.type.rpartition(".")[2], why.category, why.cause)]
    texts = [
        *dict.fromkeys(names),
        "a*b",
        "*\0*",
        "*%*",
        "*_*",
        "*\\",
        "*\\*n",
        "\\%",
        "x.100*",
        "*Ö*",
        "*",
        "\ud800",
        "\ud800*",
    ]
    found: list[Selection] = [
        Match(field, op, text) for field in ("error", "category", "cause") for text in texts for op in ("=", "glob")
    ]
    few = ("\0", "a\0*", "*%*", "*_*", "*", "\ud800*", "default", "max_attempts", "dead", "open", "q", "i00*")
    others = ("rule", "reason", "id", "queue", "state", "disposition")
    found += [Match(field, op, text) for field in others for text in few for op in ("=", "glob")]
    big = 10**30
    numbers = [big, -big, 2**63, 2**63 - 1, -(2**63), 0]
    ordered = [
        Match(f, op, n) for f in ("errors", "age", "died") for n in numbers for op in ("=", "<", "<=", ">", ">=")
    ]
    return [*found, *ordered, Ids(("i001", "\0", "\ud800", "i001"))]


@pytest.mark.slow
async def test_hostile_names_are_found_as_the_one_evaluator_says(store: PostgresStore) -> None:
    """Also negated, and also in the walk over letters: each in one of these ways beside the plain one."""
    await letters(store, *HOSTILE)
    await store.put([new("plain")])
    everything = (await store.find(EVERYTHING)).items
    now = (await store.tally()).at
    assert len(everything) == len(HOSTILE) + 1
    for number, one in enumerate(_asked()):
        others = (Not(one), And((DEAD, one)), And((DEAD, Not(one))), And((OPEN, one)))
        for selection in (one, others[number % len(others)]):
            expected = {item.id for item in everything if matches(selection, item, now)}
            found = (await store.ids(selection)).ids
            assert (set(found), len(found)) == (expected, len(expected)), selection


async def test_hostile_names_come_back_whole(store: PostgresStore) -> None:
    ids = await letters(store, *HOSTILE)
    for item_id, why in zip(ids, HOSTILE, strict=True):
        history = await store.get(item_id)
        assert history.item.letter is not None
        assert history.item.letter.failure == why
        assert history.attempts[0].failure == why
    causes = {row.cause: row.count for row in await store.causes()}
    assert causes == {why.cause: [other.cause for other in HOSTILE].count(why.cause) for why in HOSTILE}
    assert (await store.check()).sound


async def test_hostile_names_are_counted_out_again(store: PostgresStore) -> None:
    ids = await letters(store, *HOSTILE)
    assert (await store.amend(Ids(tuple(ids)), Replay(), act())).changed == tuple(ids)
    assert await store.causes() == ()
    assert (await store.check()).sound


def test_an_indexed_name_is_short_and_its_own() -> None:
    assert indexed("a" * LONGEST) == "a" * LONGEST
    names = {indexed("a" * LONGEST + end) for end in ("b", "c", "\0", "␀")}
    assert [len(name) for name in names] == [LONGEST] * 3


@pytest.mark.parametrize("item_id", ["\0", "a\0b", "\ud800", ""])
async def test_ids_that_nobody_can_have(store: PostgresStore, item_id: str) -> None:
    with pytest.raises(NotFound):
        await store.get(item_id)
    assert await store.tombstone(item_id) is None
    amended = await store.amend(Ids((item_id,)), Archive(), act())
    assert amended.skipped == (Skipped(item_id, "no such item", "missing"),)
    assert await store.prune(Ids((item_id,)), 1, act()) == ()
    assert await store.causes(item_id) == ()


# --- races ------------------------------------------------------------------------------------------------------------


async def test_amend_judges_what_it_finds_when_the_lock_is_free(url: str, store: PostgresStore) -> None:
    """Somebody discards it meanwhile. What a statement saw before it waited must not send it back to work."""
    item_id = await one_letter(store)
    async with behind(url) as other:
        await other.execute(b"begin")
        await other.execute(b"select seq from course for update")
        replay = asyncio.ensure_future(store.amend(Ids((item_id,)), Replay(), act()))
        await somebody_waits(url, other)
        await other.execute(b"update letter set disposition = 'trash'")
        await other.execute(b"commit")
    assert (await replay).skipped == (Skipped(item_id, "it is in the trash; restore it first", "trash"),)
    letter = (await store.get(item_id)).item.letter
    assert letter is not None
    assert letter.disposition is Disposition.TRASH


async def test_amend_by_filter_leaves_what_no_longer_matches(url: str, store: PostgresStore) -> None:
    ids = await letters(store, failure(), failure(), failure())
    async with behind(url) as other:
        await other.execute(b"begin")
        await other.execute(b"select seq from course where seq = 2 for update")
        archive = asyncio.ensure_future(store.amend(OPEN, Archive(), act()))
        await somebody_waits(url, other)
        await other.execute(b"update letter set disposition = 'trash' where seq = 2")
        await other.execute(b"commit")
    amended = await archive
    assert (amended.changed, amended.skipped) == ((ids[0], ids[2]), ())


async def test_amend_expects_what_is_there_when_all_is_locked(url: str, store: PostgresStore) -> None:
    ids = await letters(store, failure(), failure(), failure())
    async with behind(url) as other:
        await other.execute(b"begin")
        await other.execute(b"select seq from course where seq = 2 for update")
        archive = asyncio.ensure_future(store.amend(OPEN, Archive(), act(), expect=3))
        await somebody_waits(url, other)
        await other.execute(b"update letter set disposition = 'trash' where seq = 2")
        await other.execute(b"commit")
    with pytest.raises(Conflict, match="2 items match, not 3"):
        await archive
    assert (await store.ids(OPEN)).ids == (ids[2], ids[0])
    assert await store.journal("audit") == ()


async def test_prune_spares_what_was_restored_meanwhile(url: str, store: PostgresStore) -> None:
    item_id = await one_letter(store)
    await store.amend(Ids((item_id,)), Discard(), act())
    async with behind(url) as other:
        await other.execute(b"begin")
        await other.execute(b"select seq from course for update")
        prune = asyncio.ensure_future(store.prune(EVERYTHING, 10, act("r-2")))
        await somebody_waits(url, other)
        await other.execute(b"update letter set disposition = 'open'")
        await other.execute(b"commit")
    assert await prune == ()
    assert (await store.get(item_id)).item.state is State.DEAD


async def test_amend_under_one_request_at_the_same_time_changes_once(url: str, store: PostgresStore) -> None:
    ids = tuple(await letters(store, *[failure()] * 20))
    others = [await store_from_url(url, clock=FakeClock()).open() for _ in range(3)]
    try:
        orders = (ids, ids[::-1], ids, ids[::-1])
        all_of_them: tuple[Store, ...] = (store, *others)
        done = await asyncio.gather(
            *[one.amend(Ids(order), Replay(), act()) for one, order in zip(all_of_them, orders, strict=True)]
        )
    finally:
        for one in others:
            await one.close()
    assert sorted(len(amended.changed) for amended in done) == [0, 0, 0, 20]
    assert sorted(len(amended.already) for amended in done) == [0, 20, 20, 20]
    histories = [await store.get(item_id) for item_id in ids]
    assert {(history.item.replays, len(history.deeds)) for history in histories} == {(1, 1)}
    assert (await store.check()).sound


async def test_moves_of_all_kinds_at_the_same_time_agree_in_the_end(url: str, store: PostgresStore) -> None:
    """In opposite orders, so that they would wait for each other if locks were taken as they come."""
    ids = tuple(await letters(store, *[failure(cause=f"c{number % 3}") for number in range(30)]))
    other = await store_from_url(url, clock=FakeClock()).open()
    try:
        changes: tuple[Change, ...] = (
            Archive(),
            Discard(),
            Restore(),
            Replay(),
            Cancel(),
            Archive(),
            Restore(),
            Discard(),
        )
        await asyncio.gather(
            *[
                one.amend(Ids(order), change, act(f"{number} {order[0]}"))
                for number, change in enumerate(changes)
                for one, order in ((store, ids), (other, ids[::-1]))
            ],
            *[one.prune(EVERYTHING, 3, act()) for one in (store, other)],
        )
    finally:
        await other.close()
    assert (await store.check()).findings == ()


async def test_journal_positions_come_in_the_order_of_commits(url: str, store: PostgresStore) -> None:
    """Whoever reads on from the last position would miss an entry that is committed later under a smaller one."""
    async with behind(url) as other:
        await other.execute(b"begin")
        await other.execute(
            b"select pg_advisory_xact_lock(hashtextextended(%s, 0))", (f'redrive journal "{schema_of(url)}"',)
        )
        await other.execute(
            b"insert into journal (at, topic, actor, reason, request_id, change, body) "
            b"values (0, 't', '', '', '', '', '')"
        )
        append = asyncio.ensure_future(store.append([NewEntry("t", b"1"), NewEntry("t", b"2")]))
        await somebody_waits(url, other)
        assert await store.journal("t") == ()
        await other.execute(b"commit")
    positions = await append
    found = [(entry.position, entry.body) for entry in await store.journal("t")]
    assert found[1:] == [(positions[0], b"1"), (positions[1], b"2")]
    assert [position for position, _ in found] == sorted(position for position, _ in found)


async def test_two_that_create_a_document_meet(url: str, store: PostgresStore) -> None:
    """Neither sees the other's row before it is committed, and yet only one may be the first."""
    async with behind(url) as other:
        await other.execute(b"begin")
        await other.execute(b"insert into document (kind, key, version, body) values ('k', '1', 1, 'theirs')")
        ours = asyncio.ensure_future(store.write_documents([DocumentWrite("k", "1", b"ours", 0)]))
        await somebody_waits(url, other)
        await other.execute(b"commit")
    with pytest.raises(Conflict, match="is at version 1, not at version 0"):
        await ours


async def test_documents_that_never_were_leave_nothing(url: str, store: PostgresStore) -> None:
    assert await store.write_documents([DocumentWrite("k", "1", None), DocumentWrite("k", "2", b"x")]) != ()
    with pytest.raises(Conflict):
        await store.write_documents([DocumentWrite("k", "3", b"x", 7)])
    assert await rows(url, "select kind, key, version from document") == [("k", "2", 1)]


# --- what is left of the pruned ---------------------------------------------------------------------------------------


async def test_prune_tells_the_digest_of_whatever_bytes_are_there(url: str, store: PostgresStore) -> None:
    """A packing of a later release, and a packed body that was cut short, are no reason to keep an item."""
    ids = await letters(store, failure(), failure(), failure())
    await store.amend(Ids(tuple(ids)), Discard(), act())
    await execute(
        url,
        "update item set packing = 99, body = 'of a later release' where seq = 1",
        "update item set packing = 1, body = 'short' where seq = 2",
        "update item set packing = 1, body = decode(repeat('61', 100), 'hex') where seq = 3",
    )
    stones = await store.prune(EVERYTHING, 10, act("r-2"))
    bodies = (Packed(b"of a later release", 99), Packed(b"short", 1), Packed(b"a" * 100, 1))
    assert [stone.payload_sha256 for stone in stones] == [digest(body) for body in bodies]


async def test_backup_names_what_to_use_instead(url: str, store: PostgresStore) -> None:
    with pytest.raises(ConfigError, match=f"pg_dump --schema={schema_of(url)}"):
        await store.backup("copy")
