"""The migrations of an engine as one text, for those who change their databases with tools of their own.

A database that was made by it has nothing left to migrate. No database is needed to write it.
"""

from __future__ import annotations

from redrive.errors import ConfigError
from redrive.stores import migrate
from redrive.stores.migrate import Migration
from redrive.stores.statements import load

_HEADER = """\
-- Run it in one transaction, by a role that may create schemas:
--   psql --single-transaction --set ON_ERROR_STOP=1 --file redrive.sql"""
_RIGHTS = """\
-- What the role of the apps and the workers needs, if it is another one:
--   grant usage on schema {schema} to ROLE;
--   grant select, insert, update, delete on all tables in schema {schema} to ROLE;
--   grant usage on all sequences in schema {schema} to ROLE;
--   grant execute on all functions in schema {schema} to ROLE;"""


def newest(engine: str) -> int:
    return max(migration.number for migration in migrate.known(engine))


def later(engine: str, than: int) -> tuple[Migration, ...]:
    """ConfigError if no release ever had that schema, or only a newer one has."""
    last = newest(engine)
    if not 0 <= than <= last:
        raise ConfigError(f"there is no schema {than}", field="--from", hint=f"this redrive knows 1 to {last}")
    return tuple([migration for migration in migrate.known(engine) if migration.number > than])


def sqlite(pending: tuple[Migration, ...]) -> str:
    if not pending:
        return ""
    sql = load("sqlite", "open")
    now = "cast(strftime('%s', 'now') as integer) * 1000"
    parts = ["begin immediate", sql["create_migration"]]
    for migration in pending:
        parts += [f"-- {migration.name}\n{migration.text}"]
        parts += [_filled(sql["record"], "?", migration.number, f"'{migration.checksum}'", now)]
    return _joined([*parts, "commit"])


def postgres(schema: str, pending: tuple[Migration, ...]) -> str:
    """`schema` is a name that needs no care. It neither begins nor commits: other tools do that themselves."""
    if not pending:
        return ""
    from redrive.stores.postgres.extra import check_extra

    check_extra()
    from redrive.stores.postgres.install import script

    quoted = f'"{schema}"'
    sql = {name: text.replace("{schema}", quoted) for name, text in load("postgres", "open").items()}
    if pending[0].number == 1:
        parts = [sql["create_schema"], sql["create_migration"]]
    else:
        check = load("postgres", "script")["only_after"]
        parts = [check.replace("{schema}", quoted).replace("{number}", str(pending[0].number - 1))]
    parts += script(quoted, pending)
    parts += [_filled(sql["record"], "%b", each.number, f"'{each.checksum}'") for each in pending]
    return f"{_HEADER}\n\n{_joined(parts)}\n\n{_RIGHTS.replace('{schema}', quoted)}"


def _filled(statement: str, mark: str, *values: object) -> str:
    """Only numbers and checksums of our own: a text takes no parameters."""
    for value in values:
        statement = statement.replace(mark, str(value), 1)
    return statement


def _joined(parts: list[str]) -> str:
    return "\n\n".join(f"{part.rstrip().removesuffix(';')};" for part in parts)
