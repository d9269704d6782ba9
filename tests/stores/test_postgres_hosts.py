"""How a PostgreSQL store is reached: several servers of which one is the primary, sockets, passwords, full servers."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from redrive.errors import OutcomeUnknown, StoreForbidden, StoreUnavailable
from redrive.stores.base import Store
from redrive.stores.url import store_from_url
from tests.stores.postgres_hot_kit import asking, finished, news
from tests.support.servers import binaries, run
from tests.support.servers.postgres import SEALED, PostgresServer, private_postgres, programs
from tests.support.servers.server import HOST, running

pytestmark = pytest.mark.slow


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


async def test_a_replica_is_passed_over() -> None:
    with private_postgres() as replica, private_postgres() as primary:
        replica.become_standby()
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


def take_all(others: ExitStack, url: str) -> None:
    """Connections, until the server gives no more."""
    for _ in range(8):
        try:
            others.enter_context(psycopg.connect(url))
        except psycopg.OperationalError:
            return
    pytest.fail("the server is not full")


async def test_a_full_server_says_so_and_a_pool_of_one_is_enough() -> None:
    with private_postgres(max_connections=7) as server:
        store = await store_from_url(server.url(pool="1", notify="off")).open()
        with ExitStack() as others:
            take_all(others, server.url())
            with pytest.raises(StoreUnavailable, match="the server takes no more connections") as caught:
                await store_from_url(server.url()).open()
            assert "lower `pool`" in caught.value.hint
            # Also those that are kept for administrators, which the server refuses in other words.
            take_all(others, server.url(user="postgres"))
            with pytest.raises(StoreUnavailable, match="the server takes no more connections"):
                await store_from_url(server.url()).open()
            # Whoever has one works on, also with all at the same time.
            await asyncio.gather(*(store.put(news(3, f"p{number}")) for number in range(10)), store.tally())
            assert len((await store.lease(asking(30))).items) == 30
        await store.close()


async def test_passwords_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with private_postgres() as server:
        name, password = SEALED
        with pytest.raises(StoreForbidden, match="wrong password"):
            await store_from_url(server.url(user=name)).open()
        file = tmp_path / "pgpass"
        file.write_text(f"{HOST}:{server.port}:*:{name}:{password.replace(':', chr(92) + ':')}\n")
        file.chmod(0o600)
        store = await store_from_url(server.url(user=name, passfile=str(file))).open()
        await store.close()
        monkeypatch.setenv("PGPASSWORD", password)
        store = await store_from_url(server.url(user=name)).open()
        assert password not in f"{store.info()}"
        await store.close()


async def test_a_unix_socket() -> None:
    folder = run.current().room("socket")
    try:
        user = binaries.postgres_user()
        if user.id is not None:
            os.chown(folder, user.id, user.group or -1)
        with private_postgres(unix_socket_directories=str(folder)) as server:
            for url in (
                f"postgresql://redrive@{quote(str(folder), safe='')}:{server.port}/redrive",
                f"postgresql:///redrive?host={folder}&port={server.port}&user=redrive",
            ):
                store = await store_from_url(url).open()
                await store.put(news(3))
                await store.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def test_no_tls_where_it_is_required() -> None:
    with private_postgres() as server, pytest.raises(StoreUnavailable, match="does not support SSL") as caught:
        await store_from_url(server.url(sslmode="require")).open()
    assert caught.value.hint == "turn ssl on at the server, or allow plain connections by sslmode=prefer in the URL"
