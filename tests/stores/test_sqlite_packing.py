"""Large bodies are kept packed, and nobody notices: neither the caller nor the loop, nor those who wait to write."""

from __future__ import annotations

import sqlite3
import threading
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redrive.core.acts import (
    Act,
    Discard,
    Replay,
)
from redrive.core.item import Item, NewItem
from redrive.core.select import EVERYTHING, Ids, Match
from redrive.core.states import State
from redrive.errors import BadStoreURL, StoreUnavailable
from redrive.stores import bodies, packing
from redrive.stores.packing import pack, unpack
from redrive.stores.sqlite import SqliteStore
from redrive.stores.url import store_from_url
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.kit import finished, sha256
from tests.stores.packing_kit import NOISE, TEXT, packed
from tests.stores.sqlite_kit import Open, asking, lane, new

BY = Act("ada", "why not", "r-1")


async def test_the_url_has_the_option(tmp_path: Path) -> None:
    await store_keeps(tmp_path / "a.db", "compress_above=1KB", packed_from=1_001)
    await store_keeps(tmp_path / "b.db", "compress_above=off", packed_from=None)
    await store_keeps(tmp_path / "c.db", "", packed_from=65_537)
    with pytest.raises(BadStoreURL, match=r"store\.compress_above: 'lots' is not a size"):
        store_from_url("sqlite:///x.db?compress_above=lots")
    with pytest.raises(BadStoreURL, match=r"store\.ballast"):
        store_from_url("sqlite:///x.db?ballast=lots")


async def store_keeps(path: Path, option: str, packed_from: int | None) -> None:
    store = await store_from_url(f"sqlite:///{path}?{option}").open()
    sizes = [1_000, 1_001, 65_536, 65_537]
    await store.put([new(f"i-{size}", payload=b"x" * size) for size in sizes])
    await store.close()
    kept = {item_id: number for item_id, number, _ in rows(path)}
    assert kept == {f"i-{size}": int(packed_from is not None and size >= packed_from) for size in sizes}


# --- in the file ---


def query(path: Path, statement: str, *values: object) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(statement, values).fetchall()


def rows(path: Path) -> list[tuple[str, int, bytes]]:
    return query(path, "select i.id, p.packing, p.body from item i join payload p on p.seq = i.seq order by i.seq")


def overwrite(path: Path, item_id: str, body: bytes, number: int) -> None:
    """Puts other bytes under an item, with a checksum that fits."""
    crc = zlib.crc32(body, number)
    where = "seq = (select seq from item where id = ?)"
    query(path, f"update payload set body = ?, packing = ?, crc = ? where {where}", body, number, crc, item_id)


async def test_large_bodies_are_small_in_the_file(opened: Open, path: Path) -> None:
    store = await opened()
    await store.put([new("large", payload=TEXT), new("noise", payload=NOISE), new("small", payload=b"{}")])
    (leased, _, follower) = (await store.lease(asking())).items
    await store.settle([finished(leased, result=TEXT), finished(follower, follow_ups=[new("next", payload=TEXT)])])
    kept = {item_id: (number, len(body)) for item_id, number, body in rows(path)}
    assert kept["noise"] == (0, len(NOISE))
    assert kept["small"] == (0, 2)
    for item_id in ("large", "next"):
        assert kept[item_id][0] == 1
        assert kept[item_id][1] < len(TEXT) / 10
    ((number, size),) = query(path, "select packing, length(body) from result")
    assert (number, size) == (1, kept["large"][1])
    assert (await store.get("large")).item.result == TEXT


