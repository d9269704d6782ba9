"""What SQLite says, in redrive's words. The one place that reads its error codes, of whichever binding."""

from __future__ import annotations

import os
import sqlite3
from typing import NamedTuple

from redrive.errors import (
    ConfigError,
    OutcomeUnknown,
    StoreCorrupt,
    StoreForbidden,
    StoreFull,
    StoreUnavailable,
)


class _Said(NamedTuple):
    kind: type[StoreUnavailable]
    text: str
    hint: str


_RIGHTS = "check the permissions and the owner of the file and its folder, and whether the disk is mounted read-only"
_SPACE = "free space on its disk, or remove something: app.letters.discard(...) and app.prune(...) work on a full disk"
FEWER = "free space on its disk, or take fewer at once, as in app.prune(..., limit=100); no ballast is left"
_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_SAID = {
    sqlite3.SQLITE_BUSY: _Said(
        StoreUnavailable, "database is locked", "another process kept it longer than busy_timeout"
    ),
    sqlite3.SQLITE_LOCKED: _Said(StoreUnavailable, "database is locked", "another connection of this process holds it"),
    sqlite3.SQLITE_FULL: _Said(StoreFull, "no space left for the database", _SPACE),
    sqlite3.SQLITE_IOERR: _Said(
        StoreUnavailable, "reading or writing the database failed", "check the disk and its limits"
    ),
    sqlite3.SQLITE_READONLY: _Said(StoreForbidden, "the database is read-only", _RIGHTS),
    sqlite3.SQLITE_CANTOPEN: _Said(
        StoreUnavailable, "the database cannot be opened", "check the path, and how many files this process may open"
    ),
    sqlite3.SQLITE_PERM: _Said(StoreForbidden, "the database may not be accessed", _RIGHTS),
    sqlite3.SQLITE_AUTH: _Said(StoreForbidden, "the database may not be accessed", _RIGHTS),
    sqlite3.SQLITE_NOMEM: _Said(StoreUnavailable, "no memory left", "nothing was written"),
    sqlite3.SQLITE_INTERRUPT: _Said(StoreUnavailable, "the statement was interrupted", "repeat the call"),
}
_NAMES = {value: name for name, value in vars(sqlite3).items() if name.startswith("SQLITE_IOERR")}
"""What the standard library calls them; the other binding has numbers only."""
# The commit frame is written last: if writing it failed, it is not there. After a failed sync, or when the index of the
# log could not grow after it, nobody can tell: whoever reads the log after a crash finds it.
_SURELY_UNDONE = {"SQLITE_IOERR_WRITE"}
# A disk (or a limit on files) that takes no more bytes, as it shows in the log and in the index of the log.
_NO_ROOM = {"SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE", "SQLITE_IOERR_TRUNCATE"}


def is_database_error(error: BaseException) -> bool:
    return isinstance(error, sqlite3.Error) or type(error).__module__ == "apsw"


def translate(error: Exception, where: str) -> Exception:
    """Errors that are not the database's are returned as they are."""
    if isinstance(error, OverflowError | UnicodeEncodeError):
        return ConfigError(f"a value cannot be stored: {error}")
    if not is_database_error(error):
        return error
    code = _code(error) & 0xFF
    if code in _CORRUPT:
        return damaged(f"{where} is not a usable database: {error}")
    kind, said, hint = _SAID.get(code, _Said(StoreUnavailable, "the database refused", ""))
    if code == sqlite3.SQLITE_CANTOPEN:
        kind, said, hint = _why_not_opened(where)
    if _name(error) in _NO_ROOM and _may(where, os.W_OK):
        kind, said, hint = StoreFull, "the disk takes no more: it is full, at a limit, or failing", _SPACE
    elif _name(error) in _NO_ROOM:
        kind, said, hint = _SAID[sqlite3.SQLITE_READONLY]
    return kind(f"{said}: {where}: {error} [{_name(error)}]", hint=hint)


def _why_not_opened(path: str) -> _Said:
    """SQLite has one word for it; the system knows more."""
    folder = os.path.dirname(path)  # noqa: PTH120 - a text already
    try:
        os.stat(f"{folder}/.")  # noqa: PTH116 - as above
    except PermissionError:
        return _Said(StoreForbidden, "its folder may not be entered", _RIGHTS)
    except OSError:
        return _Said(StoreUnavailable, "its folder is not there", "make the folder, or correct the path")
    if os.path.exists(path) and not _may(path, os.R_OK | os.W_OK):  # noqa: PTH110 - as above
        return _Said(StoreForbidden, "the database may not be read or written", _RIGHTS)
    if not _may(folder, os.W_OK):
        return _Said(StoreForbidden, "its folder may not be written to", _RIGHTS)
    return _SAID[sqlite3.SQLITE_CANTOPEN]


def _may(path: str, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def translate_commit(error: Exception, where: str) -> Exception:
    """A failed commit is undone, unless the disk failed in a way after which nobody can tell."""
    told = translate(error, where)
    if is_database_error(error) and is_io(error) and _name(error) not in _SURELY_UNDONE:
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


def is_busy(error: BaseException) -> bool:
    return _code(error) & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def is_damage(error: BaseException) -> bool:
    """The file is no database there, or a text in it is none: Python says that itself, without a code of SQLite's."""
    if isinstance(error, UnicodeDecodeError | StoreCorrupt):
        return True
    text = is_database_error(error) and "decode to utf-8" in str(error).lower()
    return text or (is_database_error(error) and _code(error) & 0xFF in _CORRUPT)


def no_room(where: str) -> StoreFull:
    return StoreFull(f"no space left for the database: {where}: it cannot take what is in its log", hint=_SPACE)


def is_full(error: BaseException) -> bool:
    return is_database_error(error) and _code(error) & 0xFF == sqlite3.SQLITE_FULL


def is_misfit(error: BaseException) -> bool:
    """A statement and the tables it is about do not go together."""
    return is_database_error(error) and _code(error) == sqlite3.SQLITE_ERROR


def lacks_room(error: BaseException | None) -> bool:
    """Whether more room might help, as far as one can tell; also of an error that was told already."""
    if isinstance(error, OutcomeUnknown):
        error = error.__cause__
    if error is None or not is_database_error(error):
        return isinstance(error, StoreFull)
    return is_full(error) or _name(error) in _NO_ROOM


def is_interrupt(error: BaseException) -> bool:
    return is_database_error(error) and _code(error) & 0xFF == sqlite3.SQLITE_INTERRUPT


def is_io(error: BaseException) -> bool:
    return _code(error) & 0xFF == sqlite3.SQLITE_IOERR


def _code(error: BaseException) -> int:
    for name in ("sqlite_errorcode", "extendedresult", "result"):
        code = getattr(error, name, None)
        if isinstance(code, int) and code > 0:
            return code
    return sqlite3.SQLITE_ERROR


def _name(error: BaseException) -> str:
    return getattr(error, "sqlite_errorname", None) or _NAMES.get(_code(error), type(error).__name__)
