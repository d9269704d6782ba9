"""What an operator is told when a server cannot be used: one clear error each, and never a password."""

import contextlib
import json
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import psycopg
import pytest
import redis

from redrive import Redrive
from redrive.cli.exits import Exit
from redrive.stores.postgres import install
from redrive.stores.redis import boot
from tests.support.cli import here, letters_in
from tests.support.in_process import RunWorker, run_worker
from tests.support.servers import schemas, shared
from tests.support.servers.postgres import SEALED
from tests.support.servers.redis import RedisServer, private_redis
from tests.support.servers.server import HOST, with_options
from tests.support.stores import StoreUrl

__all__ = ["run_worker"]

PASSWORD = "s3cr3t @/:#?%"  # noqa: S105 - what must not be seen
TRACE = "s3cr3t"
"""Of the password in any form, or of a part of it."""
COMMANDS = (["status"], ["letters", "list"], ["db", "status"], ["db", "check"], ["db", "migrate"])


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REDRIVE_STORE", raising=False)


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., None]:
    """Every command says so in one line, as JSON too, and keeps the password to itself even in a traceback."""

    def refused(url: str, code: Exit, *said: str, commands: tuple[list[str], ...] = COMMANDS) -> None:
        for args in commands:
            told = here(capsys, *args, "--store", url)
            assert (told.code, told.out) == (code, ""), (args, told)
            assert told.err.startswith("redrive: ")
            assert told.err.count("\n") == 1, told.err
            for text in said:
                assert text in told.err, (args, text)
            loud = here(capsys, *args, "-v", "--store", url)
            assert "Traceback" in loud.err
            assert "this is a bug" not in told.err
            shown = told.err + loud.out + loud.err
            if "migrate" not in args:
                as_json = here(capsys, *args, "--json", "--store", url)
                assert json.loads(as_json.err)["error"]["message"] in told.err.replace("\\\\", "\\")
                shown += as_json.err
            assert TRACE not in shown, args

    return refused


Refused = Callable[..., None]


def with_user(url: str, user: str, password: str = PASSWORD) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{user}:{quote(password, safe='')}@{rest.rpartition('@')[2]}"


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """A port at which somebody else is at home."""
    with socket.create_server((HOST, 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(1000)
                        connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.fixture
def http() -> Iterator[int]:
    with answering(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n") as port:
        yield port


@pytest.fixture
def nobody() -> Iterator[int]:
    """A port at which nobody listens, and nobody else will meanwhile."""
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        yield taken.getsockname()[1]


# --- URLs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:s3cr3t/s3cr3t@127.0.0.1:1/db",
        "postgresql://u:s3cr3t?s3cr3t@127.0.0.1:1/db",
        "postgresql://u:s3cr3t#s3cr3t@127.0.0.1:1/db",
        "postgresql://u:s3cr3t%zz@127.0.0.1:1/db",
        "postgresql://u:s3cr3t[x@127.0.0.1:1/db",
        "postgresql://u:s3cr3t@127.0.0.1:port/db",
        "postgresql://u:s3cr3t@[::1/db",
        "postgresql://u:s3cr3t@127.0.0.1:1/db?schema=No",
        "postgresql://u:s3cr3t@127.0.0.1:1/db?pool=0",
        "postgresql://u:s3cr3t@127.0.0.1:1/db?pool=many",
        "postgresql://u:s3cr3t@127.0.0.1:1/db?timeout=soon",
        "postgresql://u:s3cr3t@127.0.0.1:1/db?notify=perhaps",
        "postgresql://u:s3cr3t@127.0.0.1:1/db?sslmod=require",
        "postgresql://127.0.0.1:1/db?user=u&pasword=s3cr3t",
        "postgresql//u:s3cr3t@127.0.0.1:1/db",
        "postgres:u:s3cr3t@127.0.0.1:1/db",
        "mysql://u:s3cr3t@127.0.0.1:1/db",
        "mysql://u:s3cr3t/s3cr3t@127.0.0.1:1/db",
        "mysql://u:s3cr3t?s3cr3t@127.0.0.1:1/db",
        "mysql://u:1234?s3cr3t=s3cr3t@127.0.0.1:1/db",
        "postgresql://u:1234/s3cr3t@127.0.0.1:1/db",
        "postgresql://u:1234?s3cr3t=s3cr3t@127.0.0.1:1/db",
        "redis://:1234/s3cr3t@127.0.0.1:1/0",
        "redis://:1234?s3cr3t=s3cr3t@127.0.0.1:1/0",
        "redis://:s3cr3t/s3cr3t@127.0.0.1:1/0",
        "redis://:s3cr3t?s3cr3t@127.0.0.1:1/0",
        "redis://:s3cr3t#s3cr3t@127.0.0.1:1/0",
        "redis://:s3cr3t@127.0.0.1:port/0",
        "redis://:s3cr3t@127.0.0.1:1/zero",
        "redis://:s3cr3t@127.0.0.1:1/0?namespace=a{b}",
        "redis://:s3cr3t@127.0.0.1:1/0?namespace=",
        "redis://:s3cr3t@127.0.0.1:1/0?nmspace=x",
        "redis://127.0.0.1:1/0?password=s3cr3t",
        "redis+sentinel://:s3cr3t@127.0.0.1:1/primary",
        "redis+cluster://:s3cr3t@127.0.0.1:1",
    ],
)
def test_a_url_that_cannot_be_read(url: str, refused: Refused) -> None:
    refused(url, Exit.USAGE, commands=(["status"], ["db", "status"]))


def test_a_port_that_cannot_be(refused: Refused) -> None:
    both = (["status"], ["db", "status"])
    for port in ("99999", "0"):
        words = f"store.port: '{port}' cannot be used", "a number from 1 to 65535"
        refused(f"postgresql://u:s3cr3t@127.0.0.1:{port}/db", Exit.USAGE, *words, commands=both)
        refused(f"redis://:s3cr3t@127.0.0.1:{port}/0", Exit.USAGE, "the port is not a number from 1", commands=both)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("sslmode=whatever", "store.sslmode: 'whatever' cannot be used"),
        ("sslmode=", "store.sslmode: '' cannot be used"),
        ("port=abc", "store.port: 'abc' cannot be used"),
        ("keepalives=soon", "store.keepalives: 'soon' cannot be used"),
        ("ssl_min_protocol_version=9", "store.ssl_min_protocol_version: '9' cannot be used"),
        ("target_session_attrs=both", "store.target_session_attrs: 'both' cannot be used"),
    ],
)
def test_an_option_whose_value_cannot_be(option: str, words: str, refused: Refused) -> None:
    refused(
        f"postgresql://u:s3cr3t@127.0.0.1:1/db?{option}", Exit.USAGE, words, commands=(["status"], ["db", "status"])
    )


