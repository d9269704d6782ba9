"""The one writer of this process: closures that wait share a transaction, and so its fsync.

There is no timer: while one commit is on its way to the disk, the next closures gather. Each has its own savepoint, so
one that raises fails alone; a commit that fails fails all of them, because nothing of them is there.

Checkpoints are made here and in a mode that takes the write lock (SQLite up to 3.51.2 can damage the file when a commit
runs beside two checkpoints), after so much was written and after the callers have their answers.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from redrive.core.item import NewItem
from redrive.core.verbs import PutResult
from redrive.errors import OutcomeUnknown, StoreUnavailable
from redrive.stores.clock import StoreTime
from redrive.stores.sqlite import faults
from redrive.stores.sqlite.connect import Settings, open_writer, reopen_writer
from redrive.stores.sqlite.lane import Job, Lane, deliver
from redrive.stores.sqlite.put import put
from redrive.stores.sqlite.tx import Tx

GROUP = 64
CHECKPOINT_AFTER = 10_000
"""Pages written to the log, as far as can be told from here, between checkpoints: about 40 MB."""
CHECKPOINT_PATIENCE = 1_000
"""Milliseconds to wait for readers; what they keep is left for the next time."""
PAGE = 4096
ROWS_PER_PAGE = 3
"""Rows of one write that share a page, at the least: new ids lie scattered over their index."""
PAGES_PER_COMMIT = 6


def _file(path: str) -> tuple[int, int] | None:
    """Which file the path names now."""
    try:
        found = os.stat(path)  # noqa: PTH116 - before each write: no object for it
    except OSError:
        return None
    return found.st_dev, found.st_ino


class PutJob(Job[PutResult]):
    """A put, known as one so that several can be done as one."""

    __slots__ = ("items",)

    def __init__(self, items: Sequence[NewItem]) -> None:
        super().__init__(lambda tx: put(tx, items))
        self.items = items


class Writer(Lane):
    def __init__(
        self,
        settings: Settings,
        time: StoreTime,
        opened: Callable[[sqlite3.Connection], None],
        woken: Callable[[frozenset[str]], None],
    ) -> None:
        super().__init__("redrive-sqlite-writer", settings, time)
        self._opened = opened
        self._woken = woken
        self._pages = 0
        self._changes = 0
        self._file: tuple[int, int] | None = None
        self._checkpoint_at = CHECKPOINT_AFTER
        self.commits = 0

    def connect(self) -> sqlite3.Connection:
        connection = open_writer(self.settings, self.time.now())
        self._opened(connection)
        self._file = _file(self.settings.path)
        self._changes = connection.total_changes
        return connection

    def serve(self, connection: sqlite3.Connection, first: Job[Any]) -> sqlite3.Connection:
        jobs = [first, *self.waiting(GROUP - 1)]
        try:
            woken = self._transact(connection, jobs)
        except Exception as error:  # noqa: BLE001 - callers must hear of it, and the writer must go on
            told = faults.translate(error, self.settings.path)
            for job in jobs:
                job.error = job.error or told
            woken = set()
            connection = self._recover(connection, told)
        try:
            if woken:
                # Before the answers: whoever begins to wait after them must not be woken for what it has seen already.
                self._woken(frozenset(woken))
        finally:
            deliver(jobs)
        self._checkpoint(connection)
        return connection

    def _transact(self, connection: sqlite3.Connection, jobs: list[Job[Any]]) -> set[str]:
        """All jobs in one transaction; raises if none of them is there."""
        path = self.settings.path
        if _file(path) != self._file:
            # The file we hold has no name any more: what is written to it would be gone with this process.
            raise StoreUnavailable(
                f"the database {path} was removed, moved or replaced while it was open; nothing was written",
                hint="put it back, or close this app and open a new one",
            )
        try:
            connection.execute("begin immediate")
        except sqlite3.Error as error:
            raise faults.translate(error, path) from error
        run = self._run_alone if len(jobs) == 1 else self._run_beside
        woken = self._put_together(connection, jobs)
        for job in jobs:
            woken |= run(connection, job)
        if connection.in_transaction:
            try:
                self.commit(connection)
            except sqlite3.Error as error:
                raise faults.translate_commit(error, path) from error
            self.commits += 1
        return woken

    def _put_together(self, connection: sqlite3.Connection, jobs: list[Job[Any]]) -> set[str]:
        """Puts that wait together are one put: many callers of `enqueue` share its statements as they share its fsync.

        If that fails, it is as if it had not been tried, and each goes alone. An id that two of them bring makes them
        go alone too: only one of them adds it.
        """
        puts = [job for job in jobs if isinstance(job, PutJob)]
        ids = [new.id for job in puts for new in job.items]
        if len(puts) < 2 or len(set(ids)) < len(ids):
            return set()
        claimed = [job for job in puts if job.claim()]
        connection.execute("savepoint together")
        try:
            woken = self._put_claimed(connection, claimed)
        except Exception:
            if not connection.in_transaction:
                raise
            connection.execute("rollback to together")
            for job in claimed:
                job.give_back()
            woken = set()
        connection.execute("release together")
        return woken

    def _put_claimed(self, connection: sqlite3.Connection, claimed: list[PutJob]) -> set[str]:
        tx = Tx(connection, self.time.now())
        already = set(put(tx, [new for job in claimed for new in job.items]).already)
        self._flush(tx)
        for job in claimed:
            ids = [new.id for new in job.items]
            added = tuple([item_id for item_id in ids if item_id not in already])
            job.result = PutResult(added, tuple([item_id for item_id in ids if item_id in already]))
        return tx.woken

    def commit(self, connection: sqlite3.Connection) -> None:
        connection.execute("commit")

    def _run_alone(self, connection: sqlite3.Connection, job: Job[Any]) -> set[str]:
        """Without a savepoint: if it fails, the whole transaction is it."""
        try:
            return self._work(connection, job)
        except Exception as error:  # noqa: BLE001 - it belongs to the caller
            job.error = faults.translate(error, self.settings.path)
            if connection.in_transaction:
                connection.execute("rollback")
            return set()

    def _run_beside(self, connection: sqlite3.Connection, job: Job[Any]) -> set[str]:
        connection.execute("savepoint job")
        try:
            woken = self._work(connection, job)
        except Exception as error:
            job.error = faults.translate(error, self.settings.path)
            if not connection.in_transaction:
                # A full or failing disk makes SQLite roll back everything, the neighbours included.
                raise StoreUnavailable(
                    f"a neighbour in the same write failed and took it along: {job.error}", hint="repeat the call"
                ) from error
            connection.execute("rollback to job")
            woken = set()
        connection.execute("release job")
        return woken

    def _work(self, connection: sqlite3.Connection, job: Job[Any]) -> set[str]:
        if not job.claim():
            return set()
        tx = Tx(connection, self.time.now())
        job.result = job.work(tx)
        self._flush(tx)
        return tx.woken

    def _flush(self, tx: Tx) -> None:
        tx.flush()
        self._pages += tx.weight // PAGE

    def _recover(self, connection: sqlite3.Connection, error: Exception) -> sqlite3.Connection:
        """A clean connection after a failed transaction: rolled back, or a new one if that is not enough."""
        try:
            if connection.in_transaction:
                connection.execute("rollback")
        except sqlite3.Error:
            return self._renew(connection)
        # After a disk that failed nothing this connection remembers of the file is to be trusted.
        return self._renew(connection) if isinstance(error, OutcomeUnknown) else connection

    def _renew(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        try:
            fresh = reopen_writer(self.settings)
        except sqlite3.Error:
            # Still broken. The old one goes on failing its callers, each of which tries again to renew it.
            return connection
        connection.close()
        self._changes = fresh.total_changes
        return fresh

    def _checkpoint(self, connection: sqlite3.Connection) -> None:
        changes = connection.total_changes
        if changes != self._changes:
            self._pages += PAGES_PER_COMMIT + (changes - self._changes) // ROWS_PER_PAGE
            self._changes = changes
        if self._pages < self._checkpoint_at:
            return
        try:
            connection.execute(f"pragma busy_timeout = {CHECKPOINT_PATIENCE}")
            busy, _, _ = connection.execute("pragma wal_checkpoint(restart)").fetchone()
            connection.execute(f"pragma busy_timeout = {self.settings.busy_timeout}")
        except sqlite3.Error:
            # Nothing is lost: what was committed stays in the log, and the next checkpoint takes it.
            busy = 1
        self._pages = 0
        # A long reader keeps the log; asking it again and again would only make the writers wait.
        self._checkpoint_at = min(self._checkpoint_at * 2, 64 * CHECKPOINT_AFTER) if busy else CHECKPOINT_AFTER
