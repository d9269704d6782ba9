"""`redrive db …` on PostgreSQL."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import sqlalchemy

from redrive import Redrive
from redrive.cli.db import check, status
from redrive.cli.exits import Exit
from redrive.stores import migrate, script
from tests.support.cli import here, letters_in
from tests.support.migrations import add_migration
from tests.support.servers import schemas
from tests.support.servers.shared import postgres
from tests.support.stores import StoreUrl

NEWEST = script.newest("postgres")


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def schema(store_url: StoreUrl, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of a PostgreSQL store with nothing in it, which commands use without being told."""
    url = store_url("postgres")
    monkeypatch.setenv("REDRIVE_STORE", url)
    return url.rpartition("=")[2]


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a schema that is not there."""
    with schemas.schemas().missing() as url:
        monkeypatch.setenv("REDRIVE_STORE", url)
        yield url.rpartition("=")[2]


def execute(schema: str, *statements: str) -> None:
    with psycopg.connect(postgres().admin, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.replace("{schema}", f'"{schema}"').encode())


def as_owner(text: str) -> None:
    with psycopg.connect(postgres().url) as connection:
        connection.execute(text.encode())


def rows(schema: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(postgres().admin, autocommit=True) as connection:
        return connection.execute(statement.replace("{schema}", f'"{schema}"').encode()).fetchall()


def is_there(schema: str) -> bool:
    return rows(schema, f"select 1 from pg_namespace where nspname = '{schema}'") != []


# --- status ----------------------------------------------------------------------------------------------------------


def test_status_in_a_pipe_is_names_and_values(schema: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    letters_in(tmp_path, "a", "b")
    told = here(capsys, "db", "status")
    assert (told.code, told.err) == (Exit.DONE, "")
    found = dict(line.split("\t") for line in told.out.splitlines())
    assert found["location"].endswith(f"?schema={schema}")
    assert (found["engine"], found["schema"], found["known"]) == ("postgres", str(NEWEST), str(NEWEST))
    assert (found["durability"], found["pending"], found["changed"]) == ("power-loss", "-", "-")
    assert found["binding"].startswith("psycopg 3.")
    assert (found["fsync"], found["full_page_writes"], found["synchronous_commit"]) == ("on", "on", "on")
    assert int(found["size"]) == rows(schema, SIZE.replace("{name}", schema))[0][0]
    assert int(found["unfolded"]) == rows(schema, "select count(*) - 1 from {schema}.counter")[0][0]


SIZE = """
    select sum(pg_total_relation_size(oid))::bigint
    from pg_class where relnamespace = '{name}'::regnamespace and relkind = 'r'
