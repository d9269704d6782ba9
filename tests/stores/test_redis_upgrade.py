"""A namespace that the release before made opens, is brought to this layout beside the work, and loses nothing."""

from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest

from redrive.core.filters import parse
from redrive.core.item import NewItem, Priority
from redrive.core.select import EVERYTHING, Ids
from redrive.core.verbs import Replay
from redrive.stores.redis import RedisStore, boot, mend
from redrive.stores.redis.search import oldest
from redrive.stores.url import store_from_url
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.kit import (
    PATIENCE,
    QUEUE,
    SECOND,
    World,
    act,
    after_crash,
    asking,
    dead,
    failed,
    finished,
    ids,
    new,
    news,
)
from tests.stores.redis_office_kit import *  # noqa: F403 - the fixtures are meant
from tests.stores.redis_office_kit import Server

CRASHES, LETTER, FIELDS = 9, 18, 19
SUSPECT = 2
"""Crashes of what may crash only once more."""


async def _made(world: World) -> dict[str, str]:
    """One item of each kind, by what it is."""
    names = ("done", "leased", "failed", "crashed", "replayed", "letter", "new")
    items = dict(zip(names, news(len(names)), strict=True))
    await world.put(*items.values())
    held = dict(zip(names, await world.lease(6), strict=False))
    await world.finish(
        finished(held["done"], result=b"1"),
        failed(held["failed"]),
        after_crash(held["crashed"]),
        *(dead(held[name]) for name in ("replayed", "letter")),
    )
    await world.store.amend(Ids((items["replayed"].id,)), Replay(), act())
    suspect = await world.suspect(queue="calls")
    return {name: item.id for name, item in items.items()} | {"suspect": suspect.id}


def _as_layout_1(server: Server) -> None:
    """Ready items apart by their crashes alone, letters without a route, and no word of anything newer."""
    client, key = server.client, server.key
    for queue in client.hkeys(key("queues")):
        name = queue.decode()
        for level in client.smembers(key(f"levels:{name}")):
            client.delete(key(f"ready:{level.decode()}:{name}"))
        client.delete(key(f"levels:{name}"), key(f"ready:0:{name}"))
    for item_id, kept in client.hgetall(key("item")).items():
        seq, queue, state, _, due, *_ = record = msgspec.msgpack.decode(kept)
        assert len(record) == FIELDS
        if record[LETTER]:
            record[LETTER] = record[LETTER][:6]
            client.hset(key("item"), item_id, _packed(record))
        if state == "ready":
            crashes = record[CRASHES]
            client.zadd(key(f"ready:{crashes}:{queue}"), {f"{seq:016d}{item_id.decode()}": due})
            if crashes:
                client.sadd(key(f"levels:{queue}"), crashes)
    _as_layout_2(server)
    client.hset(key("boot"), "schema", 1)


def _as_layout_2(server: Server) -> None:
    """Letters are not found by their error or category in one queue."""
    for kind in ("eq", "kq"):
        for key in server.client.scan_iter(match=server.key(f"letters:{kind}:*")):
            server.client.delete(key)
    server.client.hset(server.key("boot"), "schema", 2)
    server.client.hdel(server.key("boot"), "laid")


def _packed(record: list[object]) -> bytes:
    return b"\xdc\x00\x13" + b"".join(msgspec.msgpack.encode(field) for field in record)


async def _settled(store: RedisStore) -> None:
    mender = (await store._here())._mender  # noqa: SLF001 - it works beside the verbs
    async with asyncio.timeout(PATIENCE):
        await mender.finish()


