"""What Redis makes special: scripts that cannot be taken back, keys that others may touch, and a server that forgets.

Each pitfall that is known of Redis as a queue has its test here, or in test_redis_servers.py and test_redis_links.py
where it needs a server or a line of its own.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

import redrive.stores
from redrive.core.acts import Archive, Replay, Reserve
from redrive.core.item import NewItem, Priority
from redrive.core.select import EVERYTHING, Ids
from redrive.core.states import State
from redrive.core.verbs import (
    DocumentWrite,
    Want,
    WorkerFacts,
)
from redrive.errors import ConfigError, StoreCorrupt, StoreTooNew, StoreUnavailable
from redrive.stores.redis import RedisStore, boot, scripts
from redrive.stores.url import store_from_url
from redrive.testing.conformance.kit import (
    PATIENCE,
    QUEUE,
    SECOND,
    TTL,
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
from tests.stores.redis_office_kit import Server, hastily
from tests.stores.teeth_kit import world_by
from tests.support.rest import turns
from tests.support.servers.redis import private_redis

LUA = Path(redrive.stores.__file__).parent / "lua"
FIELDS = 19
"""Of the record of an item that has no priority, hold or tie."""
HOT = ("put", "lease", "settle", "extend", "reclaim", "due")


# --- scripts ---


@pytest.mark.parametrize("path", sorted(LUA.glob("*.lua")), ids=lambda path: path.stem)
def test_a_script_opens_with_its_contract(path: Path) -> None:
    text = path.read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#!")]
    opening = "\n".join(lines[: next(at for at, line in enumerate(lines) if not line.startswith("--"))])
    assert all(f"-- {word}: " in re.sub(" +", " ", opening) for word in ("Inputs", "Outputs", "Atomicity")), opening


def test_the_rights_that_are_checked_are_those_that_scripts_need() -> None:
    text = "\n".join(script.text.decode() for script in scripts.load().values())
    used = set(re.findall(r"(?<!p)call\('([A-Z]+)'", text)) | set(re.findall(r"send\('([A-Z]+)'", text))
    assert used == {name for name, *_ in boot.commands("{x}:")}


def test_only_publishing_may_fail_after_a_write() -> None:
    """And it is a hint that may be lost."""
    text = "\n".join(script.text.decode() for script in scripts.load().values())
    assert set(re.findall(r"pcall\('([A-Z]+)'", text)) == {"PUBLISH"}


@pytest.mark.parametrize("name", HOT)
def test_no_script_of_the_hot_path_scans(name: str) -> None:
    assert not re.search(r"'(SCAN|KEYS|HSCAN|ZSCAN|SSCAN|HGETALL|HKEYS)'", scripts.load()[name].text.decode())


def test_who_takes_new_work_is_refused_when_memory_is_full_and_who_ends_it_is_not() -> None:
    flags = {name: script.text.partition(b"\n")[0].decode() for name, script in scripts.load().items()}
    assert {name for name in HOT if "allow-oom" in flags[name]} == {"lease", "settle", "extend", "reclaim"}
    assert "no-writes" in flags["due"]
    assert flags["put"] == "#!lua"


async def test_a_server_that_has_forgotten_the_scripts_is_told_them_again(world: World, server: Server) -> None:
    await world.put(new())
    server.client.script_flush()
    item = await world.lease_one()
    server.client.script_flush()
    await world.finish(finished(item))


@pytest.mark.parametrize(
    ("key", "verb"),
    [
        ("leased:emails", "lease"),
        ("nonce", "lease"),
        ("alone", "lease"),
        ("body", "lease"),
        ("ready:0:replies", "settle"),
        ("items", "settle"),
        ("levels:emails", "settle"),
        ("failure", "settle"),
        ("causes", "settle"),
        ("changes", "settle"),
        ("nonce", "settle"),
        ("leased:emails", "settle"),
    ],
)
async def test_a_key_of_another_kind_is_told_before_anything_is_written(
    world: World, server: Server, key: str, verb: str
) -> None:
    """A script is not rolled back: what it finds out in the middle is too late."""
    await world.put(*news(5))
    dying, retrying, third = await world.lease(3)
    server.client.delete(server.key(key))
    server.client.set(server.key(key), "somebody else's")
    before = server.snapshot()
    settlements = [dead(dying), after_crash(retrying), finished(third, follow_ups=[new(queue="replies")])]
    doing = world.lease(2) if verb == "lease" else world.settle(*settlements, then=asking(5))
    with pytest.raises(StoreCorrupt, match=re.escape(f"the key {server.key(key)} is a string")):
        await doing
    assert server.snapshot() == before


async def test_nothing_that_redrive_keeps_can_expire(world: World, server: Server) -> None:
    """A key with a time to live is gone when the clock jumps. A lease is a number beside a fence."""
    await _everything(world)
    keys = list(server.client.scan_iter(match=f"{server.prefix}*"))
    assert len(keys) > 15
    assert {server.client.ttl(key) for key in keys} == {-1}


async def test_every_key_is_in_the_slot_of_its_namespace() -> None:
    """On a server of its own: on the other one others make keys meanwhile."""
    with private_redis() as alone, redis.Redis.from_url(alone.url()) as client:
        url = alone.url(namespace="mine")
        async with world_by(lambda clock: store_from_url(url, clock=clock))() as world:
            await _everything(world)
        keys: Any = client.keys("*")
        assert len(keys) > 15
        assert [key for key in keys if not key.startswith(b"{mine}:")] == []


async def _everything(world: World) -> None:
    """All verbs that write."""
    item, other = new(), new()
    await world.put(item, other, new(delay=SECOND))
    first, second = await world.lease(2)
    await world.finish(finished(first, result=b"1", follow_ups=[new()]), dead(second))
    await world.suspect(queue="calls")
    await world.letter(queue="letters")
    await world.store.beat("w", WorkerFacts((QUEUE,)), TTL)
    await world.store.elect("reaper", "w", TTL)
    await world.store.amend(Ids((other.id,)), Archive(), act())
    await world.store.amend(Ids((other.id,)), Replay(), act())
    await world.store.prune(Ids((item.id,)), 1, act())
    await world.store.write_documents([DocumentWrite("kind", "key", b"body")])
    await world.store.check()


# --- bodies ---


@pytest.mark.parametrize(
    "payload",
    [
        b'{"n": 12345678901234567890, "e": [], "f": 0.1}',
        b"[" * 2_000 + b"]" * 2_000,
        b"\x00\xff\xc3\x28\x0d\x0a$-1\r\n",
        b"",
    ],
)
async def test_a_script_never_looks_into_a_payload(world: World, payload: bytes) -> None:
    await world.put(new(payload))
    item = await world.lease_one()
    await world.finish(finished(item, result=payload))
    done = await world.item(item.id)
    assert (item.payload, done.payload, done.result) == (payload, payload, payload)


async def test_a_damaged_payload_becomes_a_letter_and_is_not_run(world: World, server: Server) -> None:
    broken, sound = news(2)
    await world.put(broken, sound)
    body = server.client.hget(server.key("body"), broken.id)
    server.client.hset(server.key("body"), broken.id, body[:-1] + b"?")
    assert ids(await world.lease(5)) == (sound.id,)
    letter = await world.item(broken.id)
    assert letter.state is State.DEAD
    assert letter.letter is not None
    assert letter.letter.reason == "damaged"


async def test_a_payload_that_is_gone_becomes_a_letter_too(world: World, server: Server) -> None:
    item = await world.held()
    server.client.hdel(server.key("body"), item.id)
    world.tick(TTL + 1)
    assert await world.store.reclaim("reaper", [QUEUE], TTL, 5) == ()
    assert (await world.item(item.id)).state is State.DEAD


# --- batches ---


async def test_batches_that_do_not_fit_on_the_stack_of_a_script(world: World) -> None:
    made = news(5_000)
    await world.put(*made)
    items = await world.lease(5_000)
    assert ids(items) == ids(made)
    half = len(items) // 2
    retried = [failed(item) for item in items[half:]]
    settled = await world.settle(*[dead(item) for item in items[:half]], *retried, then=asking(5_000))
    assert settled.leases is not None
    assert ids(settled.leases.items) == ids(items[half:])
    count = await world.count()
    assert (count.open, count.leased) == (half, len(items) - half)


async def test_a_put_that_the_server_would_not_take_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.stores.redis.put.MOST", 1_500)
    with pytest.raises(ConfigError, match="too many for one put"):
        await world.store.put(news(1_501))
    assert (await world.store.find(EVERYTHING)).items == ()


async def test_a_value_that_cannot_be_stored_is_told(world: World) -> None:
    with pytest.raises(ConfigError, match="cannot be stored"):
        await world.store.lease(asking(worker="half \ud800"))
    with pytest.raises(ConfigError, match="cannot be stored"):
        await world.store.lease(asking(wants=[Want(QUEUE, 1, 2**70, 3)]))


# --- leases ---


async def test_what_a_set_has_and_its_item_does_not_know_of_blocks_nobody(world: World, server: Server) -> None:
    made = news(2)
    await world.put(*made)
    first = server.client.zrange(server.key(f"ready:0:{QUEUE}"), 0, 0)[0]
    server.client.zadd(server.key(f"ready:0:{QUEUE}"), {b"0000000000000000ghost": 1})
    server.client.hdel(server.key("item"), made[0].id)
    assert await world.lease(2) == ()
    assert ids(await world.lease(2)) == (made[1].id,)
    assert server.client.zscore(server.key(f"ready:0:{QUEUE}"), first) is None


@pytest.mark.parametrize("wrong", ["0", "2"])
async def test_a_suspect_in_the_wrong_set_is_not_given_beside_others(world: World, server: Server, wrong: str) -> None:
    """A lease that finds it there moves it where it belongs; then it is given, and alone."""
    suspect, others = await world.suspect(), news(3)
    await world.put(*others)
    (level,) = server.client.smembers(server.key(f"levels:{QUEUE}"))
    (member,) = server.client.zrange(server.key(f"ready:{level.decode()}:{QUEUE}"), 0, -1)
    server.client.delete(server.key(f"ready:{level.decode()}:{QUEUE}"), server.key(f"levels:{QUEUE}"))
    server.client.zadd(server.key(f"ready:{wrong}:{QUEUE}"), {member: 1})
    if wrong != "0":
        server.client.sadd(server.key(f"levels:{QUEUE}"), wrong)
    world.clock.advance(3_600 * SECOND)
    first = await world.lease(9)
    assert ids(first) == ids(others)
    assert not any(item.alone for item in first)
    await world.finish(*(finished(item) for item in first))
    (second,) = await world.lease(9)
    assert (second.id, second.alone) == (suspect.id, True)


async def test_a_plain_item_has_a_short_record(world: World, server: Server) -> None:
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


async def test_a_worker_that_has_not_asked_for_a_day_is_forgotten(world: World, server: Server) -> None:
    for number in range(5):
        await world.held(worker=f"old-{number}")
    world.tick(25 * 3_600 * SECOND)
    await world.held(worker="new-1")
    assert server.client.hkeys(server.key("nonce")) == [b"new-1"]


async def test_asking_for_nothing_writes_nothing(world: World, server: Server) -> None:
    """A worker without work must not make the server sync its log every second."""
    await world.put(new(delay=SECOND))
    before = server.snapshot()
    for _ in range(3):
        assert await world.lease(5) == ()
    assert server.snapshot() == before


async def test_numbers_and_reservations_cost_items_that_are_no_letters_nothing() -> None:
    """Not one command more beside letters than without any."""
    with private_redis() as server, redis.Redis.from_url(server.url()) as client:
        store = await store_from_url(server.url()).open()

        async def work() -> dict[str, int]:
            made = news(5)
            client.config_resetstat()
            await store.put(made)
            for item in (await store.lease(asking(5))).items:
                await store.settle([finished(item)])
            return {name: facts["calls"] for name, facts in client.info("commandstats").items()}

        await work()
        plain = await work()
        await store.put(doomed := news(2, "other"))
        await store.settle([dead(item) for item in (await store.lease(asking(2, queue="other"))).items])
        assert (await store.amend(Ids(ids(doomed)), Reserve("replay"), act())).changed == ids(doomed)
        assert await work() == plain
        await store.close()


async def test_the_server_has_the_clock(address: str, server: Server) -> None:
    store = await store_from_url(address).open()
    made = new()
    before = server.now()
    await store.put([made])
    (item,) = (await store.lease(asking())).items
    after = server.now()
    assert before <= item.enqueued_at <= (item.leased_at or 0) <= after
    await store.close()


# --- life ---


async def test_a_newer_redrive_s_namespace_is_refused(world: World, server: Server, address: str) -> None:
    server.client.hset(server.key("boot"), "schema", boot.SCHEMA + 1)
    with pytest.raises(StoreTooNew, match=f"schema {boot.SCHEMA + 1}, this one knows {boot.SCHEMA}"):
        await store_from_url(address).open()


async def test_a_store_serves_several_loops_at_once(address: str) -> None:
    """Connections belong to a loop, so each has its own."""
    store = await store_from_url(address).open()
    made = news(3)

    async def elsewhere() -> tuple[str, ...]:
        return (await store.put(made)).added

    assert await asyncio.to_thread(lambda: asyncio.run(elsewhere())) == ids(made)
    assert ids((await store.lease(asking(5))).items) == ids(made)
    await store.close()
    with pytest.raises(StoreUnavailable, match="is closed"):
        await store.put(made)


def test_a_store_that_was_opened_in_a_loop_that_has_ended_goes_on_in_the_next(address: str) -> None:
    store = store_from_url(address)
    made = new()

    async def first() -> None:
        await store.open()
        await store.put([made])
        await store.close()

    async def second() -> None:
        await store.open()
        assert (await store.get(made.id)).item.state is State.READY
        await store.close()

    asyncio.run(first())
    asyncio.run(second())


async def test_a_wait_for_a_connection_ends(address: str) -> None:
    store = store_from_url(f"{address}&pool=1")
    assert isinstance(store, RedisStore)
    await store.open()
    session = await store._here()  # noqa: SLF001 - a connection that is not given back
    wire = await session.pool.take()
    async with hastily(store):
        with pytest.raises(StoreUnavailable, match="no answer in time"):
            await store.put([new()])
    session.pool.give(wire)
    await store.put([new()])
    await store.close()


async def test_a_put_that_is_cancelled_while_it_waits_has_not_happened(address: str) -> None:
    store = store_from_url(f"{address}&pool=1")
    await store.open()
    assert isinstance(store, RedisStore)
    session = await store._here()  # noqa: SLF001 - a connection that is not given back
    wire = await session.pool.take()
    leasing = asyncio.ensure_future(store.lease(asking()))
    await turns(asyncio.get_running_loop(), rest=False)
    leasing.cancel()
    await asyncio.wait({leasing}, timeout=PATIENCE)
    assert leasing.cancelled()
    session.pool.give(wire)
    await store.put([new()])
    await store.close()


# --- installing ---


@pytest.mark.slow
def test_without_the_driver_the_fix_is_named() -> None:
    code = (
        "import sys; sys.modules['hiredis'] = None\n"
        "from redrive import Redrive\n"
        "from redrive.errors import MissingExtra\n"
        "try: Redrive('redis://localhost')\n"
        "except MissingExtra as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert 'pip install "redrive[redis]"' in said


@pytest.mark.slow
def test_the_driver_is_imported_only_by_who_uses_it() -> None:
    code = "import redrive, sys; redrive.Redrive('memory:'); sys.exit('hiredis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