@pytest.mark.parametrize("scheme", ["postgresql", "redis"])
def test_an_unknown_host(scheme: str, refused: Refused) -> None:
    path = {"postgresql": "db", "redis": "0"}[scheme]
    url = with_user(f"{scheme}://nobody.invalid/{path}", "u")
    refused(url, Exit.STORE, "nobody.invalid", commands=(["status"], ["db", "migrate"]))


@pytest.mark.parametrize("scheme", ["postgresql", "redis"])
def test_a_port_where_nobody_is(scheme: str, nobody: int, refused: Refused) -> None:
    path = {"postgresql": "db", "redis": "0"}[scheme]
    url = with_user(f"{scheme}://{HOST}:{nobody}/{path}", "u")
    refused(url, Exit.STORE, f"{HOST}:{nobody}", {"postgresql": "refused", "redis": "check that it runs"}[scheme])


@pytest.mark.parametrize("scheme", ["postgresql", "redis"])
def test_a_port_where_somebody_else_is(scheme: str, http: int, refused: Refused) -> None:
    path = {"postgresql": "db", "redis": "0"}[scheme]
    refused(with_user(f"{scheme}://{HOST}:{http}/{path}", "u"), Exit.STORE, f"{HOST}:{http}")


@pytest.mark.parametrize("scheme", ["postgresql", "redis"])
def test_a_server_that_does_not_answer(scheme: str, refused: Refused) -> None:
    with socket.create_server((HOST, 0)) as silent:
        port = silent.getsockname()[1]
        path = {"postgresql": "db", "redis": "0"}[scheme]
        url = with_options(f"{scheme}://{HOST}:{port}/{path}", {"timeout": "10ms", "connect_timeout": "10ms"})
        refused(url, Exit.STORE, f"{HOST}:{port}", commands=(["status"], ["db", "status"], ["db", "migrate"]))


# --- PostgreSQL ------------------------------------------------------------------------------------------------------


@pytest.fixture
def postgres_url(store_url: StoreUrl) -> str:
    return store_url("postgres")


@pytest.fixture
def role() -> Iterator[str]:
    """Somebody who may connect with PASSWORD, and nothing else."""
    # Other processes of the run have one on the same server.
    name = f"redrive_test_{secrets.token_hex(4)}"
    with psycopg.connect(shared.postgres().admin, autocommit=True) as admin:
        admin.execute(f"create role {name} login password '{PASSWORD}'".encode())
        try:
            yield name
        finally:
            admin.execute(f"drop owned by {name}".encode())
            admin.execute(f"drop role {name}".encode())


