"""From psycopg's errors to ours. The password is in none of them: libpq does not say it, and we say no URL."""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

import psycopg

from redrive.errors import (
    BadStoreURL,
    ConfigError,
    EncryptionKeyMissing,
    OutcomeUnknown,
    StoreCorrupt,
    StoreError,
    StoreForbidden,
    StoreFull,
    StoreUnavailable,
)
from redrive.stores.postgres.options import FORM, Options
from redrive.stores.upkeep import StoreAbsent

AGAIN = frozenset({"40001", "40P01"})
"""Serialisation failure and deadlock: the server undid it and asks to repeat."""

# The server was told to end, or a neighbour of it died: what it was doing may have been committed already.
_ENDING = frozenset({"57P01", "57P02", "57P03", "57P05"})
# Of no use any more: a server that became a replica, plans that do not fit a schema that was changed.
_OUTDATED = frozenset({"25006", "0A000", "26000"})
_UNSTORABLE = frozenset({"22003", "22021", "22P05", "54000", "22001"})


NO_SETTINGS = "a pooler allows no settings: add notify=off to the URL"


class _Said(NamedTuple):
    kind: type[StoreError]
    text: str
    hint: str


_CONNECTIONS = "raise max_connections on the server (max_client_conn of a pooler), or lower `pool` in the store's URL"
_SLOW = "raise `timeout`, or see what slows the server down; with notify=off the user's own statement_timeout holds"
_SAID: dict[str, _Said] = {
    "28P01": _Said(StoreForbidden, "wrong password", "correct the user or the password in the store's URL"),
    "28000": _Said(StoreForbidden, "this user may not log in", "look at the user in the URL, and at pg_hba.conf"),
    "3D000": _Said(StoreUnavailable, "there is no such database", "create database {database};"),
    "42501": _Said(StoreForbidden, "this user lacks a right", "the last lines of `redrive db sql` name what it needs"),
    "25006": _Said(StoreForbidden, "the server is a read-only replica", "use the address of the primary server"),
    "53100": _Said(StoreFull, "the server's disk is full", "make room on the server; nothing was written"),
    "53200": _Said(StoreUnavailable, "the server is out of memory", ""),
    "53300": _Said(StoreUnavailable, "the server takes no more connections", _CONNECTIONS),
    "57014": _Said(StoreUnavailable, "the server took too long", _SLOW),
    "55P03": _Said(StoreUnavailable, "somebody else holds a lock for too long", "look at pg_locks for who it is"),
    "42P01": _Said(StoreUnavailable, "a table is missing", "was the schema dropped? open the store again"),
    "42883": _Said(StoreUnavailable, "a function is missing", "was the schema dropped? open the store again"),
    "3F000": _Said(StoreUnavailable, "the schema is missing", "was it dropped? open the store again"),
    "XX001": _Said(StoreCorrupt, "data is damaged", "stop the server, keep a copy of its files, restore a backup"),
    "XX002": _Said(StoreCorrupt, "an index is damaged", "reindex the schema, and see why it was damaged"),
}


def translate(error: Exception, options: Options) -> Exception:
    """For what surely did not happen. Errors that are not the database's are returned as they are."""
    if isinstance(error, OverflowError | UnicodeEncodeError | struct.error):
        return ConfigError(f"a value cannot be stored: {error}")
    if not isinstance(error, psycopg.Error):
        return error
    code = error.sqlstate or ""
    if code in _UNSTORABLE or (not code and isinstance(error, psycopg.DataError)):
        return ConfigError(f"a value cannot be stored: {first_line(error)}")
    if code == "RD002":
        return EncryptionKeyMissing(error.diag.message_primary or "")
    said = _SAID.get(code)
    if said is None:
        return StoreUnavailable(f"{options.location}: {first_line(error)}{f' [{code}]' if code else ''}")
    return said.kind(f"{said.text}: {options.location}: {first_line(error)} [{code}]", hint=_hint(said, options))


def _hint(said: _Said, options: Options) -> str:
    return said.hint.format(database=options.database, schema=options.quoted)


def unknown(error: BaseException | None, options: Options) -> OutcomeUnknown:
    said = "" if error is None else f": {first_line(error)}"
    return OutcomeUnknown(
        f"the answer of {options.location} was lost, and what was written may or may not be there{said}",
        hint="repeat the call with the same ids; it will not double",
    )


def too_slow(options: Options, what: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{what} took longer than {options.timeout} ms: {options.location}",
        hint="raise `timeout` in the store's URL, or see what keeps the server",
    )


def pool_exhausted(options: Options) -> StoreUnavailable:
    return StoreUnavailable(
        f"all {options.pool} connections to {options.location} were in use for {options.timeout} ms",
        hint="raise `pool` in the store's URL, or see what keeps the server",
    )