async def test_an_earlier_layout_is_brought_to_this_one(
    world: World, server: Server, address: str, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    made = await _made(world)
    before = {item.id: item for item in (await world.store.find(EVERYTHING, 100)).items}
    tally = await world.store.tally()
    _as_layout_1(server)
    with caplog.at_level(logging.INFO, "redrive.stores"):
        store = store_from_url(address, clock=clock)
        assert isinstance(store, RedisStore)
        await store.open()
        await _settled(store)
    assert f"is in layout {boot.SCHEMA} now" in caplog.text
    assert "was restarted" not in caplog.text
    assert server.client.hget(server.key("boot"), "schema") == str(boot.SCHEMA).encode()
    assert not (await store.check()).findings
    assert {item.id: item for item in (await store.find(EVERYTHING, 100)).items} == before
    assert await store.tally() == tally
    clock.advance(3_600 * SECOND)
    given = {item.id for item in (await store.lease(asking(20))).items}
    assert given == {made[name] for name in ("failed", "crashed", "replayed", "new")}
    await store.close()


@pytest.mark.parametrize("level", ["ready:0", "ready:2"])
async def test_before_that_a_lease_gives_nobody_what_lies_elsewhere(
    world: World, server: Server, address: str, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    """A suspect must be alone, whatever set it lies in; what a lease finds in the wrong one is put where it belongs."""
    suspect = (await world.suspect()).id
    others = news(3)
    await world.put(*others)
    _as_layout_1(server)
    if level == "ready:0":
        (member,) = server.client.zrange(server.key(f"ready:{SUSPECT}:{QUEUE}"), 0, -1)
        server.client.delete(server.key(f"ready:{SUSPECT}:{QUEUE}"), server.key(f"levels:{QUEUE}"))
        server.client.zadd(server.key(f"ready:0:{QUEUE}"), {member: 1})
    monkeypatch.setattr(mend.Mender, "begin", _not_yet)
    store = await store_from_url(address, clock=world.clock).open()
    world.clock.advance(3_600 * SECOND)
    first = (await store.lease(asking(9))).items
    assert suspect not in ids(first)
    assert not any(item.alone for item in first)
    await store.settle([finished(item) for item in first])
    (second,) = [item for item in (await store.lease(asking(9))).items if item.id == suspect]
    assert second.alone
    await store.close()


async def _not_yet(_mender: mend.Mender, _run: str, _reconciled: str, _schema: int) -> None:
    return


async def test_an_upgrade_that_was_cut_off_goes_on(
    world: World, server: Server, address: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mend, "STEP", 10)
    made = news(600)
    await world.put(*made)
    await world.finish(*(failed(item) for item in await world.lease(600)))
    _as_layout_1(server)
    first = store_from_url(address, clock=clock)
    assert isinstance(first, RedisStore)
    await first.open()
    await (await first._here())._mender.stop()  # noqa: SLF001 - killed in the middle
    assert server.client.zcard(server.key(f"ready:0:{QUEUE}")) > 0
    server.client.hset(server.key("boot"), "until", 0)
    second = store_from_url(address, clock=clock)
    assert isinstance(second, RedisStore)
    await second.open()
    await _settled(second)
    assert server.client.zcard(server.key(f"ready:0:{QUEUE}")) == 0
    assert not (await second.check()).findings
    clock.advance(3_600 * SECOND)
    assert len((await second.lease(asking(1_000))).items) == len(made)
    await first.close()
    await second.close()


async def test_letters_are_found_before_during_and_after_an_upgrade(
    world: World, server: Server, address: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index that is still being made answers nothing; those of before do."""
    monkeypatch.setattr(mend, "STEP", 10)
    items = news(60)
    made = set(ids(items))
    await world.put(*items)
    await world.finish(*(dead(item) for item in await world.lease(60)))
    _as_layout_2(server)
    indexes = [server.key(f"letters:eq:open:SMTPTimeout\0{QUEUE}"), server.key(f"letters:kq:open:timeout\0{QUEUE}")]
    store = store_from_url(address, clock=clock)
    assert isinstance(store, RedisStore)
    with monkeypatch.context() as patch:
        patch.setattr(mend.Mender, "_go_on", _later)
        await store.open()
    assert all(0 < server.client.zcard(index) < len(made) for index in indexes)
    selections = [parse(f"state:dead queue:{QUEUE} {field}") for field in ("error:SMTPTimeout", "category:timeout")]
    for selection in selections:
        assert set((await store.ids(selection)).ids) == made
        assert (await oldest(await store._here(), selection, 99)).matching == len(made)  # noqa: SLF001 - as an act finds them
    await (await store._here()).mend()  # noqa: SLF001 - it works beside the verbs
    assert all(server.client.zcard(index) == len(made) for index in indexes)
    for selection in selections:
        assert set((await store.ids(selection)).ids) == made
    assert not (await store.check()).findings
    await store.close()


def _later(_mender: mend.Mender) -> None:
    return


async def test_an_operator_may_bring_it_there_before(world: World, server: Server, address: str) -> None:
    await world.put(*news(5))
    await world.finish(*(failed(item) for item in await world.lease(5)))
    _as_layout_1(server)
    store = store_from_url(address)
    assert isinstance(store, RedisStore)
    upkeep = store.upkeep()
    assert [layout.number for layout in await upkeep.pending()] == [2, 3]
    assert (await upkeep.status()).pending == ("0002_levels", "0003_letters_by")
    assert await upkeep.migrate() == (2, 3)
    assert await upkeep.pending() == ()
    assert server.client.zcard(server.key(f"ready:3:{QUEUE}")) == 5


async def test_a_plain_item_has_the_short_record_of_before(world: World, server: Server) -> None:
    """What nobody uses costs nothing: not a byte."""
    plain, high = new(), NewItem("high", QUEUE, b"{}", priority=Priority.HIGH)
    late = NewItem("late", QUEUE, b"{}", at=world.clock.now() + SECOND)
    await world.put(plain, high, late)
    for item in await world.lease(5):
        await world.finish(failed(item))
    sizes = {
        name: len(msgspec.msgpack.decode(kept)) for name, kept in server.client.hgetall(server.key("item")).items()
    }
    assert sizes == {plain.id.encode(): FIELDS, b"late": FIELDS, b"high": FIELDS + 4}
