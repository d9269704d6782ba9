"""How a PostgreSQL store is reached: several hosts, sockets, passwords, full servers."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import traceback
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote, urlsplit

import psycopg
import pytest

from redrive.errors import StoreForbidden, StoreUnavailable
from redrive.stores.url import store_from_url
from tests.stores.postgres_hot_kit import asking, news
from tests.support.servers import binaries, run
from tests.support.servers.postgres import SEALED, PostgresServer, private_postgres
from tests.support.servers.server import HOST
from tests.support.stores import StoreUrl

pytestmark = pytest.mark.slow


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


async def test_how_a_server_is_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One server for all of it: to start it takes longer."""
    folder = run.current().room("socket")
    try:
        user = binaries.postgres_user()
        if user.id is not None:
            os.chown(folder, user.id, user.group or -1)
        with private_postgres(unix_socket_directories=str(folder), fsync=False) as server:
            with caplog.at_level(logging.WARNING, "redrive.stores"):
                await by_socket(server, folder)
            assert "a crash of the server, but no loss of power (fsync=off" in caplog.text
            await by_password(server, tmp_path / "pgpass", monkeypatch)
            await without_tls(server)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def by_socket(server: PostgresServer, folder: Path) -> None:
    for url in (
        f"postgresql://redrive@{quote(str(folder), safe='')}:{server.port}/redrive",
        f"postgresql:///redrive?host={folder}&port={server.port}&user=redrive",
    ):
        store = await store_from_url(url).open()
        await store.put(news(3))
        await store.close()
        assert store.info().durability == "process-crash"


async def by_password(server: PostgresServer, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the URL, from a file, from the environment. A server that somebody names may let everybody in."""
    name, password = SEALED
    for given in (None, "wrong"):
        with pytest.raises(StoreForbidden) as caught:
            await store_from_url(server.url(user=name, password=given)).open()
        assert caught.value.message.startswith(f"wrong password: postgresql://{name}@{HOST}:")
        shown = f"{''.join(traceback.format_exception(caught.value))}{caught.value!r}"
        assert password not in shown
    file.write_text(f"{HOST}:{server.port}:*:{name}:{password.replace(':', chr(92) + ':')}\n")
    file.chmod(0o600)
    urls = [
        server.url(user=name, schema="sealed", password=password),
        server.url(user=name, schema="sealed", passfile=str(file)),
        server.url(user=name, schema="sealed"),
    ]
    for url in urls:
        if url == urls[-1]:
            monkeypatch.setenv("PGPASSWORD", password)
        store = await store_from_url(url).open()
        assert password not in f"{store.info()}"
        await store.close()


async def without_tls(server: PostgresServer) -> None:
    with pytest.raises(StoreUnavailable, match="does not support SSL") as caught:
        await store_from_url(server.url(sslmode="require")).open()
    assert caught.value.hint == "turn ssl on at the server, or allow plain connections by sslmode=prefer in the URL"


async def test_a_host_where_nobody_listens_is_passed_over(store_url: StoreUrl) -> None:
    url = store_url("postgres")
    parts = urlsplit(url)
    there = parts.netloc.rpartition("@")[2]
    several = parts._replace(netloc=parts.netloc.replace(there, f"{HOST}:1,{there}")).geturl()
    store = await store_from_url(f"{several}&target_session_attrs=read-write").open()
    await store.put(news(3))
    await store.close()
    assert f"{HOST}:1,{there}" in store.info().location