async def test_threads_of_their_own_pack_and_unpack(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the loop, which others wait for, and not the writer, which holds the lock of the database."""
    seen: set[str] = set()

    def noted(work: Any) -> Any:
        def call(body: bytes) -> bytes:
            seen.add(f"{work.__name__} in {threading.current_thread().name}")
            return work(body)  # type: ignore[no-any-return]  # one of two that give bytes

        return call

    monkeypatch.setattr(packing, "pack", noted(pack))
    monkeypatch.setattr(packing, "unpack", noted(unpack))
    store = await opened()
    await store.put([new("a", payload=TEXT)])
    (item,) = (await store.lease(asking())).items
    await store.settle([finished(item, result=TEXT)])
    await store.get("a")
    await store.find(EVERYTHING)
    assert seen == {"pack in redrive-aside", "unpack in redrive-aside"}


async def test_small_bodies_go_no_detour(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    async def detour(_: object) -> None:
        raise AssertionError("a thread for nothing")

    monkeypatch.setattr(bodies, "aside", detour)
    store = await opened()
    await store.put([new("a", payload=b"x" * 65_536)])
    (item,) = (await store.lease(asking())).items
    await store.settle([finished(item, result=b"y" * 65_536, follow_ups=[new("b")])], asking(nonce="n-2"))
    await store.find(EVERYTHING)
    assert (await store.get("a")).item.result == b"y" * 65_536


async def test_a_tombstone_needs_no_unpacking(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await opened()
    await store.put([new("a", payload=TEXT)])
    await store.settle([finished((await store.lease(asking())).items[0])])
    monkeypatch.setattr(packing, "unpack", None)
    (tombstone,) = await store.prune(Ids(("a",)), 1, BY)
    assert tombstone.payload_sha256 == sha256(TEXT)


async def test_other_thresholds_read_the_same_file(opened: Open) -> None:
    """The option says how to write; what is there is read as it was written."""
    first, second = await opened(), await opened(compress_above=None)
    await first.put([new("packed", payload=TEXT)])
    await second.put([new("plain", payload=TEXT)])
    for store in (first, second):
        assert [item.payload for item in (await store.find(EVERYTHING)).items] == [TEXT, TEXT]


# --- what cannot be read ---


async def put_three(store: SqliteStore) -> None:
    await store.put([new("first"), new("bad", payload=TEXT), new("last", payload=TEXT)])


async def assert_letter(store: SqliteStore, reason: str, error: str) -> None:
    """`bad` is a letter, and is where it cannot run."""
    assert (await store.ids(Match("reason", "=", reason))).ids == ("bad",)
    (cause,) = await store.causes()
    assert (cause.count, cause.error) == (1, f"redrive.errors.{error}")


async def test_a_later_release_s_packing_is_never_run_and_never_lost(opened: Open, path: Path) -> None:
    store = await opened()
    await put_three(store)
    overwrite(path, "bad", b"from the future", 7)
    kept = rows(path)
    seen = (await store.find(EVERYTHING)).items
    assert {item.id for item in seen if item.flaw} == {"bad"}
    assert "way (7)" in (await store.get("bad")).item.flaw
    assert [item.id for item in (await store.lease(asking())).items] == ["first", "last"]
    await assert_letter(store, "unreadable", "StoreTooNew")
    assert rows(path) == kept
    # The release that can read it finds it as it was.
    overwrite(path, "bad", packed(TEXT), 1)
    assert (await store.amend(Ids(("bad",)), Replay(), BY)).changed == ("bad",)
    (item,) = (await store.lease(asking(nonce="n-2"))).items
    assert (item.id, item.payload) == ("bad", TEXT)


async def test_a_later_release_s_result_is_said_and_left(opened: Open, path: Path) -> None:
    store = await opened()
    await store.put([new("a")])
    await store.settle([finished((await store.lease(asking())).items[0], result=TEXT)])
    query(path, "update result set packing = 9")
    item = (await store.get("a")).item
    assert ("way (9)" in item.flaw, item.result) == (True, None)
    query(path, "update result set packing = 1, body = ?", bytes(packed(TEXT))[:-5])
    item = (await store.get("a")).item
    assert ("does not unpack" in item.flaw, item.result) == (True, None)
    query(path, "update result set body = ?", bytes(packed(TEXT)))
    assert (await store.get("a")).item.result == TEXT


@pytest.mark.parametrize("sound", [True, False], ids=["with a checksum that fits", "with a broken checksum"])
async def test_a_packed_body_that_does_not_unpack_is_a_letter(opened: Open, path: Path, sound: bool) -> None:
    store = await opened()
    await put_three(store)
    overwrite(path, "bad", bytes(packed(TEXT))[:-5], 1)
    if not sound:
        query(path, "update payload set crc = 1 where seq = 2")
    assert {item.id for item in (await store.find(EVERYTHING)).items if item.flaw} == {"bad"}
    assert (await store.get("bad")).item.flaw
    leases = await store.lease(asking())
    assert [(item.id, item.payload) for item in leases.items] == [("first", b"{}"), ("last", TEXT)]
    await assert_letter(store, "damaged", "StoreCorrupt")
    (row,) = (await store.tally()).queues
    assert (row.ready, row.leased, row.open) == (0, 2, 1)
    assert (await store.amend(Ids(("bad",)), Discard(), BY)).changed == ("bad",)
    assert [tombstone.id for tombstone in await store.prune(Ids(("bad",)), 1, BY)] == ["bad"]


async def test_if_it_cannot_be_laid_aside_now_it_is_when_its_lease_lapses(
    opened: Open, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    store = await opened(clock=clock)
    await put_three(store)
    overwrite(path, "bad", bytes(packed(TEXT))[:-5], 1)
    submit, calls = lane(store).submit, []

    async def fails_second(work: Any) -> Any:
        calls.append(work)
        if len(calls) == 2:
            raise StoreUnavailable("the disk is away")
        return await submit(work)

    monkeypatch.setattr(lane(store), "submit", fails_second)
    assert [item.id for item in (await store.lease(asking())).items] == ["first", "last"]
    assert (await store.tally()).queues[0].leased == 3
    clock.advance(30_001)
    taken = await store.reclaim("reaper", ["q"], 30_000, 10)
    assert sorted(item.id for item in taken) == ["first", "last"]
    await assert_letter(store, "damaged", "StoreCorrupt")


@pytest.mark.parametrize("harm", ["update payload set body = x'00' where seq = 2", "delete from payload where seq = 2"])
async def test_reclaim_is_not_stopped_by_a_damaged_item(opened: Open, path: Path, harm: str) -> None:
    """Nobody else's lapsed lease may wait for it."""
    clock = FakeClock()
    store = await opened(clock=clock)
    await put_three(store)
    assert len((await store.lease(asking())).items) == 3
    query(path, harm)
    clock.advance(30_001)
    taken = await store.reclaim("reaper", ["q"], 30_000, 10)
    assert {item.id: item.payload for item in taken} == {"first": b"{}", "last": TEXT}
    await assert_letter(store, "damaged", "StoreCorrupt")


async def test_a_repeated_lease_is_not_stopped_by_a_damaged_item(opened: Open, path: Path) -> None:
    store = await opened()
    await put_three(store)
    assert len((await store.lease(asking())).items) == 3
    query(path, "update payload set body = x'00' where seq = 2")
    assert [item.id for item in (await store.lease(asking())).items] == ["first", "last"]
    await assert_letter(store, "damaged", "StoreCorrupt")


# --- any way they come ---


@settings(max_examples=8)
@given(sizes=st.lists(st.sampled_from([0, 1, 99, 100, 101, 70_000]), max_size=6), above=st.sampled_from([0, 100, None]))
async def test_any_mix_of_sizes_comes_back(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], above: int | None
) -> None:
    path = tmp_path_factory.mktemp("mix") / "redrive.db"
    store = await SqliteStore(path, durability="process-crash", compress_above=above).open()
    try:
        made = [NewItem(f"i-{n}", "q", bytes([n]) * size) for n, size in enumerate(sizes)]
        await store.put(made)
        items: tuple[Item, ...] = (await store.lease(asking(50))).items
        assert [(item.id, item.payload) for item in items] == [(item.id, item.payload) for item in made]
        await store.settle([finished(item, result=item.payload) for item in items])
        for item in made:
            done = (await store.get(item.id)).item
            assert (done.state, done.payload, done.result) == (State.DONE, item.payload, item.payload)
    finally:
        await store.close()
