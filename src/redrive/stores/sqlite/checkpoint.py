"""Moving what was committed from the log into the database, so that the log stays small.

SQLite's own automatic checkpoints are off: they would run in the middle of somebody's commit. The writer makes them
here, on a connection of their own, after so much was written and after the callers have their answers.

SQLite before 3.51.3 can lose committed pages when a commit runs beside a checkpoint. With such a version the write lock
is taken first, so that nobody can commit meanwhile (ADR 12). Readers are never waited for: what they still need stays
in the log until the next time.
"""

from __future__ import annotations

import logging
from functools import cache

from redrive.stores.sqlite.binding import Connection, is_risky
from redrive.stores.sqlite.connect import Settings, open_maintenance

AFTER = 10_000
"""Pages written to the log, as far as can be told from here, between checkpoints: about 40 MB."""
PAGE = 4096
ROWS_PER_PAGE = 3
"""Rows of one write that share a page, at the least: new ids lie scattered over their index."""
PAGES_PER_COMMIT = 6

_log = logging.getLogger("redrive.stores.sqlite")


class Checkpoints:
    """Of one writer; everything runs in its thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._careful = is_risky(settings.binding)
        self._connection: Connection | None = None
        self._pages = 0
        self._changes = 0

    def begin(self, connection: Connection) -> None:
        """A new connection of the writer counts from here."""
        self._changes = connection.changes_ever()

    def weigh(self, size: int) -> None:
        """So many bytes of payloads were written."""
        self._pages += size // PAGE

    def due(self, writer: Connection) -> bool:
        changes = writer.changes_ever()
        if changes != self._changes:
            self._pages += PAGES_PER_COMMIT + (changes - self._changes) // ROWS_PER_PAGE
            self._changes = changes
        return self._pages >= AFTER

    def run(self, writer: Connection) -> bool:
        """True: all of the log is in the database, and the log can be written over.

        Failing costs nothing: what was committed stays in the log, and the next one takes it.
        """
        self._pages = 0
        try:
            return self._run_alone(writer) if self._careful else self._move()
        except self._settings.binding.errors:
            self.close()
            return False

    def _run_alone(self, writer: Connection) -> bool:
        _warn(self._settings.binding.version)
        writer.execute("begin immediate")
        try:
            return self._move()
        finally:
            writer.execute("rollback")

    def _move(self) -> bool:
        if self._connection is None:
            self._connection = open_maintenance(self._settings)
        ((busy, log, moved),) = self._connection.execute("pragma wal_checkpoint(passive)").fetchall()
        return not busy and log == moved

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


@cache
def _warn(version: str) -> None:
    """Once in a process."""
    _log.warning(
        "SQLite %s has a bug that can damage a database which several connections use; redrive works around it for its "
        'own processes. A version without it comes with: pip install "redrive[sqlite]"',
        version,
    )
