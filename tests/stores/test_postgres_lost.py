"""What a PostgreSQL store says when an answer is lost or a value cannot be sent, and how it wakes who waits."""

from __future__ import annotations

import asyncio
from urllib.parse import quote

import pytest

from redrive.core.decide import ToDone
from redrive.core.item import NewItem
from redrive.core.verbs import Held, Settlement
from redrive.errors import ConfigError, OutcomeUnknown, StoreUnavailable
from redrive.stores.postgres import install
from redrive.testing.clock import FakeClock
from tests.stores.postgres_hot_kit import *  # noqa: F403 - the fixtures are meant
from tests.stores.postgres_hot_kit import MINE, Open, asleep, end_sessions, gone, news, session_of
from tests.stores.postgres_kit import behind, execute, rows, somebody_waits
from tests.support.rest import turns

# --- answers that are lost, and values that cannot be sent ---


async def test_a_value_that_cannot_be_stored_is_told(opened: Open) -> None:
    store = await opened()
    with pytest.raises(ConfigError, match=r"delay: .* cannot be stored"):
        await store.put([NewItem("i", "q", b"", delay=2**63 - 1)])
    with pytest.raises(ConfigError, match="cannot be stored"):
        await store.elect("name", "owner", 2**63)
    assert (await store.tally()).queues == ()


async def test_an_impossible_id_is_nobodys(opened: Open) -> None:
    store = await opened()
    settled = await store.settle([Settlement(bad, 1, ToDone()) for bad in ("a\0b", "\ud800", "")])
    assert [answer.reason for answer in settled.answers] == ["no such item"] * 3
    assert (await store.extend([Held("a\0b", 1)], 1_000)).lost == ("a\0b",)
    assert await store.reclaim("r", ["a\0b", "\ud800"], 1_000, 10, ["\0"]) == ()


async def test_a_connection_that_is_ended_by_the_server_is_replaced(url: str, opened: Open) -> None:
    """As after a restart: the first call finds out without a question, and nobody sees an error."""
    store = await opened()
    await store.put(news(1))
    await end_sessions(url)
    await gone(url)
    assert (await store.put(news(1))).already == ("i-00000",)


async def test_a_write_whose_connection_is_ended_may_have_happened(url: str, opened: Open) -> None:
    store = await opened()
    async with behind(url) as connection:
        await connection.execute(b"begin")
        await connection.execute(b"lock table course in access exclusive mode")
        putting = asyncio.ensure_future(store.put(news(1)))
        await somebody_waits(url, connection)
        await end_sessions(url)
        with pytest.raises(OutcomeUnknown, match="may or may not be there"):
            await putting
        await connection.execute(b"rollback")
    assert (await store.put(news(1))).added == ("i-00000",)


async def test_a_read_whose_connection_is_ended_did_not_happen(url: str, opened: Open) -> None:
    store = await opened()
    async with behind(url) as connection:
        await connection.execute(b"begin")
        await connection.execute(b"lock table counter in access exclusive mode")
        looking = asyncio.ensure_future(store.tally())
        await somebody_waits(url, connection)
        await end_sessions(url)
        with pytest.raises(StoreUnavailable, match="was lost"):
            await looking


async def test_a_lock_that_is_held_too_long_fails_the_verb_and_nothing_is_written(url: str, opened: Open) -> None:
    # The server's limit, long before the store's own.
    store = await opened(f"&options={quote('-c lock_timeout=50ms')}")
    async with behind(url) as connection:
        await connection.execute(b"begin")
        await connection.execute(b"lock table course in access exclusive mode")
        with pytest.raises(StoreUnavailable, match="holds a lock") as caught:
            await store.put(news(1))
        assert not isinstance(caught.value, OutcomeUnknown)
        await connection.execute(b"rollback")
    assert (await store.put(news(1))).added == ("i-00000",)


async def test_a_cancelled_caller_hears_of_it_when_the_verb_has_ended(url: str, opened: Open) -> None:
    """Nothing may happen behind the back of whoever was cancelled."""
    store = await opened()
    async with behind(url) as connection:
        await connection.execute(b"begin")
        await connection.execute(b"lock table course in access exclusive mode")
        putting = asyncio.ensure_future(store.put(news(1)))
        await somebody_waits(url, connection)
        putting.cancel()
        await somebody_waits(url, connection)
        assert not putting.done()
        await connection.execute(b"rollback")
    await asyncio.wait({putting})
    assert putting.cancelled()
    assert (await store.put(news(1))).already == ("i-00000",)


# --- waking ---


async def test_polling_is_enough_where_notifications_are_off(url: str, opened: Open) -> None:
    """Behind a pooler: no LISTEN, no settings of a session, nothing prepared."""
    clock = FakeClock()
    store, other = await opened("&notify=off", clock=clock), await opened("&notify=off", clock=clock)
    waiting = asyncio.ensure_future(store.wait(("q",), 3_600_000))
    await asleep(clock)
    await other.put(news(1))
    await turns(asyncio.get_running_loop(), rest=False)
    assert not waiting.done()
    clock.advance(1_000)
    async with asyncio.timeout(10):
        await waiting
    said = "query ilike any (array['listen%', '%pg_notify%'])"
    assert await rows(url, f"select count(*) {MINE} and {said}") == [(0,)]
    session = await session_of(store)
    assert await session.read("select count(*) from pg_prepared_statements") == [(0,)]
    assert await session.read("select current_setting('statement_timeout')") == [("0",)]


async def test_a_broken_ear_wakes_everybody_and_hears_again(url: str, opened: Open) -> None:
    clock = FakeClock()
    store, other = await opened(clock=clock), await opened(clock=clock)
    waiting = asyncio.ensure_future(store.wait(("q",), 3_600_000))
    listening = f"{MINE} and query ilike 'listen%'"
    async with asyncio.timeout(10):
        await asleep(clock)
        await execute(url, f"select pg_terminate_backend(pid) {listening}")
        # No fake time passes: only the broken connection can have woken it.
        await waiting
        while not await rows(url, f"select 1 {listening}"):  # noqa: ASYNC110 - as below
            await asyncio.sleep(0.005)  # noqa: TID251 - it listens again after a pause in real time
        waiting = asyncio.ensure_future(store.wait(("q",), 3_600_000))
        await asleep(clock)
        await other.put(news(1))
        await waiting


async def test_a_notification_is_never_part_of_the_write(url: str, opened: Open) -> None:
    """NOTIFY takes a lock of the whole database when its transaction commits."""
    functions = "\n".join(install.functions('"x"'))
    assert "notify" not in functions.lower()
    store = await opened()
    async with behind(url) as connection:
        await connection.execute(b"begin")
        await connection.execute(b"select pg_notify('anything', '')")
        # Somebody's transaction with a notification does not keep a put waiting.
        assert (await store.put(news(1))).added == ("i-00000",)
        await connection.execute(b"rollback")
