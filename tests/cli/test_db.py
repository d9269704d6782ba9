import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from redrive import Redrive
from redrive import cli as command_line
from redrive.cli.db import check, status
from redrive.cli.exits import Exit
from redrive.core.item import NewItem
from redrive.stores import migrate
from redrive.stores.sqlite import SqliteStore, upkeep
from tests.stores.upkeep_kit import execute, filled, of_first_schema, rows
from tests.support.cli import COMMAND, PATIENCE, environment, here, letters_in, on_terminal
from tests.support.migrations import add_migration

NEWEST = max(migration.number for migration in migrate.known("sqlite"))
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REDRIVE_STORE", raising=False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Six items in every state, see `fill`."""
    return asyncio.run(filled(tmp_path / "redrive.db"))


# --- status ----------------------------------------------------------------------------------------------------------


def test_status_in_a_pipe_is_names_and_values(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = here(capsys, "db", "status")
    assert (told.code, told.err) == (Exit.DONE, "")
    found = dict(line.split("\t") for line in told.out.splitlines())
    assert (found["location"], found["schema"], found["known"]) == (str(path), str(NEWEST), str(NEWEST))
    assert (found["durability"], found["binding"], found["pending"]) == ("power-loss", "stdlib", "-")
    assert found["version"] == sqlite3.sqlite_version
    assert int(found["size"]) == path.stat().st_size == int(found["pages"]) * int(found["page_size"])


def test_status_as_json_has_the_same(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(
        here(capsys, "db", "status", "--json", "--store", "sqlite:///redrive.db?durability=process-crash").out
    )
    assert (found["engine"], found["durability"], found["trouble"]) == ("sqlite", "process-crash", "")
    assert found["log_size"] == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("insert into redrive_migration values (99, 'x', 0)", "99, made by a newer redrive"),
        ("update redrive_migration set checksum = 'x' where number = 1", "migration 1 was applied with other contents"),
        ("select 1", f"{NEWEST}, up to date"),
    ],
)
def test_status_says_how_the_schema_stands(
    path: Path, change: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(path, change)
    monkeypatch.setattr(status, "on_terminal", lambda: True)
    told = here(capsys, "db", "status")
    assert said in told.out
    works = "up to date" in said
    assert told.code == (Exit.DONE if works else Exit.STORE)
    assert ("no app can work with it: schema " in told.err) is not works


def test_status_says_what_is_pending(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    more = add_migration(monkeypatch, "sqlite")
    told = here(capsys, "db", "status")
    assert (told.code, f"pending\t{more.name}\n" in told.out, told.err) == (Exit.DONE, True, "")
    monkeypatch.setattr(status, "on_terminal", lambda: True)
    told = here(capsys, "db", "status")
    assert f"{NEWEST}, to be brought to {more.number} by redrive db migrate" in told.out
    assert (told.code, told.err) == (Exit.DONE, "")


@pytest.mark.parametrize("risky", [True, False])
def test_status_warns_of_a_risky_sqlite(
    path: Path, risky: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "on_terminal", lambda: True)
    monkeypatch.setattr(upkeep, "is_risky", lambda _: risky)
    assert ("redrive[sqlite]" in here(capsys, "db", "status").out) is risky


def test_status_of_what_is_no_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "redrive.db").write_bytes(b"x" * 5_000)
    told = here(capsys, "db", "status")
    assert told.code == Exit.STORE
    assert "size\t5000\n" in told.out
    assert "is not a usable database" in told.err
    assert "Traceback" not in told.err


def test_on_a_terminal(path: Path) -> None:
    execute(path, "update queue set ready = 9", "update item set id = 'a' || char(27) || '[2J' where id = 'a'")
    execute(path, "update payload set crc = 0 where seq = 1")
    told = on_terminal("db", "status", cwd=path.parent)
    assert "  schema     " in told.out
    told = on_terminal("db", "check", cwd=path.parent)
    assert told.code == Exit.UNSOUND
    assert "counters: queues whose counters differ from their items: 1\x1b[0m\n  q: ready 9 (there are 2)\n" in told.out
    assert "  a\\x1b[2J\n" in told.out
    told = on_terminal("db", "backup", "copy.db", cwd=path.parent)
    assert (told.code, told.out.startswith("copy.db: ")) == (Exit.DONE, True)
    assert " bytes, copied and checked in " in told.out


# --- check -----------------------------------------------------------------------------------------------------------


def test_a_sound_database(path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for quick in ([], ["--quick"]):
        told = here(capsys, "db", "check", *quick)
        assert (told.code, told.out, told.err) == (Exit.DONE, "checked\t6\n", "")
    assert json.loads(here(capsys, "db", "check", "--json").out) == {
        "sound": True,
        "items": 6,
        "findings": [],
        "left_out": [],
    }
    monkeypatch.setattr(check, "on_terminal", lambda: True)
    assert here(capsys, "db", "check").out == "sound; 6 items were looked at\n"


def test_what_is_found_is_named_and_ends_with_ten(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    execute(path, "delete from payload where seq < 3", "update queue set done = 0")
    before = rows(path, "select * from queue")
    told = here(capsys, "db", "check")
    assert (told.code, told.code) == (Exit.UNSOUND, 10)
    assert told.out.splitlines() == [
        "checked\t6",
        "finding\tcounters\t1\tno\tqueues whose counters differ from their items\tq: done 0 (there are 1)",
        "finding\tpayloads\t2\tno\titems without a payload\ta, b",
    ]
    found = json.loads(here(capsys, "db", "check", "--json").out)
    assert not found["sound"]
    assert [(each["kind"], each["count"], each["examples"]) for each in found["findings"]][1] == (
        "payloads",
        2,
        ["a", "b"],
    )
    assert rows(path, "select * from queue") == before


def test_damage_is_a_finding_and_no_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "redrive.db").write_bytes(b"x" * 5_000)
    told = here(capsys, "db", "check")
    assert told.code == Exit.UNSOUND
    assert "file is not a database" in told.out
    assert told.err == ""


def test_repair_mends_what_is_counted_and_says_what_is_left(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    execute(path, "update queue set done = 0")
    told = here(capsys, "db", "check", "--repair")
    assert (told.code, "finding\tcounters\t1\tyes\t" in told.out) == (Exit.DONE, True)
    assert here(capsys, "db", "check").out == "checked\t6\n"
    execute(path, "update queue set done = 0", "delete from payload where seq = 1")
    told = here(capsys, "db", "check", "--repair", "--json")
    assert told.code == Exit.UNSOUND
    found = json.loads(told.out)
    assert {each["kind"]: each["repaired"] for each in found["findings"]} == {"counters": True, "payloads": False}
    assert not found["sound"]
    assert "what is left cannot be repaired" in told.err


def test_an_old_schema_is_not_migrated_by_a_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    add_migration(monkeypatch, "sqlite")
    of_first_schema(tmp_path / "redrive.db")
    told = here(capsys, "db", "check")
    assert told.code == Exit.FAILED
    assert "left-out\tcounters and rows: it has schema 1; redrive db migrate brings it to" in told.out
    assert rows(tmp_path / "redrive.db", "select max(number) from redrive_migration") == [(1,)]


# --- backup ----------------------------------------------------------------------------------------------------------


def test_backup_says_where_how_much_and_how_long(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = here(capsys, "db", "backup", "copy.db")
    assert (told.code, told.err) == (Exit.DONE, "")
    file, size, took = told.out.rstrip("\n").split("\t")
    assert (file, int(size)) == (str(path.with_name("copy.db")), path.with_name("copy.db").stat().st_size)
    assert float(took) >= 0
    found = json.loads(here(capsys, "db", "backup", "copy.db", "--json", "--force").out)
    assert (found["file"], found["size"]) == (file, int(size))
    assert here(capsys, "db", "check", "--store", "sqlite:///copy.db").out == "checked\t6\n"


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["there.db"], Exit.CONFLICT, "is there already"),
        (["redrive.db", "--force"], Exit.USAGE, "belongs to the database itself"),
        (["no/folder/copy.db"], Exit.USAGE, "there is no folder"),
        ([".", "--force"], Exit.USAGE, "not a plain file"),
        (["copy.db", "--store", "sqlite:///elsewhere.db"], Exit.STORE, "no database at"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_backup_that_cannot_be(
    path: Path, args: list[str], code: Exit, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path.with_name("there.db").write_text("precious")
    told = here(capsys, "db", "backup", *args)
    assert (told.code, told.out) == (code, "")
    assert said in told.err
    assert path.with_name("there.db").read_text() == "precious"
    assert sorted(each.name for each in path.parent.iterdir() if each.is_file()) == ["redrive.db", "there.db"]


def with_files_up_to(blocks: int, folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """As on a full disk: no file may grow beyond so many blocks of 512 bytes."""
    # What it compiles would be cut off like any other file, and others would read it.
    return subprocess.run(
        ["sh", "-c", f'ulimit -f {blocks}; exec env PYTHONDONTWRITEBYTECODE=1 "$@"', "sh", *COMMAND, *args],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("binding", ["stdlib", "apsw"])
def test_without_room_for_the_index_of_the_log_one_can_still_look(path: Path, binding: str) -> None:
    """On a full disk, with everything stopped; also to bring a copy to another disk, which has room."""
    store = ["--store", f"sqlite:///redrive.db?binding={binding}"]
    status = with_files_up_to(8, path.parent, "db", "status", *store)
    assert (status.returncode, status.stderr, "schema\t0" in status.stdout) == (Exit.DONE, "", False)
    check = with_files_up_to(8, path.parent, "db", "check", *store)
    assert (check.returncode, check.stdout) == (Exit.DONE, "checked\t6\n")


@pytest.mark.slow
def test_a_disk_that_fills_up_on_the_way_leaves_nothing(path: Path) -> None:
    """A limit on the size of files, which the look at the free space before does not see."""

    async def grow() -> None:
        store = await SqliteStore(path).open()
        await store.put([NewItem(f"x{number}", "q", os.urandom(3_000)) for number in range(120)])
        await store.close()

    asyncio.run(grow())
    told = with_files_up_to(300, path.parent, "db", "backup", "copy.db")
    assert told.returncode == Exit.STORE
    assert "no space left for a backup" in told.stderr
    assert [each.name for each in path.parent.iterdir() if each.is_file()] == ["redrive.db"]


@pytest.mark.slow
def test_who_may_not_write_is_told_so(path: Path) -> None:
    def obedient(*args: str) -> subprocess.CompletedProcess[str]:
        """Also when root runs the tests."""
        script = (
            "from tests.support.disk import kernel; kernel.obey_permissions(); from redrive.cli import main; main()"
        )
        return subprocess.run(
            [sys.executable, "-c", script, *args],
            cwd=path.parent,
            env=environment(PYTHONPATH=str(ROOT)),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    closed = path.parent / "closed"
    closed.mkdir(mode=0o555)
    found = obedient("db", "backup", "closed/copy.db")
    assert (found.returncode, found.stdout) == (Exit.STORE, "")
    assert "closed/copy.db cannot be written: Permission denied" in found.stderr
    assert list(closed.iterdir()) == []
    # SQLite cannot read a database with a log where it may not write; what can be known without it is told.
    path.parent.chmod(0o555)
    found = obedient("db", "status")
    path.parent.chmod(0o755)
    assert (found.returncode, f"size\t{path.stat().st_size}\n" in found.stdout) == (Exit.STORE, True)
    assert "check the permissions" in found.stderr


# --- migrate ---------------------------------------------------------------------------------------------------------


def test_migrate_applies_what_is_pending_and_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [add_migration(monkeypatch, "sqlite").name, add_migration(monkeypatch, "sqlite", "select 1;\n", "x").name]
    of_first_schema(tmp_path / "redrive.db")
    told = here(capsys, "db", "migrate")
    assert (told.code, told.out.splitlines(), told.err) == (Exit.DONE, names, "")
    told = here(capsys, "db", "migrate")
    assert (told.code, told.out, told.err) == (Exit.DONE, "", "nothing to do: the schema is up to date\n")


def test_a_dry_run_prints_sql_that_does_it(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    add_migration(monkeypatch, "sqlite")
    told = here(capsys, "db", "migrate", "--dry-run")
    assert (told.code, told.err) == (Exit.DONE, "")
    assert rows(path, "select max(number) from redrive_migration") == [(1,)]
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(told.out)
    assert rows(path, "select count(*) from more") == rows(path, "select count(*) from item")


def test_a_failing_migration_changes_nothing(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    add_migration(monkeypatch, "sqlite", "create table half (x);\ninsert into nowhere values (1);\n")
    told = here(capsys, "db", "migrate")
    assert (told.code, told.out) == (Exit.STORE, "")
    assert "no such table: nowhere" in told.err
    assert rows(path, "select count(*) from sqlite_master where name = 'half'") == [(0,)]


def test_a_newer_database_is_not_migrated(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    execute(path, "insert into redrive_migration values (99, 'x', 0)")
    told = here(capsys, "db", "migrate")
    assert (told.code, "has schema 99" in told.err) == (Exit.STORE, True)


# --- all -------------------------------------------------------------------------------------------------------------

ALL = (["status"], ["check"], ["backup", "copy.db"], ["migrate"])


@pytest.mark.parametrize("args", ALL, ids=lambda args: args[0])
def test_a_missing_database_is_not_made(tmp_path: Path, args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    told = here(capsys, "db", *args)
    assert (told.code, told.out) == (Exit.STORE, "")
    assert f"no database at {tmp_path}/redrive.db (set --store or REDRIVE_STORE; an app makes a new one)" in told.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("args", ALL, ids=lambda args: args[0])
def test_a_strangers_database_is_left_alone(
    tmp_path: Path, args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    execute(tmp_path / "redrive.db", "create table customers (name)")
    before = (tmp_path / "redrive.db").read_bytes()
    told = here(capsys, "db", *args)
    assert (told.code, "customers" in told.err) == (Exit.USAGE, True)
    assert (tmp_path / "redrive.db").read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["redrive.db"]


def test_all_of_it_while_an_app_is_open(tmp_path: Path) -> None:
    """In threads of their own: nobody is in anybody's way."""
    letters_in(tmp_path, "no such mailbox")

    async def beside() -> list[int]:
        async with Redrive(f"sqlite:///{tmp_path}/redrive.db", log=False) as app:
            app.queue("mail")
            await app.enqueue("mail", {"item_id": "0"})
            return [await asyncio.to_thread(command_line.run, ["db", *args]) for args in ALL]

    assert asyncio.run(beside()) == [Exit.DONE] * len(ALL)
