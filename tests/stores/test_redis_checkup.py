"""`check` on Redis finds each kind of flaw and takes no work for one; repair puts right what follows from the items."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import pytest

from redrive.core.acts import (
    Archive,
    Cancel,
    Discard,
    Tag,
)
from redrive.core.item import Item
from redrive.core.select import EVERYTHING, Ids
from redrive.core.verbs import Checkup
from redrive.errors import ConfigError
from redrive.stores.redis import checkup
from redrive.stores.redis.checkup import REPAIRABLE, can_repair
from redrive.stores.redis.session import Session
from redrive.testing.conformance.kit import World, act, dead, failed, finished, new, news
from tests.stores.redis_office_kit import *  # noqa: F403 - the fixtures are meant
from tests.stores.redis_office_kit import Server


class Damage(NamedTuple):
    """What is done to the server behind redrive's back, and the kinds of findings that must come of it."""

    name: str
    do: Callable[[Server, dict[str, Item]], Any]
    kinds: tuple[str, ...]
    quick: bool = True

    def __str__(self) -> str:
        return self.name


def _altered(server: Server, item: Item, place: int, value: object) -> None:
    """A record with one field changed, and nothing with it."""
    record = msgspec.msgpack.decode(server.client.hget(server.key("item"), item.id))
    record[place] = value
    # As the scripts write it: a list with a head of three bytes.
    packed = b"\xdc\x00\x13" + b"".join(msgspec.msgpack.encode(field) for field in record)
    server.client.hset(server.key("item"), item.id, packed)


def _member(item: Item) -> str:
    return f"{item.seq:016d}{item.id}"


DAMAGES = (
    Damage("not ready", lambda s, i: s.client.zrem(s.key("ready:0:emails"), _member(i["ready"])), ("indexes",)),
    Damage("not leased", lambda s, i: s.client.zrem(s.key("leased:emails"), _member(i["leased"])), ("indexes",)),
    Damage("not done", lambda s, i: s.client.zrem(s.key("ended:done:emails"), i["done"].id), ("indexes",)),
    Damage("not listed", lambda s, i: s.client.zrem(s.key("items"), i["done"].id), ("indexes",)),
    Damage("not by cause", lambda s, i: s.client.zrem(s.key("letters:c:open:c1"), _member(i["open"])), ("indexes",)),
    Damage(
        "due at another time",
        lambda s, i: s.client.zadd(s.key("ready:0:emails"), {_member(i["ready"]): 1}),
        ("indexes",),
    ),
    Damage("no level", lambda s, _: s.client.delete(s.key("levels:emails")), ("indexes",)),
    Damage("a set is gone", lambda s, _: s.client.delete(s.key("letters")), ("indexes",)),
    Damage("of no item", lambda s, _: s.client.zadd(s.key("ready:0:emails"), {f"{9:016d}nobody": 5}), ("indexes",)),
    Damage("of no item, listed", lambda s, _: s.client.zadd(s.key("items"), {"nobody": 5}), ("indexes",)),
    Damage(
        "in two states",
        lambda s, i: s.client.zadd(s.key("leased:emails"), {_member(i["ready"]): 5}),
        ("indexes",),
    ),
    Damage(
        "of another cause",
        lambda s, i: s.client.zadd(s.key("letters:c:open:c9"), {_member(i["open"]): 5}),
        ("indexes",),
    ),
    Damage("not declared", lambda s, _: s.client.hdel(s.key("queues"), "emails"), ("counters",)),
    Damage("a cause too many", lambda s, _: s.client.zadd(s.key("causes"), {"c9\0emails": 3}), ("causes",)),
    Damage("a cause too few", lambda s, _: s.client.zrem(s.key("causes"), "c1\0emails"), ("causes",)),
    Damage("a cause miscounted", lambda s, _: s.client.zadd(s.key("causes"), {"c1\0emails": 7}), ("causes",)),
    Damage("an early number", lambda s, _: s.client.hset(s.key("sequence"), "item", 1), ("sequence",)),
    Damage("no number", lambda s, _: s.client.hset(s.key("sequence"), "item", "x"), ("sequence",)),
    Damage("an early change number", lambda s, _: s.client.hset(s.key("sequence"), "change", 1), ("sequence",)),
    Damage("no change number", lambda s, i: s.client.zrem(s.key("changes"), i["archived"].id), ("changes",)),
    Damage("not under its tag", lambda s, i: s.client.zrem(s.key("tag:vip"), i["archived"].id), ("tags",)),
    Damage("no such tag", lambda s, _: s.client.delete(s.key("tag:vip")), ("tags",)),
    Damage("tagged at another number", lambda s, i: s.client.zadd(s.key("tag:vip"), {i["archived"].id: 1}), ("tags",)),
    Damage("tagged by nobody", lambda s, i: s.client.zadd(s.key("tag:vip"), {i["done"].id: i["done"].seq}), ("tags",)),
    Damage("a tag of nobody", lambda s, _: s.client.zadd(s.key("tag:eu"), {"nobody": 5}), ("tags",)),
    Damage("no record", lambda s, i: s.client.hset(s.key("item"), i["done"].id, b"\xc1"), ("records",)),
    Damage("a short record", lambda s, i: s.client.hset(s.key("item"), i["done"].id, b"\x91\x01"), ("records",)),
    Damage("of no state", lambda s, i: _altered(s, i["done"], 2, "lost"), ("states", "indexes")),
    Damage("held by nobody", lambda s, i: _altered(s, i["done"], 15, 5), ("states",)),
    Damage("without an end", lambda s, i: _altered(s, i["done"], 16, False), ("states",)),
    Damage("dead without a letter", lambda s, i: _altered(s, i["open"], 18, False), ("letters", "indexes")),
    Damage("no payload", lambda s, i: s.client.hdel(s.key("body"), i["ready"].id), ("payloads",)),
    Damage("no evidence", lambda s, i: s.client.hdel(s.key("failure"), i["open"].id), ("letters",)),
    Damage("a payload alone", lambda s, _: s.client.hset(s.key("body"), "nobody", b"x"), ("payloads",)),
    Damage("a result alone", lambda s, _: s.client.hset(s.key("result"), "nobody", b"\0x"), ("results",)),
    Damage("evidence alone", lambda s, i: s.client.hset(s.key("failure"), i["done"].id, b"{}"), ("letters",)),
    Damage("attempts alone", lambda s, _: s.client.rpush(s.key("attempts:nobody"), b"{}"), ("history",)),
    Damage("acts alone", lambda s, _: s.client.hset(s.key("deeds"), "nobody", b"x"), ("history",)),
    Damage(
        "pruned and there",
        lambda s, i: s.client.hset(s.key("tombstones"), i["done"].id, b"x"),
        ("tombstones",),
    ),
    Damage(
        "another payload",
        lambda s, i: s.client.hset(s.key("body"), i["ready"].id, b"\0\0\0\0\0other"),
        ("payloads",),
        quick=False,
    ),
    Damage(
        "a short payload", lambda s, i: s.client.hset(s.key("body"), i["ready"].id, b"\0"), ("payloads",), quick=False
    ),
    Damage(
        "a result that does not unpack",
        lambda s, i: s.client.hset(s.key("result"), i["done"].id, b"\1nothing packed"),
        ("results",),
        quick=False,
    ),
    Damage(
        "no such evidence", lambda s, i: s.client.hset(s.key("failure"), i["open"].id, b"{"), ("letters",), quick=False
    ),
    Damage(
        "an attempt of nothing",
        lambda s, i: s.client.lset(s.key(f"attempts:{i['open'].id}"), 0, "{"),
        ("history",),
        quick=False,
    ),
    Damage(
        "acts of nothing",
        lambda s, i: s.client.hset(s.key("deeds"), i["archived"].id, b"00000001"),
        ("history",),
        quick=False,
    ),
)
MENDABLE = tuple(damage for damage in DAMAGES if REPAIRABLE.issuperset(damage.kinds))


