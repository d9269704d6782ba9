"""Moving what was committed from the log into the database, so that the log stays small.

SQLite's own automatic checkpoints are off: they would run in the middle of somebody's commit. The writer makes them
here, on a connection of their own, after so much was written and after the callers have their answers.

The log starts anew only after all of it was moved, so the last part is moved under the write lock. SQLite before 3.51.3
can lose committed pages when a commit runs beside a checkpoint: with such a version all of it is (ADR 12). Readers are
never waited for: what they still need stays in the log until the next time.
"""

from __future__ import annotations

import logging
from functools import cache

from redrive.stores.sqlite import faults
from redrive.stores.sqlite.binding import Connection, is_risky
from redrive.stores.sqlite.connect import WAL_KEPT, Settings, open_maintenance
from redrive.stores.sqlite.room import free, size

AFTER = 10_000
"""Pages written to the log, as far as can be told from here, between checkpoints: about 40 MB."""
LOOK = 250
LONG = 4 * WAL_KEPT
"""Bytes of the log above which it is told that somebody keeps it."""
TIGHT = 256 * 1024 * 1024
"""Bytes. A disk with less than this free is nearly full: the log and the database may grow by 40 MB each meanwhile."""
WAL_KEPT_WHEN_TIGHT = 4 * 1024 * 1024
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
        self._next_look = LOOK
        self._changes = 0
        self._warned = False
        self._kept = WAL_KEPT
        self.lacking = 0
        """Bytes by which the database would have had to grow in the last one, if that failed on a full disk."""

    def begin(self, connection: Connection) -> None:
        """A new connection of the writer counts from here."""
        self._changes = connection.changes_ever()
        self._kept = WAL_KEPT

    def weigh(self, size: int) -> None:
        """So many bytes of payloads were written."""
        self._pages += size // PAGE

    def passed(self, writer: Connection) -> bool:
        """True each time the log has grown by another few megabytes: then it is worth a look."""
        changes = writer.changes_ever()
        if changes != self._changes:
            self._pages += PAGES_PER_COMMIT + (changes - self._changes) // ROWS_PER_PAGE
            self._changes = changes
        if self._pages < self._next_look:
            return False
        self._next_look = self._pages + LOOK
        return True

    def due(self) -> bool:
        """Early where the disk is nearly full: if it fills up, little of the log still needs room in the database.

        Early too when the log is too long already: other processes write to it, and we count only what we write.
        """
        return self._pages >= AFTER or size(f"{self._settings.path}-wal") > WAL_KEPT or self.is_tight()

    def is_tight(self) -> bool:
        return free(self._settings.path) < TIGHT

    def run(self, writer: Connection) -> bool:
        """True: all of the log is in the database, and the log can be written over.

        Failing costs nothing: what was committed stays in the log, and the next one takes it.
        """
        self._pages, self._next_look = 0, LOOK
        self.lacking = 0
        try:
            self._limit_log(writer)
            if self._careful:
                _warn(self._settings.binding.version)
            else:
                self._move()
            whole = self._finish(writer)
            self._mind_growth(whole=whole)
            return whole
        except self._settings.binding.errors as error:
            self.close()
            if faults.is_full(error):
                self.lacking = self._growth(writer)
            return False

    def _mind_growth(self, *, whole: bool) -> None:
        """Somebody's long transaction keeps the log, and an operator should know before the disk is full."""
        if whole:
            self._warned = False
            return
        length = size(f"{self._settings.path}-wal")
        if length > LONG and not self._warned:
            self._warned = True
            _log.warning(
                "the log of %s has %s MiB and cannot be cut: somebody has kept a transaction open on it for long",
                self._settings.path,
                f"{length >> 20:,}",
            )

    def _growth(self, writer: Connection) -> int:
        try:
            (pages,) = writer.execute("pragma page_count").fetchone()
        except self._settings.binding.errors:
            return PAGE
        return max(PAGE, int(pages) * PAGE - size(self._settings.path))

    def _limit_log(self, writer: Connection) -> None:
        """On a nearly full disk a long log would be filled long after the database finds no room for it."""
        kept = WAL_KEPT_WHEN_TIGHT if self.is_tight() else WAL_KEPT
        if kept != self._kept:
            writer.execute(f"pragma journal_size_limit = {kept}")
            self._kept = kept

    def _finish(self, writer: Connection) -> bool:
        """While nobody can commit: only what is wholly moved can be written over, and others never stop writing."""
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
