"""`redrive db …` on Redis and Valkey."""

import json
import re
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from redrive.cli.db import check, status
from redrive.cli.exits import Exit
from redrive.stores.redis import boot
from tests.support.cli import here, letters_in
from tests.support.servers import namespaces, shared
from tests.support.servers.redis import FLAVOURS


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=FLAVOURS)
def flavour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(flavour: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of a namespace that is not there yet, which commands use without being told."""
    with namespaces.fresh(flavour) as fresh:
        monkeypatch.setenv("REDRIVE_STORE", fresh)
        yield fresh


@pytest.fixture
def client(flavour: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(shared.redis(flavour).admin) as made:
        yield made


def key(url: str, name: str) -> str:
    return f"{{{url.rpartition('=')[2]}}}:{name}"


def keys(client: redis.Redis, url: str) -> list[bytes]:
    return list(client.scan_iter(match=f"*{url.rpartition('=')[2]}*"))


# --- status ----------------------------------------------------------------------------------------------------------


def test_status_in_a_pipe_is_names_and_values(
    url: str, flavour: str, client: redis.Redis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    letters_in(tmp_path, "a", "b")
    told = here(capsys, "db", "status")
    assert (told.code, told.err) == (Exit.DONE, "")
    found = dict(line.split("\t") for line in told.out.splitlines())
    assert (found["engine"], found["server"], found["location"]) == ("redis", flavour, url)
    assert (found["schema"], found["known"], found["pending"]) == (str(boot.SCHEMA), str(boot.SCHEMA), "-")
    assert (found["durability"], found["appendonly"], found["appendfsync"]) == ("power-loss", "yes", "always")
    assert (found["role"], found["maxmemory"], found["maxmemory_policy"]) == ("primary", "0", "noeviction")
    assert (found["items"], found["keys"]) == ("2", str(len(keys(client, url))))
    info = client.info("server")
    assert found["version"] == info.get("valkey_version", info["redis_version"])
    assert int(found["used_memory"]) > 100_000


def test_status_on_a_terminal(
    url: str,
    client: redis.Redis,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    letters_in(tmp_path, "a")
    monkeypatch.setattr(status, "on_terminal", lambda: True)
    told = here(capsys, "db", "status")
    assert told.out.startswith(f"{url}\n  engine     ")
    assert f"  schema     {boot.SCHEMA}, up to date\n  survives   power-loss\n  role       primary\n" in told.out
    client.hset(key(url, "boot"), "schema", "99")
    told = here(capsys, "db", "status")
    assert "99, made by a newer redrive" in told.out
    assert (told.code, "no app can work with it: schema 99, made by a newer redrive" in told.err) == (Exit.STORE, True)


class Node(socketserver.ThreadingTCPServer):
    """Of a cluster, without any of the keys it is asked for: it sends everybody to the port of another one."""

    daemon_threads = True
    owner = 0

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _SendOn)
        self.port = int(self.server_address[1])


class _SendOn(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, Node)
        while asked := self.request.recv(10_000):
            commands = len(re.findall(rb"^\*", asked, re.MULTILINE))
            self.request.sendall(f"-MOVED 1 127.0.0.1:{self.server.owner}\r\n".encode() * commands)


@pytest.fixture
def node() -> Iterator[Node]:
    with Node() as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_status_comes_from_the_node_that_has_the_namespace(
    url: str, node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    letters_in(tmp_path, "a")
    node.owner = urlsplit(url).port or 0
    beside = url.replace(f":{node.owner}/", f":{node.port}/")
    told = here(capsys, "db", "status", "--store", beside)
    assert (told.code, "items\t1\n" in told.out) == (Exit.DONE, True)
    node.owner = node.port
    told = here(capsys, "db", "status", "--store", beside)
    assert (told.code, "round in circles" in told.err) == (Exit.STORE, True)


def test_a_newer_layout_is_left_alone(
    url: str, client: redis.Redis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    letters_in(tmp_path, "a")
    client.hset(key(url, "boot"), "schema", "99")
    for args in (["status"], ["letters", "list"], ["db", "migrate"], ["db", "check"]):
        told = here(capsys, *args, *(["--json"] if args[-1] != "migrate" else []))
        assert (told.code, told.out, "newer redrive" in told.err) == (Exit.STORE, "", True)


# --- check -----------------------------------------------------------------------------------------------------------


def test_check_and_repair(
    url: str,
    client: redis.Redis,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = letters_in(tmp_path, "a", "b")
    for quick in ([], ["--quick"]):
        assert here(capsys, "db", "check", *quick).out == "checked\t2\n"
    client.zrem(key(url, "items"), ids[0])
    before = sorted(keys(client, url))
    told = here(capsys, "db", "check")
    assert (told.code, sorted(keys(client, url))) == (Exit.UNSOUND, before)
    assert f"finding\tindexes\t1\tno\titems that are not where they would be looked for\t{ids[0]}" in told.out
    told = here(capsys, "db", "check", "--repair")
    assert (told.code, "finding\tindexes\t1\tyes\t" in told.out) == (Exit.DONE, True)
    monkeypatch.setattr(check, "on_terminal", lambda: True)
    assert here(capsys, "db", "check").out == "sound; 2 items were looked at\n"


def test_what_cannot_be_repaired_is_said(
    url: str, client: redis.Redis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (id,) = letters_in(tmp_path, "a")  # noqa: A001 - the word of the domain
    client.hdel(key(url, "body"), id)
    client.zrem(key(url, "items"), id)
    told = here(capsys, "db", "check", "--repair", "--json")
    assert told.code == Exit.UNSOUND
    found = {each["kind"]: each["repaired"] for each in json.loads(told.out)["findings"]}
    assert found == {"indexes": True, "payloads": False}
    assert "what is left cannot be repaired" in told.err


# --- the rest --------------------------------------------------------------------------------------------------------


def test_there_is_nothing_to_migrate(
    url: str, client: redis.Redis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = here(capsys, "db", "migrate")
    assert (told.code, told.out) == (Exit.DONE, "")
    assert re.fullmatch(r"nothing to do: no redrive in redis://\S+ yet, and an app makes what it needs\n", told.err)
    assert keys(client, url) == []
    letters_in(tmp_path, "a")
    assert here(capsys, "db", "migrate").err == "nothing to do: the schema is up to date\n"
    assert here(capsys, "db", "migrate", "--dry-run").code == Exit.DONE


def test_backup_names_the_command(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = here(capsys, "db", "backup", "my copy.rdb", "--store", url.replace("redis://", "redis://:se%40cret@"))
    assert (told.code, told.out, list(tmp_path.iterdir())) == (Exit.USAGE, "", [])
    port = url.partition("127.0.0.1:")[2].partition("/")[0]
    assert f"(redis-cli -h 127.0.0.1 -p {port} --rdb 'my copy.rdb')" in told.err
    assert "cret" not in told.err


@pytest.mark.parametrize(
    "args",
    [
        ["status"],
        ["letters", "list"],
        ["letters", "show", "abcd"],
        ["letters", "replay", "abcd", "--reason", "x"],
        ["db", "status"],
        ["db", "check"],
        ["db", "check", "--repair"],
    ],
    ids=" ".join,
)
def test_looking_makes_nothing(
    url: str, client: redis.Redis, args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    told = here(capsys, *args)
    assert (told.code, told.out) == (Exit.STORE, "")
    assert f"no redrive in {url} (set --store or REDRIVE_STORE, and ?namespace=NAME in it" in told.err
    assert keys(client, url) == []
