"""The private servers of tests die and come back as told.

What they had promised to keep is still there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from tests.support.servers import binaries, processes
from tests.support.servers.postgres import SEALED, PostgresServer, private_postgres, programs
from tests.support.servers.redis import FLAVOURS, RedisServer, private_redis
from tests.support.servers.server import ServerFailed, free_port


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    with private_postgres() as server:
        yield server


@pytest.fixture(params=FLAVOURS)
def valkey(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with private_redis(flavour=request.param) as server:
        yield server


def ask_postgres(server: PostgresServer, query: str, **who: str) -> object:
    with psycopg.connect(server.url(**who), autocommit=True, connect_timeout=5) as connection:  # type: ignore[arg-type]
        found = connection.execute(query.encode())
        row = found.fetchone() if found.description else None
        return row and row[0]


def family(server: PostgresServer) -> list[int]:
    assert server.pid is not None
    return [server.pid, *processes.children(server.pid)]


def test_a_killed_postgres_comes_back_where_it_was(postgres: PostgresServer) -> None:
    ask_postgres(postgres, "create table kept as select 7 as n")
    url, pids = postgres.url(), family(postgres)
    assert len(pids) > 4
    postgres.kill()
    assert [pid for pid in pids if processes.alive(pid)] == []
    with pytest.raises(psycopg.OperationalError):
        ask_postgres(postgres, "select 1")
    postgres.start()
    assert postgres.url() == url
    assert ask_postgres(postgres, "select n from kept") == 7
    assert "database system was not properly shut down" in postgres.log()


def test_a_stopped_postgres_takes_new_settings(postgres: PostgresServer) -> None:
    assert ask_postgres(postgres, "show fsync") == "on"
    postgres.stop()
    postgres.settings["fsync"] = False
    postgres.start()
    assert ask_postgres(postgres, "show fsync") == "off"
    assert "not properly shut down" not in postgres.log()


def test_a_paused_postgres_does_not_answer(postgres: PostgresServer) -> None:
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        postgres.pause()
        assert {processes.state(pid) for pid in family(postgres)} == {"T"}
        postgres.resume()
        assert connection.execute("select 1").fetchone() == (1,)


def test_a_standby_takes_no_writes(postgres: PostgresServer) -> None:
    postgres.become_standby()
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        ask_postgres(postgres, "create table refused (n int)")


def test_who_may_enter_postgres(postgres: PostgresServer) -> None:
    user, password = SEALED
    assert ask_postgres(postgres, "select current_user", user=user, password=password) == user
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        ask_postgres(postgres, "select 1", user=user, password="wrong")  # noqa: S106 - it is wrong
    assert ask_postgres(postgres, "select rolsuper from pg_roles where rolname = current_user") is False
    assert ask_postgres(postgres, "select rolsuper from pg_roles where rolname = current_user", user="postgres") is True


def test_a_postgres_that_cannot_start_says_why() -> None:
    with pytest.raises(ServerFailed, match="no_such_setting"), private_postgres(no_such_setting=1):
        pass


@pytest.mark.skipif(os.getuid() != 0, reason="only root hands its servers to another user")
def test_programs_that_the_servers_user_cannot_reach_are_copied(tmp_path: Path) -> None:
    found = programs()
    hidden = tmp_path / "hidden"
    hidden.mkdir(mode=0o700)
    shutil.copytree(found.folder.parent, hidden / "install", symlinks=True)
    copy = binaries.reachable(binaries.PostgresPrograms(hidden / "install" / "bin", found.version))
    assert hidden not in copy.parents
    assert binaries.reachable(binaries.PostgresPrograms(copy, found.version)) == copy


def test_a_killed_redis_comes_back_where_it_was(valkey: RedisServer) -> None:
    with redis.Redis.from_url(valkey.url()) as client:
        client.set("kept", "7")
        url, pid = valkey.url(), valkey.pid
        valkey.kill()
        assert pid is not None
        assert not processes.alive(pid)
        with pytest.raises(redis.ConnectionError):
            client.ping()
        valkey.start()
        assert valkey.url() == url
        assert client.get("kept") == b"7"


def test_a_paused_redis_does_not_answer(valkey: RedisServer) -> None:
    valkey.pause()
    with redis.Redis.from_url(valkey.url(), socket_timeout=0.05, retry=None) as client:
        with pytest.raises(redis.TimeoutError):
            client.ping()
        valkey.resume()
    with redis.Redis.from_url(valkey.url()) as client:
        assert client.ping()


def test_a_stopped_redis_takes_new_settings(valkey: RedisServer) -> None:
    valkey.stop()
    valkey.settings |= {"requirepass": "s3cret@/", "appendonly": False, "maxmemory-policy": "allkeys-lru"}
    valkey.start()
    with redis.Redis.from_url(valkey.url()) as client:
        assert client.config_get("appendonly", "maxmemory-policy", "appendfsync") == {
            "appendonly": "no",
            "maxmemory-policy": "allkeys-lru",
            "appendfsync": "always",
        }
    wrong = valkey.url(password="wrong")  # noqa: S106 - it is wrong
    with redis.Redis.from_url(wrong) as client, pytest.raises(redis.AuthenticationError):
        client.ping()


def test_a_cluster_of_one() -> None:
    with private_redis(cluster_enabled=True) as server:
        with redis.Redis.from_url(server.url()) as client:
            assert client.set("key", "value")
        server.stop()
        server.start()


def test_ports_are_not_those_of_clients() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = {free_port() for _ in range(20)}
    assert len(ports) == 20
    assert max(ports) < lowest