def test_a_wrong_password(postgres_url: str, refused: Refused) -> None:
    url = with_user(postgres_url, SEALED[0])
    refused(url, Exit.STORE, "wrong password", "correct the user or the password")
    refused(url.replace(f":{quote(PASSWORD, safe='')}@", "@"), Exit.STORE, "password")


def test_a_user_that_is_not_there(postgres_url: str, refused: Refused) -> None:
    refused(with_user(postgres_url, "nobody_at_all"), Exit.STORE, "nobody_at_all")


def test_a_missing_database(postgres_url: str, refused: Refused) -> None:
    url = with_user(postgres_url.replace("/redrive?", "/nowhere?"), "redrive")
    refused(url, Exit.STORE, "there is no such database", "create database")


def test_a_missing_schema(postgres_url: str, refused: Refused) -> None:
    url = with_user(postgres_url.rpartition("=")[0] + "=no_such_schema", "redrive")
    looking = tuple(args for args in COMMANDS if "migrate" not in args)
    refused(url, Exit.STORE, "no redrive in the schema no_such_schema", "?schema=NAME", commands=looking)


def test_a_postgresql_that_is_too_old(postgres_url: str, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "OLDEST", 99)
    url = with_user(postgres_url, "redrive")
    refused(url, Exit.USAGE, "too old", "PostgreSQL 99 or newer", commands=(["status"], ["letters", "list"]))


def test_a_session_that_may_only_read(postgres_url: str, refused: Refused) -> None:
    url = with_options(with_user(postgres_url, "redrive"), {"options": "-c default_transaction_read_only=on"})
    refused(url, Exit.STORE, "read-only", "primary", commands=(["status"], ["letters", "list"]))


@pytest.mark.slow
def test_no_right_to_create(role: str, refused: Refused, run_worker: RunWorker) -> None:
    with schemas.schemas().missing() as missing:
        url = with_user(missing, role)
        refused(url, Exit.STORE, 'grant create on database "redrive" to', commands=(["db", "migrate"],))
        worker = run_worker(quick(url), "--until-idle", "-v")
        assert worker.code == Exit.STORE
        assert TRACE not in worker.err
        assert 'grant create on database "redrive" to' in worker.err


def test_no_right_to_read(postgres_url: str, role: str, refused: Refused) -> None:
    """No right at all, then one that is not enough."""
    schema = postgres_url.rpartition("=")[2]
    url = with_user(postgres_url, role)
    refused(url, Exit.STORE, f"permission denied for schema {schema}", "redrive db sql")
    with psycopg.connect(shared.postgres().admin, autocommit=True) as admin:
        admin.execute(f"grant usage on schema {schema} to {role}".encode())
        refused(url, Exit.STORE, "permission denied for table", "redrive db sql", commands=(["status"],))
        admin.execute(f"grant select on all tables in schema {schema} to {role}".encode())
        refused(
            url,
            Exit.STORE,
            f'grant select, insert, update, delete on all tables in schema "{schema}" to "{role}"',
            commands=(["status"], ["letters", "list"]),
        )


def test_a_postgresql_without_tls(postgres_url: str, refused: Refused) -> None:
    refused(with_options(with_user(postgres_url, "redrive"), {"sslmode": "require"}), Exit.STORE, "SSL")


# --- Redis -----------------------------------------------------------------------------------------------------------