def nothing_there(options: Options) -> StoreAbsent:
    return StoreAbsent(
        f"no redrive in the schema {options.schema} of {options.server}",
        hint="set --store or REDRIVE_STORE, and ?schema=NAME in it; redrive db migrate or an app makes it",
    )


_UNHEARD = "is the server running, and this its address?"


def not_connected(error: BaseException, options: Options) -> Exception:
    """Why there is no connection. Most of what libpq finds out by itself has no code."""
    if isinstance(error, TimeoutError):
        said = f"no connection within {min(options.connect_timeout, options.timeout)} ms"
        return StoreUnavailable(f"{said}: {options.location}", hint=_UNHEARD)
    if isinstance(error, psycopg.ProgrammingError) and not error.sqlstate:
        # Its text may quote the URL.
        return BadStoreURL(f"{options.location}: libpq cannot read this URL", field="store", hint=f"use {FORM}")
    if isinstance(error, psycopg.Error):
        unread = _unread(str(error), options)
        if unread is not None:
            return unread
        code = error.sqlstate or _guessed(str(error))
        if code in _SAID:
            said_for = _SAID[code]
            return said_for.kind(
                f"{said_for.text}: {options.location}: {first_line(error)}", hint=_hint(said_for, options)
            )
        return StoreUnavailable(
            f"no connection to {options.location}: {first_line(error)}", hint=_advice(str(error), options)
        )
    if isinstance(error, OSError):
        return StoreUnavailable(f"no connection to {options.location}: {error}", hint=_UNHEARD)
    return error if isinstance(error, Exception) else StoreUnavailable(str(error))


_UNREAD = re.compile(
    r"""invalid\ (?:
        integer\ value\ "(?P<number>[^"]*)"\ for\ connection\ option\ "(?P<option>\w+)"
      | (?P<port>port)\ number:\ "(?P<digits>[^"]*)"
      | "?(?P<name>\w+)"?\ value:\ "(?P<value>[^"]*)"
    )""",
    re.VERBOSE,
)
_CHOICES = {
    "port": "a number from 1 to 65535",
    "sslmode": "one of disable, allow, prefer, require, verify-ca, verify-full",
    "target_session_attrs": "one of any, read-write, read-only, primary, standby, prefer-standby",
}


def _unread(text: str, options: Options) -> BadStoreURL | None:
    """What libpq finds out about the URL before it asks anybody. Other languages fall through."""
    found = _UNREAD.search(text)
    if found is None:
        return None
    name = found["option"] or found["port"] or found["name"]
    value = found["number"] or found["digits"] or found["value"] or ""
    hint = f"use {_CHOICES[name]}" if name in _CHOICES else "see the connection parameters of libpq"
    return BadStoreURL(f"{value!r} cannot be used: {options.location}", field=f"store.{name}", hint=hint)


def _advice(text: str, options: Options) -> str:
    """For what has no code, and whose words do not say what to do."""
    if "startup parameter" in text:
        return NO_SETTINGS if options.notify else "a pooler allows no settings: take `options` out of the URL"
    if "does not support SSL" in text:
        return "turn ssl on at the server, or allow plain connections by sslmode=prefer in the URL"
    if any(words in text for words in ("refused", "No such file", "translate host name", "not known", "unreachable")):
        return _UNHEARD
    return ""


def _guessed(text: str) -> str:
    """While connecting, psycopg has the server's words but not its code. Other languages fall through."""
    for words, code in (
        ("password authentication failed", "28P01"),
        ("no password supplied", "28P01"),
        ("no pg_hba.conf entry", "28000"),
        ("role ", "28000"),
        ("is not permitted to log in", "28000"),
        ("database ", "3D000"),
        ("too many connections", "53300"),
        ("too many clients", "53300"),
        ("no more connections allowed", "53300"),
        ("remaining connection slots", "53300"),
        ("session is read-only", "25006"),
        ("session is not read-write", "25006"),
    ):
        if words in text and (words not in {"role ", "database "} or "does not exist" in text):
            return code
    return ""


def is_lost(connection: psycopg.AsyncConnection[object], error: psycopg.Error) -> bool:
    """Whether the connection is of no more use."""
    if connection.pgconn.pipeline_status != psycopg.pq.PipelineStatus.OFF:
        return True  # answers are still to come: its time was up in the middle of them
    return connection.closed or connection.broken or (error.sqlstate or "") in _ENDING


def is_outdated(error: psycopg.Error) -> bool:
    """Whether a new connection may do what this one cannot. Nothing was written."""
    return (error.sqlstate or "") in _OUTDATED


def first_line(error: BaseException) -> str:
    """What happened, without where and in which function, which libpq adds."""
    diag = getattr(error, "diag", None)
    text = getattr(diag, "message_primary", None) or str(error)
    return text.strip().splitlines()[0] if text.strip() else type(error).__name__