"""


def test_status_names_a_moment_that_somebody_still_looks_at(schema: str, capsys: pytest.CaptureFixture[str]) -> None:
    def age() -> int:
        return int(json.loads(here(capsys, "db", "status", "--json").out)["oldest_xmin_age"])

    with psycopg.connect(postgres().url) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("select 1")
        for _ in range(5):
            execute(schema, "create table {schema}.x ()", "drop table {schema}.x")
        assert age() >= 10


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("insert into {schema}.migration values (99, 'x', 0)", "99, made by a newer redrive"),
        ("update {schema}.migration set checksum = 'x' where number = 1", "migration 1 was applied with other"),
        ("select 1", f"{NEWEST}, up to date"),
    ],
)
def test_status_says_how_the_schema_stands(
    schema: str, change: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(schema, change)
    monkeypatch.setattr(status, "on_terminal", lambda: True)
    told = here(capsys, "db", "status")
    assert told.code == (Exit.DONE if "up to date" in said else Exit.STORE)
    assert ("no app can work with it: schema " in told.err) is (told.code == Exit.STORE)
    assert said in told.out
    assert "  server     fsync on, full_page_writes on, synchronous_commit on\n" in told.out


def test_status_says_what_is_pending(
    schema: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    more = add_migration(monkeypatch, "postgres")
    told = here(capsys, "db", "status")
    assert (told.code, f"pending\t{more.name}\n" in told.out, told.err) == (Exit.DONE, True, "")
    assert rows(schema, "select max(number) from {schema}.migration") == [(NEWEST,)]


# --- check -----------------------------------------------------------------------------------------------------------


def test_check_and_repair(
    schema: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    letters_in(tmp_path, "a", "b")
    for quick in ([], ["--quick"]):
        assert here(capsys, "db", "check", *quick).out == "checked\t2\n"
    execute(schema, "insert into {schema}.counter (queue, done) values ('mail', 7)")
    told = here(capsys, "db", "check")
    assert told.code == Exit.UNSOUND
    assert "queues whose counters differ from their items\tmail: done 7 (there are 0)" in told.out
    told = here(capsys, "db", "check", "--repair")
    assert (told.code, "finding\tcounters\t1\tyes\t" in told.out) == (Exit.DONE, True)
    monkeypatch.setattr(check, "on_terminal", lambda: True)
    assert here(capsys, "db", "check").out == "sound; 2 items were looked at\n"


def test_what_cannot_be_repaired_is_said(schema: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    letters_in(tmp_path, "a")
    execute(
        schema,
        "update {schema}.item set crc = crc + 1",
        "insert into {schema}.counter (queue, done) values ('mail', 1)",
    )
    assert "payloads" not in here(capsys, "db", "check", "--quick").out
    told = here(capsys, "db", "check", "--repair", "--json")
    assert told.code == Exit.UNSOUND
    found = {each["kind"]: each["repaired"] for each in json.loads(told.out)["findings"]}
    assert found == {"counters": True, "payloads": False}
    assert "what is left cannot be repaired" in told.err


# --- backup ----------------------------------------------------------------------------------------------------------


def test_backup_names_the_command(schema: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = postgres().url.replace("postgresql://redrive@", "postgresql://redrive:se%40cret@")
    told = here(capsys, "db", "backup", "my copy.dump", "--store", f"{store}?schema={schema}")
    assert (told.code, told.out) == (Exit.USAGE, "")
    location = postgres().url
    assert f"pg_dump --schema={schema} --format=custom '--file=my copy.dump' {location}" in told.err
    assert list(tmp_path.iterdir()) == []


# --- migrate and sql -------------------------------------------------------------------------------------------------


def test_migrate_makes_the_schema_and_names_what_was_applied(missing: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = [migration.name for migration in migrate.known("postgres")]
    told = here(capsys, "db", "migrate")
    assert (told.code, told.out.splitlines(), told.err) == (Exit.DONE, names, "")
    told = here(capsys, "db", "migrate")
    assert (told.code, told.out, told.err) == (Exit.DONE, "", "nothing to do: the schema is up to date\n")
    assert here(capsys, "db", "check").out == "checked\t0\n"


def test_migrate_applies_what_is_pending_and_names_it(
    schema: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    more = add_migration(monkeypatch, "postgres")
    told = here(capsys, "db", "migrate")
    assert (told.code, told.out, told.err) == (Exit.DONE, f"{more.name}\n", "")
    assert rows(schema, "select number from {schema}.migration order by 1") == [(NEWEST,), (more.number,)]
    assert here(capsys, "db", "migrate").err == "nothing to do: the schema is up to date\n"


def test_a_dry_run_changes_nothing_and_prints_what_does_it(missing: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = here(capsys, "db", "migrate", "--dry-run")
    assert (told.code, told.err, is_there(missing)) == (Exit.DONE, "", False)
    assert told.out == here(capsys, "db", "sql").out
    as_owner(told.out)
    assert here(capsys, "db", "migrate").err == "nothing to do: the schema is up to date\n"


def test_a_newer_database_is_not_migrated(schema: str, capsys: pytest.CaptureFixture[str]) -> None:
    execute(schema, "insert into {schema}.migration values (99, 'x', 0)")
    told = here(capsys, "db", "migrate")
    assert (told.code, "has schema 99" in told.err) == (Exit.STORE, True)


@pytest.fixture
def plain_role(missing: str) -> Iterator[str]:
    """Somebody who may connect, and nothing else."""
    name = f"{missing}_user"
    execute(missing, f"create role {name} login password 'x'")
    yield name
    execute(missing, "drop schema if exists {schema} cascade", f"drop owned by {name}", f"drop role {name}")


def test_what_sql_prints_is_enough_for_a_role_that_may_create_nothing(
    missing: str, plain_role: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without a server at hand, and in a transaction of somebody else's tool."""
    monkeypatch.delenv("REDRIVE_STORE")
    told = here(capsys, "db", "sql", "--engine", "postgres", "--schema", missing)
    assert (told.code, told.err) == (Exit.DONE, "")
    with psycopg.connect(postgres().admin) as connection:
        connection.execute(told.out.encode())
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
    grants = [line.removeprefix("--   ").replace("ROLE", plain_role) for line in told.out.splitlines()[-4:]]
    assert all(grant.startswith("grant ") for grant in grants)
    execute(missing, *grants)
    url = postgres().url.replace("redrive@", f"{plain_role}:x@") + f"?schema={missing}"
    asyncio.run(work_through(url))
    monkeypatch.setenv("REDRIVE_STORE", url)
    assert here(capsys, "db", "migrate").err == "nothing to do: the schema is up to date\n"
    assert here(capsys, "db", "check").out == "checked\t1\n"
    assert here(capsys, "db", "status").code == Exit.DONE
    assert here(capsys, "status").code == Exit.DONE


