"""What binds items and bounds queues on Redis: what it costs in commands, and how it is checked and mended."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from redrive.core import lanes
from redrive.core.acts import (
    Cancel,
    Discard,
    Replay,
    Skip,
)
from redrive.core.filters import parse
from redrive.core.item import Dedupe, NewItem, Priority, Terms
from redrive.core.select import EVERYTHING, Ids
from redrive.core.states import State
from redrive.core.terms import DEPENDENCY_BYTES
from redrive.core.verbs import QueueChange
from redrive.errors import StoreCorrupt
from redrive.stores.redis import checkup, scripts
from redrive.stores.redis.checkup import REPAIRABLE, can_repair
from redrive.testing.conformance.kit import QUEUE, SECOND, World, act, asking, dead, failed, finished, ids, new
from tests.stores.planting import Edit, edited
from tests.stores.redis_office_kit import *  # noqa: F403 - the fixtures are meant
from tests.stores.redis_office_kit import Server

FEW, MANY = 10, 600
COUNTING = Edit(
    "prelude",
    "local call = redis.call",
    "local call = function(...) redis.call('HINCRBY', KEYS[1] .. 'counted', (...), 1) return redis.call(...) end",
)


def keyed(count: int, **terms: Any) -> list[NewItem]:
    return [new(terms=Terms(**terms)) for _ in range(count)]


# --- look-ups ---


async def _next_of_a_key(world: World, many: int) -> Callable[[], Awaitable[object]]:
    await world.put(*keyed(many, order_key="k"))
    head = await world.lease_one()
    return lambda: world.settle(finished(head), then=asking(5))


async def _dead_head(order: str, world: World, many: int) -> Callable[[], Awaitable[object]]:
    await world.store.configure(QUEUE, QueueChange(order=order))  # type: ignore[arg-type]
    await world.put(*keyed(many, order_key="k"))
    head = await world.lease_one()
    return lambda: world.settle(dead(head), then=asking(5))


async def _blocks(world: World, many: int) -> Callable[[], Awaitable[object]]:
    return await _dead_head("block", world, many)


async def _parks(world: World, many: int) -> Callable[[], Awaitable[object]]:
    return await _dead_head("park", world, many)


async def _skips(world: World, many: int) -> Callable[[], Awaitable[object]]:
    return await _dead_head("skip", world, many)


async def _sends_the_head_back(world: World, many: int) -> Callable[[], Awaitable[object]]:
    await (await _parks(world, many))()
    (letter,) = (await world.store.ids(parse("state:dead"))).ids
    return lambda: world.store.amend(Ids((letter,)), Replay(), act())


async def _joins_a_key(world: World, many: int) -> Callable[[], Awaitable[object]]:
    await world.put(*keyed(many, order_key="k"))
    return lambda: world.put(*keyed(1, order_key="k"))


async def _frees_one_of_many_that_wait(world: World, many: int) -> Callable[[], Awaitable[object]]:
    first, other = new(), new()
    await world.put(first, other, *keyed(many, after=(other.id,)), *keyed(1, after=(first.id,)))
    (held,) = await world.lease(1)
    return lambda: world.settle(finished(held), then=asking(1, worker="v"))


async def _passes_a_place_on(world: World, many: int) -> Callable[[], Awaitable[object]]:
    await world.store.configure(QUEUE, QueueChange(max_per_key=1))
    await world.put(*keyed(many, limit_key="k"))
    for _ in range(many // 1_000 + 2):
        await world.lease(1)
    (held,) = (await world.store.find(parse("state:leased"))).items
    return lambda: world.settle(finished(held), then=asking(1, worker="v"))


async def _finds_a_twin(world: World, many: int) -> Callable[[], Awaitable[object]]:
    await world.put(*[new(terms=Terms(dedupe=Dedupe(f"k{number}"))) for number in range(many)])
    return lambda: world.store.put([new(terms=Terms(dedupe=Dedupe("k5")))])


async def _asks_for_room(world: World, many: int) -> Callable[[], Awaitable[object]]:
    await world.store.configure(QUEUE, QueueChange(capacity=10 * many))
    await world.put(*keyed(many, order_key="k"))
    return lambda: world.put(new())


LOOK_UPS = [
    _next_of_a_key,
    _blocks,
    _parks,
    _skips,
    _sends_the_head_back,
    _joins_a_key,
    _frees_one_of_many_that_wait,
    _passes_a_place_on,
    _finds_a_twin,
    _asks_for_room,
]


def _counted() -> dict[str, scripts.Script]:
    """Each script counts its commands by name; those that only read cannot."""
    texts = {name: text for name, text in scripts.joined().items() if "no-writes" not in text.partition("\n")[0]}
    return {**scripts.load(), **{name: scripts.made(name, edited(text, COUNTING)) for name, text in texts.items()}}


@pytest.mark.parametrize("prepare", LOOK_UPS, ids=lambda prepare: prepare.__name__.strip("_"))
async def test_no_look_up_grows_with_what_waits(world: World, server: Server, prepare: Any) -> None:
    counts: list[Counter[str]] = []
    session = await world.store._here()  # type: ignore[attr-defined]  # noqa: SLF001 - it has the scripts
    session._scripts = await asyncio.to_thread(_counted)  # noqa: SLF001
    for many in (FEW, MANY):
        server.client.delete(*server.client.keys(f"{server.prefix}*"))
        do = await prepare(world, many)
        server.client.delete(server.key("counted"))
        await do()
        told = server.client.hgetall(server.key("counted"))
        counts.append(Counter({name.decode(): int(count) for name, count in told.items()}))
    assert counts[0].total() > 5
    assert counts[0] == counts[1]


async def test_a_plain_item_costs_no_command_more(world: World, server: Server) -> None:
    """As it was before there was anything to bind it: what settle asks of the queue is all that came to it."""
    session = await world.store._here()  # type: ignore[attr-defined]  # noqa: SLF001 - it has the scripts
    await world.put(*[new() for _ in range(20)])
    items = await world.lease(10)
    session._scripts = await asyncio.to_thread(_counted)  # noqa: SLF001
    await world.settle(*(finished(item) for item in items), then=asking(10))
    told = {name.decode(): int(count) for name, count in server.client.hgetall(server.key("counted")).items()}
    kinds = told.pop("TYPE")
    assert kinds <= 10
    assert told == {
        "HGET": 5,
        "HMGET": 3,
        "HSET": 3,
        "SMEMBERS": 2,
        "ZADD": 2,
        "ZRANGEBYSCORE": 1,
        "ZREM": 2,
    }


# --- before a write ---


@pytest.mark.parametrize(
    "key", ["lines:emails", "followers:emails\0k", "waits:w", "awaited:a", "dedupe", "slot:emails", "held:emails"]
)
async def test_a_key_of_another_kind_is_told_before_anything_is_written(world: World, server: Server, key: str) -> None:
    await world.put(
        NewItem("a", QUEUE, b"1", terms=Terms(order_key="k", limit_key="l", dedupe=Dedupe("d"))),
        NewItem("b", QUEUE, b"2", terms=Terms(order_key="k")),
        NewItem("w", QUEUE, b"3", terms=Terms(after=("a",))),
    )
    held = await world.lease_one()
    server.client.delete(server.key(key))
    server.client.set(server.key(key), "somebody else's")
    before = server.snapshot()
    with pytest.raises(StoreCorrupt, match="is a string"):
        await world.settle(finished(held), then=asking(5))
    assert server.snapshot() == before


async def test_limit_keys_that_somebody_made_something_else_of_are_left_alone(world: World, server: Server) -> None:
    """That is known only when others were given already: the lease goes on without them."""
    odd, sound = new(terms=Terms(limit_key="odd")), new()
    await world.put(odd, sound)
    server.client.set(server.key(f"slot:{QUEUE}"), "somebody else's")
    assert ids(await world.lease(5)) == (sound.id,)
    assert (await world.item(odd.id)).state is State.READY
    server.client.delete(server.key(f"slot:{QUEUE}"))
    assert ids(await world.lease(5)) == (odd.id,)


async def test_the_failure_of_a_dependency_is_that_of_core_terms(world: World, server: Server) -> None:
    first = new()
    second = new(terms=Terms(after=(first.id,), on_dead="die"))
    await world.put(first, second)
    await world.store.amend(Ids((first.id,)), Cancel(), act())
    assert server.client.hget(server.key("failure"), second.id) == DEPENDENCY_BYTES


async def test_a_line_that_cannot_be_read_is_told(world: World, server: Server) -> None:
    await world.put(*keyed(2, order_key="k"))
    server.client.hset(server.key(f"lines:{QUEUE}"), "k", b"\xc1")
    with pytest.raises(StoreCorrupt, match="order key k"):
        await world.put(*keyed(1, order_key="k"))


# --- as core says ---


@pytest.mark.parametrize("priority", Priority)
@pytest.mark.parametrize("tried", [False, True])
async def test_levels_are_those_of_core_lanes(world: World, server: Server, priority: Priority, tried: bool) -> None:
    await world.put(NewItem("i", QUEUE, b"1", priority=priority))
    if tried:
        await world.finish(failed(await world.lease_one()))
    level = lanes.level_of(await world.item("i"))
    assert server.client.zcard(server.key(f"ready:{level}:{QUEUE}")) == 1


# --- check and repair ---


class Damage(NamedTuple):
    """What is done behind redrive's back, and the kinds of findings that must come of it."""

    name: str
    do: Callable[[Any, Callable[[str], str]], Any]
    kinds: set[str]

    def __str__(self) -> str:
        return self.name