_PREPARED: list[tuple[dict[str, tuple[bytes, int]], dict[str, Item]]] = []
"""The keys of a namespace that was lived in, each with what is in it and how long it lasts; and the items."""


async def _lived(world: World, server: Server) -> dict[str, Item]:
    """One item of every kind. They are made once: to put the keys back takes a twentieth of the time."""
    if not _PREPARED:
        items = await _live(world)
        keys = {key.decode().removeprefix(server.prefix): value for key, value in server.snapshot().items()}
        lasting = {name: (value, max(0, server.client.pttl(server.key(name)))) for name, value in keys.items()}
        _PREPARED.append((lasting, items))
        return items
    kept, items = _PREPARED[0]
    with server.client.pipeline(transaction=False) as pipeline:
        for name, (value, lasts) in kept.items():
            pipeline.restore(server.key(name), lasts, value, replace=True)
        pipeline.execute()
    return items


async def _live(world: World) -> dict[str, Item]:
    """The suspect first: whoever leases would get it before all others."""
    items = {"suspect": await world.suspect(1), "open": await world.letter("c1"), "archived": await world.letter("c2")}
    items["trash"] = await world.letter("c1")
    await world.store.amend(Ids((items["archived"].id,)), Archive(), act())
    await world.store.amend(Ids((items["archived"].id,)), Tag(("vip",)), act())
    await world.store.amend(Ids((items["trash"].id,)), Discard(), act())
    for name, end in (("done", finished), ("retried", failed), ("leased", None)):
        made = new()
        await world.put(made)
        item = await world.grab(made.id)
        if end is not None:
            await world.finish(end(item))
        items[name] = await world.item(made.id)
    for name in ("ready", "cancelled"):
        made = new()
        await world.put(made)
        items[name] = await world.item(made.id)
    await world.store.amend(Ids((items["cancelled"].id,)), Cancel(), act())
    return items