def used(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of two letters in it."""
    with monkeypatch.context() as patch:
        patch.setenv("REDRIVE_STORE", url)
        return letters_in(folder, "a", "b")


@pytest.fixture(scope="module")
def private_server() -> Iterator[RedisServer]:
    with private_redis() as server:
        yield server


@pytest.fixture
def server(private_server: RedisServer) -> Iterator[RedisServer]:
    """Of these tests alone, empty, and with its first settings again after each of them. Its password is TRACE."""
    require(private_server, TRACE)
    yield private_server
    with redis.Redis.from_url(private_server.url()) as client:
        client.replicaof("NO", "ONE")
        client.config_set("maxmemory", "0")
        client.config_set("maxmemory-policy", "noeviction")
        client.acl_deluser("plain")
        client.flushall()


def require(server: RedisServer, password: str) -> None:
    with redis.Redis.from_url(server.url()) as client:
        client.config_set("requirepass", password)
    server.settings["requirepass"] = password


WORKING = (["status"], ["letters", "list"])


@pytest.mark.slow
def test_a_redis_that_evicts(
    server: RedisServer, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch, run_worker: RunWorker
) -> None:
    used(server.url(), tmp_path, monkeypatch)
    with redis.Redis.from_url(server.url()) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    refused(server.url(), Exit.USAGE, "allkeys-lru", "CONFIG SET maxmemory-policy noeviction", commands=WORKING)
    worker = run_worker(quick(server.url()), "--until-idle", "-v")
    assert (worker.code, "allkeys-lru" in worker.err, TRACE in worker.err) == (Exit.USAGE, True, False)


@pytest.mark.slow
def test_a_wrong_redis_password(server: RedisServer, refused: Refused, run_worker: RunWorker) -> None:
    require(server, "other")
    refused(with_user(server.url(), ""), Exit.STORE, "check the user and the password")
    refused(f"redis://{HOST}:{server.port}/0", Exit.STORE, "check the user and the password")
    worker = run_worker(quick(with_user(server.url(), "")), "--until-idle", "-v")
    assert (worker.code, TRACE in worker.err) == (Exit.STORE, False)


@pytest.mark.slow
def test_a_redis_replica(
    server: RedisServer,
    tmp_path: Path,
    refused: Refused,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used(server.url(), tmp_path, monkeypatch)
    with redis.Redis.from_url(server.url()) as client:
        client.replicaof(HOST, 1)
    refused(server.url(), Exit.STORE, "replica", "primary", commands=WORKING)
    told = here(capsys, "db", "status", "--store", server.url())
    assert (told.code, "role\treplica\n" in told.out) == (Exit.STORE, True)
    assert TRACE not in told.out + told.err


def test_a_redis_database_that_the_server_does_not_have(store_url: StoreUrl, refused: Refused) -> None:
    parts = urlsplit(store_url("redis"))
    url = parts._replace(path="/9999").geturl()
    refused(url, Exit.STORE, "no database of this number", "`databases`", "?namespace=NAME")


def test_a_redis_that_is_too_old(
    store_url: StoreUrl, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = store_url("redis")
    used(url, tmp_path, monkeypatch)
    monkeypatch.setattr(boot, "OLDEST", (99, 0))
    refused(url, Exit.USAGE, "is needed", commands=(["status"], ["letters", "list"]))


@pytest.mark.slow
def test_a_redis_user_without_rights(
    server: RedisServer, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    used(server.url(), tmp_path, monkeypatch)
    with redis.Redis.from_url(server.url()) as client:
        client.acl_setuser("plain", enabled=True, passwords=[f"+{PASSWORD}"], commands=["+@read"], keys=["*"])
    refused(with_user(server.url(), "plain"), Exit.STORE, "may not", "ACL SETUSER")


@pytest.mark.slow
def test_a_redis_without_tls(server: RedisServer, refused: Refused) -> None:
    url = with_options(server.url().replace("redis://", "rediss://"), {"connect_timeout": "20ms"})
    refused(url, Exit.STORE, "TLS", commands=(["status"],))


@pytest.mark.slow
def test_a_full_redis_still_shows_and_sends_again(
    server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = used(server.url(), tmp_path, monkeypatch)
    with redis.Redis.from_url(server.url()) as client:
        client.config_set("maxmemory", "1mb")
    monkeypatch.setenv("REDRIVE_STORE", server.url())
    assert here(capsys, "status").code == Exit.DONE
    assert here(capsys, "letters", "replay", one, "--reason", "x").out == f"{one}\n"
    assert here(capsys, "letters", "list", "-q").out == f"{two}\n"
    assert here(capsys, "db", "check").out == "checked\t2\n"
    told = here(capsys, "health", "--oldest", "9d")
    assert told.code == Exit.UNSOUND
    kinds = {line.split("\t")[0]: line.split("\t")[2] for line in told.out.splitlines()}
    assert " of 1,048,576 bytes of the server's memory are used; a full server refuses" in kinds["memory"]
    with redis.Redis.from_url(server.url()) as client:
        client.config_set("maxmemory", "1gb")
    assert "memory\t" not in here(capsys, "health").out


# --- workers ---------------------------------------------------------------------------------------------------------


def quick(url: str) -> Redrive:
    app = Redrive(url)

    @app.handler("quick")
    async def handle(name: str) -> str:
        return name

    return app


def test_a_password_in_the_source_of_an_app_is_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    source = 'from redrive import Redrive\n\napp = Redrive("redis://:s3cr3t@127.0.0.1:1/zero")\n'
    (tmp_path / "shop_with_a_password.py").write_text(source)
    for loud in ([], ["-v"]):
        told = here(capsys, "worker", "run", "shop_with_a_password:app", *loud)
        assert (told.code, told.out) == (Exit.FAILED, "")
        assert "shop_with_a_password.py" in told.err
        assert 'Redrive("redis://:…@127.0.0.1:1/zero")' in told.err
        assert TRACE not in told.err