DAMAGES = (
    Damage("no line", lambda c, key: c.hdel(key("lines:emails"), "k"), {"lines"}),
    Damage("a line of nothing", lambda c, key: c.hset(key("lines:emails"), "k", b"\x90"), {"lines"}),
    Damage(
        "a head that is gone", lambda c, key: c.hset(key("lines:emails"), "k", b"\x94\x03\xa4gone\x00\xa0"), {"lines"}
    ),
    Damage(
        "a live head that blocks",
        lambda c, key: c.hset(key("lines:emails"), "k", b"\x94\x09\xa5first\x01\xa0"),
        {"lines"},
    ),
    Damage("no place in line", lambda c, key: c.zrem(key("followers:emails\0k"), "second"), {"lines"}),
    Damage("another place", lambda c, key: c.zadd(key("followers:emails\0k"), {"second": 9}), {"lines"}),
    Damage("a place of nobody", lambda c, key: c.zadd(key("followers:emails\0k"), {"nobody": 9}), {"lines"}),
    Damage("parked for nothing", lambda c, key: c.zadd(key("parked:emails"), {"k": 0}), {"lines"}),
    Damage("not parked", lambda c, key: c.delete(key("parked:calls")), {"lines"}),
    Damage("not counted", lambda c, key: c.delete(key("slot:emails")), {"slots"}),
    Damage("counted for nothing", lambda c, key: c.zadd(key("slot:emails"), {"l\0second": 0}), {"slots"}),
    Damage("not set aside", lambda c, key: c.delete(key("aside:emails\0l")), {"slots"}),
    Damage("set aside for nothing", lambda c, key: c.zadd(key("aside:emails\0m"), {"second": 9}), {"slots"}),
    Damage("not listed", lambda c, key: c.delete(key("asides:emails")), {"slots"}),
    Damage("listed for nothing", lambda c, key: c.zadd(key("asides:emails"), {"z": 0}), {"slots"}),
    Damage("waits for nobody", lambda c, key: c.delete(key("waits:waiting")), {"dependencies", "holds"}),
    Damage("nobody knows", lambda c, key: c.delete(key("awaited:first")), {"dependencies"}),
    Damage("waits for a stranger", lambda c, key: c.zadd(key("waits:waiting"), {"nobody": 9}), {"dependencies"}),
    Damage("a key of nobody", lambda c, key: c.hset(key("dedupe"), "emails\0z", b"\x92\xa6nobody\xc2"), {"dedupe"}),
    Damage("a window of nobody", lambda c, key: c.zadd(key("windows"), {"emails\0z": 9}), {"dedupe"}),
    Damage("no window", lambda c, key: c.delete(key("windows")), {"dedupe"}),
    Damage("a route too few", lambda c, key: c.zrem(key("routes"), "abroad"), {"routes"}),
    Damage("a route too many", lambda c, key: c.zadd(key("routes"), {"nowhere": 3}), {"routes"}),
    Damage("not held", lambda c, key: c.zrem(key("held:emails"), "second"), {"indexes"}),
    Damage("held by nobody", lambda c, key: c.zadd(key("held:emails"), {"nobody": 9}), {"indexes"}),
)