async def work_through(url: str) -> None:
    app = Redrive(url, log=False)

    @app.handler("quick")
    async def quick(name: str) -> str:
        return name

    async with app:
        made = await app.enqueue("quick", {"name": "one"})
        await app.run(until_idle=True)
        assert await app.wait(made, timeout="1m") == "one"


def test_sql_fits_into_a_migration_of_alembic(missing: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Which takes it for a text of SQLAlchemy, in which colons and percent signs may mean something."""
    text = sqlalchemy.text(here(capsys, "db", "sql").out)
    engine = sqlalchemy.create_engine(postgres().url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        connection.execute(text)
    engine.dispose()
    assert here(capsys, "db", "migrate").err == "nothing to do: the schema is up to date\n"
    assert here(capsys, "db", "check").out == "checked\t0\n"


def test_sql_that_was_run_is_not_run_again(missing: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = here(capsys, "db", "sql").out
    as_owner(text)
    with pytest.raises(psycopg.errors.DuplicateTable):
        as_owner(text)
    assert here(capsys, "db", "check").out == "checked\t0\n"


def test_an_upgrade_is_for_the_schema_it_names(
    schema: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    add_migration(monkeypatch, "postgres")
    add_migration(monkeypatch, "postgres", "create table {schema}.most ();\n")
    later = here(capsys, "db", "sql", "--from", str(NEWEST + 1)).out
    with pytest.raises(psycopg.errors.RaiseException, match=f"has schema {NEWEST + 1}"):
        execute(schema, later)
    execute(schema, here(capsys, "db", "sql", "--from", str(NEWEST)).out)
    assert rows(schema, "select max(number) from {schema}.migration") == [(NEWEST + 2,)]
    told = here(capsys, "db", "migrate")
    assert told.err == "nothing to do: the schema is up to date\n"


# --- all -------------------------------------------------------------------------------------------------------------

LOOKING = (
    ["status"],
    ["letters", "list"],
    ["letters", "show", "abcd"],
    ["letters", "replay", "abcd", "--reason", "x"],
    ["db", "status"],
    ["db", "check"],
    ["db", "check", "--repair"],
)


@pytest.mark.parametrize("args", LOOKING, ids=" ".join)
def test_looking_makes_nothing(missing: str, args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    told = here(capsys, *args)
    assert (told.code, told.out) == (Exit.STORE, "")
    assert f"no redrive in the schema {missing} of {postgres().url} (set --store or REDRIVE_STORE" in told.err
    assert not is_there(missing)


def test_a_strangers_schema_is_not_ours(missing: str, capsys: pytest.CaptureFixture[str]) -> None:
    execute(
        missing,
        "create schema {schema}",
        "create table {schema}.customers ()",
        "create view {schema}.migration as select 1",
    )
    for args in LOOKING:
        assert here(capsys, *args).code == Exit.STORE
    assert rows(missing, f"select count(*) from pg_class where relnamespace = '{missing}'::regnamespace") == [(2,)]
