"""A namespace of an earlier layout opens, is brought to the newest one beside the work, and loses nothing."""

from __future__ import annotations

import asyncio
import logging

import pytest

from redrive.core.acts import Replay
from redrive.core.select import EVERYTHING, Ids
from redrive.errors import StoreTooNew
from redrive.stores.migrate import Migration
from redrive.stores.redis import RedisStore, boot, mend
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
    news,
)
from tests.stores.redis_office_kit import *  # noqa: F403 - the fixtures are meant
from tests.stores.redis_office_kit import Server

MORE = Migration(boot.SCHEMA + 1, "0002_more", "")


def _add_layout(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    """The layout after the newest: with sets of retries, and with an index of letters by error within a queue."""
    client = server.client
    for pattern in ("ready:3:*", "letters:eq:*"):
        for key in client.scan_iter(match=server.key(pattern)):
            client.delete(key)
    monkeypatch.setattr(boot, "SCHEMA", MORE.number)
    monkeypatch.setattr(boot, "LAYOUTS", (*boot.LAYOUTS, MORE))
    monkeypatch.setattr(mend, "SCHEMA", MORE.number)


def _schema(server: Server) -> int:
    return int(server.client.hget(server.key("boot"), "schema"))


async def _opened(address: str, clock: FakeClock) -> RedisStore:
    store = store_from_url(address, clock=clock)
    assert isinstance(store, RedisStore)
    return await store.open()


async def _settled(store: RedisStore) -> None:
    mender = (await store._here())._mender  # noqa: SLF001 - it works beside the verbs
    async with asyncio.timeout(PATIENCE):
        await mender.finish()


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


async def test_an_earlier_layout_is_brought_to_the_newest(
    world: World, server: Server, address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = world.clock
    made = await _made(world)
    before = {item.id: item for item in (await world.store.find(EVERYTHING, 100)).items}
    tally = await world.store.tally()
    with monkeypatch.context() as patch, caplog.at_level(logging.INFO, "redrive.stores"):
        _add_layout(patch, server)
        store = await _opened(address, clock)
        await _settled(store)
        assert f"is in layout {MORE.number} now" in caplog.text
        assert "was restarted" not in caplog.text
        assert _schema(server) == MORE.number
        assert not (await store.check()).findings
        assert {item.id: item for item in (await store.find(EVERYTHING, 100)).items} == before
        assert await store.tally() == tally
        clock.advance(3_600 * SECOND)
        given = {item.id for item in (await store.lease(asking(20))).items}
        assert given == {made[name] for name in ("failed", "crashed", "replayed", "new")}
        await store.close()
    with pytest.raises(StoreTooNew, match=f"schema {MORE.number}"):
        await _opened(address, clock)


async def test_what_was_cut_off_goes_on(
    world: World, server: Server, address: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mend, "STEP", 10)
    made = news(600)
    await world.put(*made)
    await world.finish(*(failed(item) for item in await world.lease(600)))
    _add_layout(monkeypatch, server)
    first = await _opened(address, clock)
    await (await first._here())._mender.stop()  # noqa: SLF001 - killed in the middle
    assert 0 < server.client.zcard(server.key(f"ready:3:{QUEUE}")) < len(made)
    server.client.hset(server.key("boot"), "until", 0)
    second = await _opened(address, clock)
    await _settled(second)
    assert not (await second.check()).findings
    clock.advance(3_600 * SECOND)
    assert len((await second.lease(asking(1_000))).items) == len(made)
    await first.close()
    await second.close()


async def test_an_operator_may_bring_it_there_before(
    world: World, server: Server, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.put(*news(5))
    await world.finish(*(failed(item) for item in await world.lease(5)))
    store = store_from_url(address)
    assert isinstance(store, RedisStore)
    upkeep = store.upkeep()
    assert (await upkeep.pending(), await upkeep.migrate()) == ((), ())
    _add_layout(monkeypatch, server)
    assert await upkeep.pending() == (MORE,)
    found = await upkeep.status()
    assert (found.schema, found.known, found.pending) == (MORE.number - 1, MORE.number, (MORE.name,))
    assert await upkeep.migrate() == (MORE.number,)
    assert (await upkeep.pending(), _schema(server)) == ((), MORE.number)
    assert server.client.zcard(server.key(f"ready:3:{QUEUE}")) == 5