async def _bound(world: World) -> None:
    """One of each: a line, a parked line, a slot and one set aside, a dependency, a window, a route."""
    await world.store.configure("calls", QueueChange(order="park"))
    await world.store.configure(QUEUE, QueueChange(max_per_key=1))
    await world.put(NewItem("died", "calls", b"1", terms=Terms(order_key="k")))
    await world.put(NewItem("behind", "calls", b"1", terms=Terms(order_key="k")))
    await world.finish(dead(await world.grab("died", "calls"), route="abroad"))
    await world.put(NewItem("done", QUEUE, b"1", terms=Terms(dedupe=Dedupe("d", window=3_600 * SECOND))))
    await world.finish(finished(await world.grab("done", QUEUE)))
    await world.put(
        NewItem("runs", QUEUE, b"1", terms=Terms(limit_key="l", dedupe=Dedupe("e"))),
        NewItem("aside", QUEUE, b"1", terms=Terms(limit_key="l")),
    )
    await world.lease(5)
    await world.put(
        NewItem("first", QUEUE, b"1", terms=Terms(order_key="k")),
        NewItem("second", QUEUE, b"1", terms=Terms(order_key="k")),
        NewItem("waiting", QUEUE, b"1", terms=Terms(after=("first",))),
    )


@pytest.mark.parametrize("damage", DAMAGES, ids=str)
async def test_a_flaw_in_what_binds_items_is_found_and_mended(world: World, server: Server, damage: Damage) -> None:
    await _bound(world)
    assert not (await world.store.check()).findings
    before = {item.id: item for item in (await world.store.find(EVERYTHING)).items}
    damage.do(server.client, server.key)
    found = await world.store.check(quick=True)
    kinds = {finding.kind for finding in found.findings}
    assert damage.kinds <= kinds <= damage.kinds | {"holds"}
    assert kinds <= REPAIRABLE
    assert can_repair(found)
    await checkup.repair(await world.store._here())  # type: ignore[attr-defined]  # noqa: SLF001 - as db check --repair
    assert not (await world.store.check()).findings
    assert {item.id for item in (await world.store.find(EVERYTHING)).items} == before.keys()