def _kinds(found: Checkup) -> set[str]:
    return {finding.kind for finding in found.findings}


async def _session(world: World) -> Session:
    session: Session = await world.store._here()  # type: ignore[attr-defined]  # noqa: SLF001 - repair is no verb
    return session


@pytest.mark.parametrize("damage", DAMAGES, ids=str)
async def test_check_finds(world: World, server: Server, damage: Damage) -> None:
    items = await _lived(world, server)
    assert (await world.store.check()).sound
    damage.do(server, items)
    assert _kinds(await world.store.check()) == set(damage.kinds)
    quick = await world.store.check(quick=True)
    assert _kinds(quick) == (set(damage.kinds) if damage.quick else set())


@pytest.mark.parametrize("damage", MENDABLE, ids=str)
async def test_repair_puts_right(world: World, server: Server, damage: Damage) -> None:
    items = await _lived(world, server)
    tally, causes = await world.store.tally(), await world.store.causes()
    everything = (await world.store.find(EVERYTHING)).items
    damage.do(server, items)
    found = await world.store.check()
    assert can_repair(found)
    assert await checkup.repair(await _session(world)) == found.findings
    assert await world.store.check() == Checkup(len(items))
    assert await world.store.tally() == tally
    assert await world.store.causes() == causes
    assert (await world.store.find(EVERYTHING)).items == everything


async def test_repair_of_what_is_sound_changes_nothing(world: World, server: Server) -> None:
    await _lived(world, server)
    before = _dumped(server)
    assert len(before) > 10
    assert await checkup.repair(await _session(world)) == ()
    assert _dumped(server) == before


def _dumped(server: Server) -> dict[bytes, tuple[Any, Any]]:
    """All that is kept under this prefix; others write to the same server meanwhile."""
    keys = server.client.scan_iter(match=server.key("*"))
    return {key: (server.client.dump(key), server.client.pexpiretime(key)) for key in keys}


async def test_what_cannot_be_read_is_not_repaired_by(world: World, server: Server) -> None:
    """Its entries are all that leads to its payload."""
    items = await _lived(world, server)
    server.client.hset(server.key("item"), items["done"].id, b"\xc1")
    # So that the index is looked at entry by entry.
    server.client.zadd(server.key("ended:done:emails"), {"nobody": 5})
    found = await world.store.check()
    assert _kinds(found) == {"indexes", "records"}
    assert not can_repair(found)
    await checkup.repair(await _session(world))
    assert server.client.zscore(server.key("ended:done:emails"), items["done"].id) is not None


async def test_everything_is_walked_in_chunks(world: World, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "CHUNK", 20)
    monkeypatch.setattr(checkup, "BODIES", 10)
    # So many that the server keeps them in a table, of which it gives a part at a time.
    items = news(560)
    await world.put(*items)
    leased = await world.lease(540)
    await world.finish(*[dead(item) for item in leased])
    assert await world.store.check() == Checkup(560)
    gone = [item.id for item in leased[::50]]
    for item in leased[::50]:
        server.client.zrem(server.key("letters:e:open:SMTPTimeout"), _member(item))
        server.client.zadd(server.key("ready:0:emails"), {_member(item): 1})
    found = await world.store.check()
    assert [(finding.kind, finding.count) for finding in found.findings] == [("indexes", len(gone))] * 2
    await checkup.repair(await _session(world))
    assert await world.store.check() == Checkup(560)


async def test_check_takes_no_work_for_a_flaw(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "CHUNK", 10)
    monkeypatch.setattr(checkup, "BODIES", 10)
    await world.put(*news(560))
    stop = asyncio.Event()

    async def work() -> None:
        while not stop.is_set():
            await world.store.put(news(5))
            first, second, *_ = await world.lease(5)
            await world.finish(finished(first), dead(second))
            await world.store.amend(Ids((second.id,)), Discard(), act())
            await world.store.prune(EVERYTHING, 1, act())

    working = asyncio.ensure_future(work())
    found = [await world.store.check(quick=number % 2 == 1) for number in range(2)]
    stop.set()
    await working
    assert [one.findings for one in found] == [()] * len(found)


async def test_a_namespace_is_checked_and_no_other(world: World, server: Server) -> None:
    """Also one whose name the server would take for a pattern is none."""
    await _lived(world, server)
    other = server.prefix.replace("{", "{x")
    server.client.zadd(f"{other}items", {"nobody": 1})
    try:
        assert (await world.store.check()).sound
    finally:
        server.client.delete(f"{other}items")


async def test_the_server_copies_itself(world: World) -> None:
    with pytest.raises(ConfigError, match="server") as refused:
        await world.store.backup("copy")
    assert "BGSAVE" in refused.value.hint
