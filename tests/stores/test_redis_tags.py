"""Tags, trash and letters from elsewhere on Redis: how they are kept, checked and mended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from redrive.core.acts import Tag
from redrive.core.select import EVERYTHING, Ids
from redrive.core.verbs import Checkup
from redrive.errors import ConfigError, StoreCorrupt
from redrive.stores.packing import Packed
from redrive.stores.redis import checkup, take_in
from redrive.stores.redis.rows import payload_of
from redrive.stores.redis.session import Session
from redrive.testing.conformance.imports import foreign
from redrive.testing.conformance.kit import World, act, finished, new, news
from tests.stores.redis_office_kit import *  # noqa: F403 - the fixtures are meant
from tests.stores.redis_office_kit import Server

MANY = 150
"""More than a check looks at in passing."""
ENDED_AT = 16


async def _session(world: World) -> Session:
    session: Session = await world.store._here()  # type: ignore[attr-defined]  # noqa: SLF001 - repair is no verb
    return session


async def _tag(world: World, *item_ids: str, add: tuple[str, ...] = (), remove: tuple[str, ...] = ()) -> None:
    assert (await world.store.amend(Ids(item_ids), Tag(add, remove), act())).changed == item_ids


# --- how they are kept ---


async def test_each_tag_has_a_set_of_its_items_in_the_order_of_put(world: World, server: Server) -> None:
    first, second, third = made = news(3)
    await world.put(*made)
    await _tag(world, second.id, first.id, add=("vip", "ü"))
    await _tag(world, second.id, remove=("vip",))
    await _tag(world, third.id, add=("vip",))
    assert server.client.zrange(server.key("tag:vip"), 0, -1) == [first.id.encode(), third.id.encode()]
    assert server.client.zrange(server.key("tag:ü"), 0, -1) == [first.id.encode(), second.id.encode()]
    await _tag(world, first.id, third.id, remove=("vip",))
    assert not server.client.exists(server.key("tag:vip"))
    assert (await world.store.check()).sound


async def test_a_pruned_item_is_under_no_tag(world: World, server: Server) -> None:
    made = new()
    await world.put(made)
    await _tag(world, made.id, add=("vip", "eu"))
    await world.finish(finished(await world.lease_one()))
    assert len(list(server.client.scan_iter(server.key("tag:*")))) == 2
    await world.store.prune(EVERYTHING, 1, act())
    assert list(server.client.scan_iter(server.key("tag:*"))) == []


async def test_a_large_payload_from_elsewhere_is_packed(world: World, server: Server) -> None:
    told = foreign(world)
    told = replace(told, item=replace(told.item, payload=b"large " * 50_000))
    await world.store.take_in([told], act())
    kept, wrong = payload_of(server.client.hget(server.key("body"), told.item.id))
    assert (type(kept), wrong) == (Packed, None)
    assert (await world.item(told.item.id)).payload == told.item.payload


async def test_more_than_a_script_takes_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(take_in, "MOST", 9)
    with pytest.raises(ConfigError, match="2 letters are too many"):
        await world.store.take_in([foreign(world), foreign(world)], act())
    assert (await world.store.find(EVERYTHING)).items == ()


# --- before a write ---


async def _tags(world: World, item_id: str) -> object:
    return await world.store.amend(Ids((item_id,)), Tag(("vip",)), act())


async def _untags(world: World, item_id: str) -> object:
    return await world.store.amend(Ids((item_id,)), Tag((), ("old",)), act())


async def _prunes(world: World, item_id: str) -> object:
    return await world.store.prune(Ids((item_id,)), 1, act())


async def _takes_in(world: World, _: str) -> object:
    return await world.store.take_in([foreign(world)], act())


@pytest.mark.parametrize(
    ("do", "key"),
    [
        (_tags, "tag:vip"),
        (_untags, "tag:old"),
        (_prunes, "tag:old"),
        (_takes_in, "tag:eu"),
        (_takes_in, "attempts:far"),
        (_takes_in, "letters:r:open:billing"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__.strip("_"),
)
async def test_a_key_of_another_kind_is_told_before_anything_is_written(
    world: World,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    do: Callable[[World, str], Awaitable[object]],
    key: str,
) -> None:
    monkeypatch.setattr("redrive.testing.conformance.imports.fresh", lambda _: "far")
    made = new()
    await world.put(made)
    await _tag(world, made.id, add=("old",))
    await world.finish(finished(await world.lease_one()))
    server.client.delete(server.key(key))
    server.client.set(server.key(key), "somebody else's")
    before = server.snapshot()
    with pytest.raises(StoreCorrupt, match="is a string"):
        await do(world, made.id)
    assert server.snapshot() == before


# --- check, repair, and a restart ---


async def test_a_tag_that_many_have_is_checked_and_mended(
    world: World, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkup, "CHUNK", 20)
    made = news(MANY + 1)
    await world.put(*made)
    tagged = [one.id for one in made[:MANY]]
    await _tag(world, *tagged, add=("vip",))
    assert await world.store.check() == Checkup(len(made))
    server.client.zrem(server.key("tag:vip"), *tagged[:30])
    server.client.zadd(server.key("tag:vip"), {made[-1].id: 7, "nobody": 8})
    found = await world.store.check(quick=True)
    assert [(one.kind, one.count) for one in found.findings] == [("tags", 30), ("tags", 2)]
    assert checkup.can_repair(found)
    assert await checkup.repair(await _session(world)) == found.findings
    assert await world.store.check() == Checkup(len(made))
    assert [one.decode() for one in server.client.zrange(server.key("tag:vip"), 0, -1)] == tagged


async def test_after_a_restart_items_are_found_by_their_tags(world: World, server: Server) -> None:
    made = news(3)
    await world.put(*made)
    await _tag(world, *(one.id for one in made), add=("vip", "eu"))
    server.client.delete(server.key("tag:vip"))
    server.client.hset(server.key("boot"), "run", "another")
    await (await _session(world)).mend()
    assert (await world.store.check()).sound
    assert server.client.zcard(server.key("tag:vip")) == len(made)
