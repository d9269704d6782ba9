"""A PostgreSQL store follows its primary through kills, restarts, promotions and hosts that do not answer."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psycopg
import pytest

from redrive.errors import OutcomeUnknown, StoreForbidden, StoreUnavailable
from redrive.stores.base import Store
from redrive.stores.url import store_from_url
from tests.stores.postgres_hot_kit import asking, finished, news, unopened
from tests.support.servers import run
from tests.support.servers.postgres import PostgresServer, private_postgres, programs
from tests.support.servers.server import HOST, running


def both(one: PostgresServer, other: PostgresServer, **options: str) -> str:
    extra = "".join(f"&{name}={value}" for name, value in options.items())
    return f"postgresql://redrive@{HOST}:{one.port},{HOST}:{other.port}/redrive?target_session_attrs=read-write{extra}"


@contextmanager
def pair() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """A primary and a standby that has all that was ever confirmed."""
    with private_postgres() as primary, ExitStack() as stack:
        where = run.current().room("standby")
        stack.callback(shutil.rmtree, where, ignore_errors=True)
        primary.stop()
        copy = PostgresServer(where, programs(), {"primary_conninfo": f"host={HOST} port={primary.port} user=postgres"})
        subprocess.run(["cp", "-a", primary.data, copy.data], check=True)
        subprocess.run(["cp", "-p", copy.data / "PG_VERSION", copy.data / "standby.signal"], check=True)
        primary.start()
        stack.enter_context(running(copy))
        primary.stop()
        primary.settings["synchronous_standby_names"] = "*"
        primary.settings["synchronous_commit"] = "remote_apply"
        primary.start()
        yield primary, copy


async def put_at_last(store: Store, prefix: str) -> None:
    """As an engine does: again, under the same ids, until the store takes it."""
    async with asyncio.timeout(30):
        while True:
            try:
                await store.put(news(5, prefix))
            except (StoreUnavailable, OutcomeUnknown):
                await asyncio.sleep(0.05)  # noqa: TID251 - servers need real time
            else:
                return


def promote(server: PostgresServer) -> None:
    with psycopg.connect(server.url(user="postgres"), autocommit=True) as connection:
        connection.execute("select pg_promote()")


async def test_a_store_follows_the_primary() -> None:
    with pair() as (primary, standby):
        store = await store_from_url(both(primary, standby, timeout="5s")).open()
        await put_at_last(store, "before")
        leased = (await store.lease(asking(3))).items
        primary.kill()
        with pytest.raises((StoreUnavailable, OutcomeUnknown)):
            await store.put(news(1, "nowhere"))
        # Between the two: one is gone, and the other may only be read.
        with pytest.raises(StoreForbidden, match="read-only") as caught:
            await store.put(news(1, "nowhere"))
        assert caught.value.hint == "use the address of the primary server"
        promote(standby)
        await put_at_last(store, "after")
        settled = await store.settle(finished(leased))
        assert [answer.verdict.value for answer in settled.answers] == ["applied"] * 3
        (row,) = (await store.tally()).queues
        assert (row.ready, row.leased, row.done) == (7, 0, 3)
        await store.close()


async def test_a_replica_is_refused_and_passed_over() -> None:
    with private_postgres() as replica, private_postgres() as primary:
        replica.become_standby()
        with pytest.raises(StoreForbidden, match="is a read-only replica"):
            await store_from_url(replica.url()).open()
        store = await store_from_url(both(replica, primary)).open()
        await store.put(news(3))
        await store.close()
        assert store.info().location == f"postgresql://redrive@{HOST}:{replica.port},{HOST}:{primary.port}/redrive"


async def test_a_host_that_does_not_answer_leaves_time_for_the_other() -> None:
    with private_postgres() as silent, private_postgres() as alive:
        silent.pause()
        store = await store_from_url(both(silent, alive, connect_timeout="5s")).open()
        await store.put(news(3))
        await store.close()


async def test_a_server_that_was_killed_and_started_again_is_found() -> None:
    with private_postgres() as server:
        store = unopened(server.url(schema="redrive"))
        await store.open()
        await store.put(news(100))
        items = (await store.lease(asking(40))).items
        server.kill()
        with pytest.raises(StoreUnavailable):
            await store.tally()
        server.start()
        assert (await store.tally()).queues[0].leased == 40
        await store.settle(finished(items))
        assert (await store.tally()).queues[0].done == 40
        await store.close()
