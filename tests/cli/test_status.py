import asyncio
import json
import sqlite3
from pathlib import Path

import pytest

from redrive import Redrive
from redrive.cli.exits import Exit
from tests.support.bound import line_in
from tests.support.cli import here, letters_in, on_sqlite, on_terminal, store_in

ENGINES = {"sqlite": "sqlite", "postgresql": "postgres", "redis": "redis"}
pytestmark = pytest.mark.usefixtures("on_store")


def enqueue(folder: Path, queue: str, count: int, *, delay: str = "0s", paused: str = "") -> None:
    async def put() -> None:
        async with Redrive(store_in(folder), actor="ops\x1b[31m") as app:
            app.queue(queue)
            await app.enqueue_many(queue, [None] * count, delay=delay)
            if paused:
                await app.pause(queue, reason=paused)

    asyncio.run(put())


def test_in_a_pipe_each_line_starts_with_its_kind(
    on_store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    enqueue(tmp_path, "jobs", 2)
    letters_in(tmp_path, "no such mailbox", "no such mailbox")
    told = here(capsys, "status")
    assert (told.code, told.err) == (Exit.DONE, "")
    lines = [line.split("\t") for line in told.out.splitlines()]
    kinds = [line[0] for line in lines]
    assert kinds == ["store", "queue", "queue", "cause"]
    store, jobs, mail, cause = lines
    assert (store[1], store[3]) == (ENGINES[on_store.partition(":")[0]], "power-loss")
    assert jobs[1:9] == ["jobs", "2", "0", "0", "0", "0", "0", "0"]
    assert jobs[10:] == ["0", "0", "0", "NO WORKER"]
    assert mail[1:5] == ["mail", "0", "0", "2"]
    assert mail[13] == "-"
    assert cause[2:4] == ["2", "mail"]
    assert cause[5:] == ["ValueError", "no such mailbox"]


def test_what_waits_for_others_is_not_the_oldest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody is late with what cannot run."""
    line_in(tmp_path, 3)
    (row,) = json.loads(here(capsys, "status", "--json").out)["queues"]
    assert (row["ready"], row["held"], row["dead"]) == (0, 2, 1)
    assert (row["oldest_due_age"], row["unattended"]) == (None, False)
    enqueue(tmp_path, "orders", 1)
    (row,) = json.loads(here(capsys, "status", "--json").out)["queues"]
    assert (row["ready"], row["oldest_due_age"] >= 0) == (1, True)


def test_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    enqueue(tmp_path, "later", 1, delay="1h")
    enqueue(tmp_path, "paused", 1, paused="on\nfire")
    letters_in(tmp_path, "a")
    status = json.loads(here(capsys, "status", "--json").out)
    assert status["at"].endswith("Z")
    assert status["store"]["schema"] >= 1
    queues = {row["queue"]: row for row in status["queues"]}
    assert queues["later"]["ready"] == 1
    assert queues["later"]["oldest_due_age"] is None
    assert not queues["later"]["unattended"]
    assert queues["paused"]["paused_reason"] == "on\nfire"
    assert queues["paused"]["oldest_due_age"] >= 0
    assert not queues["paused"]["unattended"]
    assert queues["mail"]["dead"] == 1
    assert status["causes"][0]["count"] == 1


@on_sqlite
def test_on_a_terminal_there_are_columns_and_colour_and_no_foreign_escapes(tmp_path: Path) -> None:
    enqueue(tmp_path, "jobs", 3)
    enqueue(tmp_path, "paused", 1, paused="why\x1b[2J")
    letters_in(tmp_path, "hostile \x1b[2J\x07 text")
    told = on_terminal("status", cwd=tmp_path)
    assert told.code == Exit.DONE
    assert "QUEUE   READY  RUNNING" in told.out
    assert "no live worker for: jobs" in told.out
    assert "paused: paused, by ops\\x1b[31m: why\\x1b[2J\n" in told.out
    assert "hostile \\x1b[2J\\x07 text" in told.out
    assert "\x1b[1m" in told.out
    assert "\x1b[2J" not in told.out
    plain = on_terminal("status", cwd=tmp_path, env={"NO_COLOR": "1"})
    assert "\x1b" not in plain.out


@on_sqlite
def test_a_missing_database_is_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for args in (
        ["status"],
        ["letters", "list"],
        ["letters", "show", "abcd"],
        ["letters", "replay", "abcd", "--reason", "x"],
        ["letters", "skip", "abcd", "--reason", "x"],
        ["item", "show", "abcd"],
        ["item", "cancel", "abcd", "--reason", "x"],
        ["queue", "list"],
        ["queue", "set", "q", "--rate", "1/s", "--reason", "x"],
        ["route", "list"],
        ["gate", "list"],
        ["schedule", "list"],
    ):
        told = here(capsys, *args)
        assert (told.code, told.out) == (Exit.STORE, "")
        assert (
            f"no database at {tmp_path}/redrive.db (set --store or REDRIVE_STORE; an app makes a new one)" in told.err
        )
    assert list(tmp_path.iterdir()) == []


@on_sqlite
def test_the_store_comes_from_the_option_then_the_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    letters_in(tmp_path, "a", name="one.db")
    monkeypatch.setenv("REDRIVE_STORE", f"sqlite:///{tmp_path}/one.db")
    assert "one.db" in here(capsys, "status").out
    told = here(capsys, "status", "--store", "sqlite:///two.db")
    assert (told.code, "two.db" in told.err) == (Exit.STORE, True)


@on_sqlite
def test_an_empty_file_is_no_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "redrive.db").touch()
    assert here(capsys, "status").code == Exit.STORE
    assert (tmp_path / "redrive.db").stat().st_size == 0


@on_sqlite
def test_memory_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    told = here(capsys, "status", "--store", "memory:")
    assert told.code == Exit.USAGE
    assert "empty in every new process" in told.err


@pytest.mark.parametrize("url", ["nonsense", "http://x", "sqlite://", "sqlite:///x?durability=maybe", ""])
@on_sqlite
def test_a_wrong_url_is_wrong_usage(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = here(capsys, "status", "--store", url)
    assert told.code == Exit.USAGE


@on_sqlite
def test_a_damaged_file_says_so_and_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    junk = b"this is not a database, whatever its name says" * 100
    (tmp_path / "redrive.db").write_bytes(junk)
    told = here(capsys, "status", "--json")
    assert told.code == Exit.STORE
    assert json.loads(told.err)["error"]["code"] == "store_corrupt"
    assert (tmp_path / "redrive.db").read_bytes() == junk


@on_sqlite
def test_a_database_of_a_newer_redrive_says_both_versions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    letters_in(tmp_path, "a")
    with sqlite3.connect(tmp_path / "redrive.db") as database:
        columns = [row[1] for row in database.execute("pragma table_info(redrive_migration)")]
        values = {"number": 999, "checksum": "x"}
        database.execute(
            f"insert into redrive_migration values ({', '.join('?' * len(columns))})",
            [values.get(column, 0) for column in columns],
        )
    database.close()
    told = here(capsys, "status", "--json")
    assert told.code == Exit.STORE
    error = json.loads(told.err)["error"]
    assert error["code"] == "store_too_new"
    assert "999" in error["message"]
    assert "upgrade" in error["hint"]


@on_sqlite
def test_a_database_of_something_else_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = sqlite3.connect(tmp_path / "redrive.db")
    database.execute("create table customers (name)")
    database.close()
    before = (tmp_path / "redrive.db").read_bytes()
    told = here(capsys, "status")
    assert told.code in (Exit.USAGE, Exit.STORE)
    assert "customers" in told.err
    assert (tmp_path / "redrive.db").read_bytes() == before
