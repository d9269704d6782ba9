"""What SQLite says, in redrive's words. The one place that reads its error codes."""

from __future__ import annotations

import sqlite3

from redrive.errors import ConfigError, OutcomeUnknown, StoreCorrupt, StoreUnavailable

_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_SAID = {
    sqlite3.SQLITE_BUSY: ("database is locked", "another process kept it longer than busy_timeout"),
    sqlite3.SQLITE_LOCKED: ("database is locked", "another connection of this process holds it"),
    sqlite3.SQLITE_FULL: ("no space left for the database", "free some space on its disk; nothing was written"),
    sqlite3.SQLITE_IOERR: ("reading or writing the database failed", "check the disk and its limits"),
    sqlite3.SQLITE_READONLY: ("the database is read-only", "check the permissions of the file and its folder"),
    sqlite3.SQLITE_CANTOPEN: ("the database cannot be opened", "check that its folder exists and may be written to"),
    sqlite3.SQLITE_PERM: ("the database may not be accessed", "check the permissions of the file and its folder"),
    sqlite3.SQLITE_NOMEM: ("no memory left", "nothing was written"),
}
# The commit frame is written last: if writing failed, it is not there. After a failed sync it may or may not be.
_SURELY_UNDONE = {"SQLITE_IOERR_WRITE", "SQLITE_IOERR_LOCK", "SQLITE_IOERR_NOMEM", "SQLITE_IOERR_SHMSIZE"}


def translate(error: Exception, where: str) -> Exception:
    """Errors that are not the database's are returned as they are."""
    if isinstance(error, OverflowError | UnicodeEncodeError):
        return ConfigError(f"a value cannot be stored: {error}")
    if not isinstance(error, sqlite3.Error):
        return error
    code = _code(error) & 0xFF
    if code in _CORRUPT:
        return damaged(f"{where} is not a usable database: {error}")
    said, hint = _SAID.get(code, ("the database refused", ""))
    return StoreUnavailable(f"{said}: {where}: {error} [{_name(error)}]", hint=hint)


def translate_commit(error: Exception, where: str) -> Exception:
    """A failed commit is undone, unless the disk failed in a way after which nobody can tell."""
    told = translate(error, where)
    if isinstance(error, sqlite3.Error) and is_io(error) and _name(error) not in _SURELY_UNDONE:
        return OutcomeUnknown(
            f"the commit failed on the disk and may or may not be there: {where}: {error} [{_name(error)}]",
            hint="repeat the call with the same ids; it will not double",
        )
    return told


def damaged(message: str) -> StoreCorrupt:
    return StoreCorrupt(
        message,
        hint="nothing was overwritten; keep the file, restore a backup or recover it with `sqlite3 FILE .recover`",
    )


def is_busy(error: sqlite3.Error) -> bool:
    return _code(error) & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def is_io(error: sqlite3.Error) -> bool:
    return _code(error) & 0xFF == sqlite3.SQLITE_IOERR


def _code(error: sqlite3.Error) -> int:
    code = getattr(error, "sqlite_errorcode", None)
    return code if isinstance(code, int) else sqlite3.SQLITE_ERROR


def _name(error: sqlite3.Error) -> str:
    return str(getattr(error, "sqlite_errorname", "SQLITE_ERROR"))
