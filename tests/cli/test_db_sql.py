import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from redrive.cli.exits import Exit
from redrive.stores import migrate, script
from redrive.stores.postgres import extra
from tests.stores.upkeep_kit import of_first_schema, rows
from tests.support.cli import here
from tests.support.migrations import add_migration

NEWEST = script.newest("sqlite")


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REDRIVE_STORE", raising=False)


def run_by_hand(path: Path, text: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(text)


@pytest.mark.parametrize("args", [[], ["--engine", "sqlite"], ["--store", "sqlite:///elsewhere.db"]], ids=" ".join)
def test_what_is_printed_for_sqlite_makes_a_database(
    args: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = here(capsys, "db", "sql", *args)
    assert (told.code, told.err, list(tmp_path.iterdir())) == (Exit.DONE, "", [])
    run_by_hand(tmp_path / "redrive.db", told.out)
    assert here(capsys, "db", "migrate").err == "nothing to do: the schema is up to date\n"
    assert here(capsys, "db", "check").out == "checked\t0\n"
    assert here(capsys, "status").code == Exit.DONE


def test_from_prints_only_what_comes_after(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    add_migration(monkeypatch, "sqlite")
    path = of_first_schema(tmp_path / "redrive.db")
    told = here(capsys, "db", "sql", "--from", "1")
    assert ("0001_schema.sql" in told.out, "0002_more.sql" in told.out) == (False, True)
    run_by_hand(path, told.out)
    assert rows(path, "select number from redrive_migration") == [(1,), (2,)]
    assert here(capsys, "db", "check").out == "checked\t0\n"
    newest = here(capsys, "db", "sql", "--from", "2")
    assert (newest.code, newest.out, newest.err) == (Exit.DONE, "", "nothing to do: schema 2 is the newest\n")


def test_what_was_applied_is_not_applied_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = of_first_schema(tmp_path / "redrive.db")
    before = rows(path, "select * from sqlite_master")
    with pytest.raises(sqlite3.OperationalError, match="already exists"):
        run_by_hand(path, here(capsys, "db", "sql").out)
    assert rows(path, "select * from sqlite_master") == before


def test_a_dry_run_of_migrate_prints_all_of_it_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    add_migration(monkeypatch, "sqlite")
    path = of_first_schema(tmp_path / "redrive.db")
    run_by_hand(path, here(capsys, "db", "migrate", "--dry-run").out)
    assert here(capsys, "db", "migrate").err == "nothing to do: the schema is up to date\n"
    assert len(rows(path, "select * from redrive_migration")) == len(migrate.known("sqlite"))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--from", "99"], f"there is no schema 99 (this redrive knows 1 to {NEWEST})"),
        (["--from", "-1"], "there is no schema -1"),
        (["--from", "x"], "'x' is not a valid integer"),
        (["--schema", "jobs"], "only PostgreSQL has schemas (say --engine postgres as well)"),
        (["--engine", "oracle"], "'oracle' is not one of 'postgres', 'sqlite'"),
        (["--store", "memory:"], "a memory: store has no tables"),
        (["--store", "redis://127.0.0.1:1/0"], "a redis: store has no tables"),
        (["--store", "nonsense"], "it has no scheme"),
        (["--engine", "postgres", "--schema", 'x"; drop'], "is not a name for a schema"),
        (["--engine", "postgres", "--schema", ""], "is not a name for a schema"),
        (["--store", "postgresql://127.0.0.1:1/db?schema=Jobs"], "is not a name for a schema"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_printed(args: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = here(capsys, "db", "sql", *args)
    assert (told.code, told.out) == (Exit.USAGE, "")
    assert said in told.err
    assert told.err.count("\n") == 1


def test_postgresql_needs_its_driver_to_be_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extra, "find_spec", lambda _: None)
    told = here(capsys, "db", "sql", "--engine", "postgres")
    assert (told.code, told.out) == (Exit.USAGE, "")
    assert 'pip install "redrive[postgres]"' in told.err
