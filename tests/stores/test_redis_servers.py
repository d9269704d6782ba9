"""Servers that must not be used, that keep less than they should, that are full, that restart, and that are many."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis

from redrive.core.item import NewItem
from redrive.core.verbs import Verdict
from redrive.errors import (
    ConfigError,
    RedriveError,
    StoreError,
    StoreForbidden,
    StoreFull,
    StoreUnavailable,
)
from redrive.stores.base import Store
from redrive.stores.redis import RedisStore, boot, mend
from redrive.stores.url import store_from_url
from redrive.testing.conformance.kit import PATIENCE, QUEUE, asking, dead, failed, finished, ids, new, news
from tests.support.links.link import Link
from tests.support.listening import listening
from tests.support.servers.redis import FLAVOURS, RedisServer, private_redis

pytestmark = pytest.mark.slow

SECRET = "s3cret/pass word"  # noqa: S105 - of servers that live for a test

Open = Callable[..., Any]


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with private_redis() as server:
        yield server


@pytest.fixture
def admin(server: RedisServer) -> Iterator[Any]:
    with redis.Redis.from_url(server.url()) as client:
        yield client


@pytest.fixture
async def opened() -> AsyncIterator[Open]:
    stores: list[RedisStore] = []

    async def opened(url: str, **options: Any) -> RedisStore:
        store = store_from_url(url, **options)
        assert isinstance(store, RedisStore)
        stores.append(store)
        return await store.open()

    yield opened
    for store in stores:
        await store.close()


# --- what a server keeps ---


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_what_a_server_survives_is_told_by_its_settings(
    flavour: str, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    with private_redis(flavour=flavour) as server, redis.Redis.from_url(server.url()) as admin:
        assert (await opened(server.url())).info().durability == "power-loss"
        assert not caplog.records
        admin.config_set("appendfsync", "everysec")
        assert (await opened(server.url())).info().durability == "process-crash"
        assert "appendfsync is everysec" in caplog.text
        admin.config_set("appendonly", "no")
        info = (await opened(server.url())).info()
        assert info.durability == "none"
        assert info.library.startswith(flavour)
        assert "survives nothing: appendonly is off" in caplog.text


async def test_a_server_that_hides_its_settings_is_taken_for_the_less(
    server: RedisServer, admin: Any, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    admin.acl_setuser(
        "app", enabled=True, passwords=[f"+{SECRET}"], keys="*", channels="*", commands=["+@all", "-config"]
    )
    store = await opened(server.url(user="app", password=SECRET))
    assert store.info().durability == "process-crash"
    assert "CONFIG is forbidden" in caplog.text


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
async def test_a_server_that_evicts_is_refused(server: RedisServer, admin: Any, opened: Open, policy: str) -> None:
    admin.config_set("maxmemory-policy", policy)
    with pytest.raises(ConfigError, match=policy) as raised:
        await opened(server.url())
    assert "CONFIG SET maxmemory-policy noeviction" in raised.value.hint


async def test_a_server_that_evicts_only_what_expires_may_be_used(
    server: RedisServer, admin: Any, opened: Open
) -> None:
    admin.config_set("maxmemory-policy", "volatile-lru")
    await opened(server.url())


async def test_a_replica_is_refused(server: RedisServer, opened: Open) -> None:
    with private_redis(replicaof=f"127.0.0.1 {server.port}") as replica:
        with pytest.raises(StoreForbidden, match="read-only replica") as raised:
            await opened(replica.url())
        assert "primary" in raised.value.hint


async def test_a_server_that_becomes_a_replica_takes_nothing_more(
    server: RedisServer, admin: Any, opened: Open
) -> None:
    store = await opened(server.url())
    with private_redis() as other:
        admin.replicaof("127.0.0.1", other.port)
        with pytest.raises(StoreForbidden, match="read-only replica"):
            await store.put([new()])


async def test_an_old_server_is_refused(opened: Open) -> None:
    async def old(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1_000)
        info = b"# Server\r\nredis_version:6.2.14\r\n"
        writer.write(b"$%d\r\n%s\r\n" % (len(info), info))
        await reader.read()
        writer.close()

    async with listening(old) as port:
        with pytest.raises(ConfigError, match=r"Redis 6\.2\.14, 7\.0 is needed"):
            await opened(f"redis://127.0.0.1:{port}")


async def test_a_failing_log_is_told(server: RedisServer, opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    facts = boot.Server("run", "redis 7", "power-loss", trouble=boot._trouble({"aof_last_write_status": "err"}))  # noqa: SLF001
    boot.tell(facts, "redis://x")
    assert "the last write to its append-only file failed" in caplog.text


# --- who may ---


@pytest.mark.parametrize("given", ["wrong " + SECRET, None])
async def test_a_wrong_password_is_one_clear_error_that_does_not_show_it(opened: Open, given: str | None) -> None:
    with private_redis(requirepass=f'"{SECRET}"') as server:
        url = f"redis://127.0.0.1:{server.port}" if given is None else server.url(password=given)
        with pytest.raises(StoreForbidden) as raised:
            await opened(url)
        assert "check the user and the password" in raised.value.hint
        assert SECRET not in str(raised.value)
        assert raised.value.__cause__ is None
        await opened(server.url(password=SECRET))


async def test_a_password_is_shown_nowhere(server: RedisServer, admin: Any, opened: Open) -> None:
    admin.acl_setuser("app", enabled=True, passwords=[f"+{SECRET}"], keys="*", channels="*", commands=["+@all"])
    store = await opened(server.url(user="app", password=SECRET, timeout="2s"))
    server.stop()
    said: list[str] = [repr(store), str(store.info()), repr(store._options)]  # noqa: SLF001 - what a debugger shows
    for verb in (store.put([new()]), store.tally()):
        with pytest.raises(RedriveError) as raised:
            await verb
        said += [str(raised.value), repr(raised.value)]
    assert not any(SECRET in text or "s3cret" in text for text in said)


@pytest.mark.parametrize("missing", ["zadd", "hset", "zscan", "evalsha"])
async def test_missing_rights_are_named_before_anything_is_written(
    server: RedisServer, admin: Any, opened: Open, missing: str
) -> None:
    commands = ["+@all", f"-{missing}"]
    admin.acl_setuser("app", enabled=True, passwords=[f"+{SECRET}"], keys="*", channels="*", commands=commands)
    with pytest.raises(StoreForbidden, match=missing.upper() if missing != "evalsha" else "evalsha"):
        await opened(server.url(user="app", password=SECRET))
    assert admin.dbsize() == 0


async def test_a_user_who_may_use_other_keys_only_is_refused(server: RedisServer, admin: Any, opened: Open) -> None:
    admin.acl_setuser(
        "app", enabled=True, passwords=[f"+{SECRET}"], keys=["{mine}:*"], channels="*", commands=["+@all"]
    )
    with pytest.raises(StoreForbidden):
        await opened(server.url(user="app", password=SECRET, namespace="yours"))
    await opened(server.url(user="app", password=SECRET, namespace="mine"))


async def test_polling_is_enough_for_a_user_who_may_not_publish(
    server: RedisServer, admin: Any, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    admin.acl_setuser("app", enabled=True, passwords=[f"+{SECRET}"], keys="*", reset_channels=True, commands=["+@all"])
    store = await opened(server.url(user="app", password=SECRET, poll="20ms"))
    waiting = asyncio.ensure_future(store.wait([QUEUE], 60_000))
    made = new()
    await store.put([made])
    async with asyncio.timeout(PATIENCE):
        await waiting
    assert ids((await store.lease(asking())).items) == (made.id,)
    told = [record.getMessage() for record in caplog.records if "may not listen" in record.getMessage()]
    assert len(told) == 1


async def test_a_server_is_reached_by_its_socket(opened: Open, tmp_path: Path) -> None:
    path = tmp_path / "a socket"
    with private_redis(unixsocket=f'"{path}"') as server:
        store = await opened(f"unix://{quote(str(path))}?db=3")
        made = new()
        await store.put([made])
        with redis.Redis.from_url(server.url(database=3)) as client:
            assert client.hkeys("{redrive}:item") == [made.id.encode()]


# --- full, busy ---


async def test_a_full_server_takes_nothing_new_and_lets_work_end(server: RedisServer, admin: Any, opened: Open) -> None:
    store = await opened(server.url())
    made = news(4)
    await store.put(made)
    admin.config_set("maxmemory", 1)
    with pytest.raises(StoreFull, match="maxmemory"):
        await store.put([new()])
    items = (await store.lease(asking(4))).items
    assert ids(items) == ids(made)
    assert (await store.extend([], 1_000)).lost == ()
    settlements = [finished(items[0], result=b"x"), dead(items[1]), failed(items[2])]
    answers = (await store.settle(settlements)).answers
    assert {answer.verdict for answer in answers} == {Verdict.APPLIED}
    assert [row.ready for row in (await store.tally()).queues] == [1]
    admin.config_set("maxmemory", 0)
    await store.put([new()])


async def test_a_server_that_is_busy_is_unavailable_and_comes_back(
    server: RedisServer, admin: Any, opened: Open
) -> None:
    store = await opened(server.url())
    admin.config_set("busy-reply-threshold", 1)
    with socket.create_connection(("127.0.0.1", server.port)) as caller:
        caller.sendall(b"EVAL 'while true do end' 0\r\n")
        await _until(lambda: _is_busy(admin))
        with pytest.raises(StoreUnavailable, match="busy with a script"):
            await store.put([new()])
        admin.script_kill()
    # It takes a moment until the script has ended.
    await _persist(store, new())


# --- connections that are lost ---


async def test_a_bell_that_was_lost_is_hung_up_again_and_wakes_everybody(
    server: RedisServer, admin: Any, opened: Open
) -> None:
    store = await opened(server.url(poll="1h"))
    first = asyncio.ensure_future(store.wait([QUEUE], 3_600_000))
    while not admin.pubsub_numsub("{redrive}:wake")[0][1]:
        await asyncio.wait({first}, timeout=0.01)
    admin.client_kill_filter(_type="pubsub")
    async with asyncio.timeout(PATIENCE):
        await first
    second = asyncio.ensure_future(store.wait([QUEUE], 3_600_000))
    await asyncio.wait({second}, timeout=0.05)
    await store.put([new()])
    async with asyncio.timeout(PATIENCE):
        await second


async def _lose(admin: Any, made: tuple[Any, ...]) -> None:
    """As a log that ends early may leave it, were the server to cut a script in two."""
    key = "{redrive}:ready:0:emails"
    members = {member[16:].decode(): member for member in admin.zrange(key, 0, -1)}
    admin.zrem(key, members[made[0].id], members[made[1].id])
    admin.zadd("{redrive}:leased:emails", {members[made[2].id]: 1})
    admin.zadd(key, {b"0000000000000099ghost": 1})


async def _reconciled(store: RedisStore) -> None:
    mender = (await store._here())._mender  # noqa: SLF001 - it works beside the verbs
    if mender.task is not None:
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait({mender.task})


@pytest.mark.parametrize("live", [True, False], ids=["live", "opened"])
async def test_after_a_restart_every_item_is_where_it_belongs(
    server: RedisServer, admin: Any, opened: Open, caplog: pytest.LogCaptureFixture, live: bool
) -> None:
    """By a handle that notices the restart by the name of the run, and by one that is opened after it."""
    with Link.to(server.url()) as link:
        store = await opened(link.through(server.url()))
        made = news(5)
        await store.put(made)
        await _lose(admin, made)
        admin.hset("{redrive}:boot", "run", "the one before")
        if live:
            session = await store._here()  # noqa: SLF001 - it knows the server by the name of its run
            session.server = session.server._replace(run_id="the one before")
            # The first to use the connection learns that it is gone.
            link.reset()
            with contextlib.suppress(StoreUnavailable):
                await store.tally()
            await store.tally()
        else:
            store = await opened(server.url())
        await _reconciled(store)
        assert "4 places of items did not agree" in caplog.text
        assert not (await store.check()).findings
        assert sorted(ids((await store.lease(asking(9))).items)) == sorted(ids(made))
        caplog.clear()
        await _reconciled(await opened(server.url()))
        assert "did not agree" not in caplog.text
        await store.close()


async def test_reconciling_goes_on_where_it_was_left(
    server: RedisServer, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever does it may be killed in the middle; and nobody else does it meanwhile."""
    monkeypatch.setattr(mend, "STEP", 100)
    first = await opened(server.url())
    made = news(1_000)
    await first.put(made)
    await first.close()
    with redis.Redis.from_url(server.url()) as admin:
        await _lose(admin, made)
        admin.hset("{redrive}:boot", "run", "another")
        store = await opened(server.url())
        await (await store._here())._mender.stop()  # noqa: SLF001 - killed in the middle
        left = admin.hget("{redrive}:boot", "cursor")
        assert left != b"0"
        step = [boot.SCHEMA, store_run(admin), "other", 100, 1_000]
        run = await (await store._here()).run("reconcile", step)  # noqa: SLF001 - as somebody else
        assert run[0] == 2
        assert admin.hget("{redrive}:boot", "cursor") == left
        admin.hset("{redrive}:boot", "until", 0)
        last = await opened(server.url())
        await _reconciled(last)
        assert admin.hget("{redrive}:boot", "run").decode() == store_run(admin)
    assert not (await last.check()).findings


def store_run(admin: Any) -> str:
    run: str = admin.info("server")["run_id"]
    return run


async def _persist(store: Store, item: NewItem) -> None:
    """As the engine does: what fails is asked again."""
    async with asyncio.timeout(PATIENCE * 4):
        while True:
            try:
                await store.put([item])
            except StoreError:
                await asyncio.to_thread(lambda: None)
            else:
                return


def _is_busy(client: Any) -> bool:
    try:
        client.ping()
    except redis.ResponseError as error:
        return "busy" in str(error).lower()
    return False


async def _until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE * 4):
        while not check():
            await asyncio.wait({asyncio.ensure_future(asyncio.to_thread(lambda: None))}, timeout=0.05)