async def test_what_was_mended_goes_on(world: World, server: Server) -> None:
    """A line whose head is gone: whoever is next takes its place, and the others come after it."""
    await world.put(*(NewItem(name, QUEUE, b"1", terms=Terms(order_key="k")) for name in "abc"))
    server.client.hset(server.key(f"lines:{QUEUE}"), "k", b"\x94\x03\xa4gone\x00\xa0")
    await checkup.repair(await world.store._here())  # type: ignore[attr-defined]  # noqa: SLF001 - as db check --repair
    given = []
    for _ in range(3):
        (item,) = await world.lease(5)
        given.append(item.id)
        await world.finish(finished(item))
    assert sorted(given) == ["a", "b", "c"]


async def _behind(world: World) -> None:
    """A line whose head runs, and has a later place than the follower that was replayed."""
    await world.store.configure(QUEUE, QueueChange(order="skip"))
    await world.put(*(NewItem(name, QUEUE, b"1", terms=Terms(order_key="k")) for name in ("early", "head", "late")))
    await world.put(NewItem("waits", QUEUE, b"1", terms=Terms(after=("early",))))
    await world.finish(dead(await world.grab("early", QUEUE)))
    await world.grab("head", QUEUE)
    await world.store.amend(Ids(("early",)), Replay(), act())


LOST_LINES = {
    "gone": lambda c, key: c.hdel(key("lines:emails"), "k"),
    "cannot be read": lambda c, key: c.hset(key("lines:emails"), "k", b"\x90"),
    "of a head that is gone": lambda c, key: c.hset(key("lines:emails"), "k", b"\x94\x03\xa4gone\x00\xa0"),
    "of a head that does not run": lambda c, key: c.hset(key("lines:emails"), "k", b"\x94\x03\xa4late\x00\xa0"),
    "that is blocked by who lives": lambda c, key: c.hset(key("lines:emails"), "k", b"\x94\x05\xa4head\x01\xa0"),
    "blocked by who is to wait": lambda c, key: c.hset(key("lines:emails"), "k", b"\x94\x05\xa4late\x01\xa0"),
    "that looks behind nobody": lambda c, key: c.hset(key("lines:emails"), "k", b"\x94\x01\xa4head\x00\xa0"),
    "gone with all sets": lambda c, key: c.delete(
        key("lines:emails"), key("followers:emails\0k"), key("leased:emails")
    ),
}


@pytest.mark.parametrize("lost", LOST_LINES)
async def test_who_runs_is_the_head_of_a_line_that_was_lost(
    world: World, server: Server, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """Wherever it stands: nobody else of the line runs beside it, and all go on behind it."""
    # So that not all of it is mended by one script.
    monkeypatch.setattr(checkup, "CHUNK", 2)
    await _behind(world)
    assert not (await world.store.check()).findings
    LOST_LINES[lost](server.client, server.key)
    assert {"lines"} <= {finding.kind for finding in (await world.store.check()).findings}
    await checkup.repair(await world.store._here())  # type: ignore[attr-defined]  # noqa: SLF001 - as db check --repair
    assert not (await world.store.check()).findings
    assert not await world.lease(5)
    await world.finish(finished(await world.item("head")))
    given = []
    for _ in range(2):
        leased = await world.lease(5)
        given.append({item.id for item in leased})
        await world.finish(*map(finished, leased))
    assert given == [{"early"}, {"late", "waits"}]


async def test_check_finds_nothing_in_what_acts_made_of_lines(world: World) -> None:
    await world.put(*(NewItem(name, QUEUE, b"1", terms=Terms(order_key="k")) for name in "abcd"))
    await world.finish(dead(await world.grab("a", QUEUE)))
    for change in (Skip(), Discard()):
        await world.store.amend(Ids(("a",)), change, act())
        assert not (await world.store.check()).findings
    await world.finish(dead(await world.grab("b", QUEUE)))
    await world.store.amend(Ids(("c",)), Cancel(), act())
    await world.store.amend(Ids(("b",)), Replay(), act())
    assert not (await world.store.check()).findings
