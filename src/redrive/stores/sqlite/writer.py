"""The one writer of this process: closures that wait share a transaction, and so its fsync.

There is no timer: while one commit is on its way to the disk, the next closures gather. Each has its own savepoint, so
one that raises fails alone; a commit that fails fails all of them, because nothing of them is there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from redrive.core.item import Instant, Millis, NewItem
from redrive.core.verbs import PutResult
from redrive.errors import OutcomeUnknown, StoreFull, StoreUnavailable
from redrive.stores.clock import StoreTime
from redrive.stores.sqlite import faults
from redrive.stores.sqlite.ballast import Ballast
from redrive.stores.sqlite.binding import Connection
from redrive.stores.sqlite.checkpoint import Checkpoints
from redrive.stores.sqlite.connect import Settings, open_writer, reopen_writer
from redrive.stores.sqlite.lane import Job, Lane, deliver
from redrive.stores.sqlite.put import put
from redrive.stores.sqlite.tx import Tx

T = TypeVar("T")

GROUP = 64
SEEK_ROOM: Millis = 1_000
"""Enqueues that find the disk full are many, and a checkpoint that finds it full has written much in vain."""


def _file(path: str) -> tuple[int, int] | None:
    """Which file the path names now."""
    try:
        found = os.stat(path)  # noqa: PTH116 - before each write: no object for it
    except OSError:
        return None
    return found.st_dev, found.st_ino


class PutJob(Job[PutResult]):
    """A put, known as one so that several can be done as one, unless its items wait for others.

    Two puts may wait for items of each other, which only one of them can do when each goes alone.
    """

    __slots__ = ("items", "waits")

    def __init__(self, items: Sequence[NewItem]) -> None:
        super().__init__(lambda tx: put(tx, items))
        self.items = items
        self.waits = any(new.terms is not None and new.terms.after for new in items)


class ActJob(Job[T]):
    """What an operator does to make room: it may use the ballast when the disk is full."""

    __slots__ = ()


class Writer(Lane):
    def __init__(
        self,
        settings: Settings,
        time: StoreTime,
        others: Callable[[], bool],
        opened: Callable[[Connection], None],
        woken: Callable[[frozenset[str]], None],
    ) -> None:
        super().__init__("redrive-sqlite-writer", settings, time)
        self._others = others
        self._opened = opened
        self._woken = woken
        self._file: tuple[int, int] | None = None
        self._log: tuple[int, int] | None = None
        self._checkpoints = Checkpoints(settings)
        self._ballast = Ballast(settings.path, settings.ballast, time)
        self._errors = settings.binding.errors
        self._seek_room_at: Instant = 0
        self.commits = 0

    def connect(self) -> Connection:
        connection = self._ballast.opening(
            lambda: open_writer(self.settings, self.time.now(), first=not self._others())
        )
        self._opened(connection)
        self._file, self._log = _file(self.settings.path), _file(f"{self.settings.path}-wal")
        self._checkpoints.begin(connection)
        self._ballast.tend()
        return connection

    def reconnect(self) -> Connection:
        self._check_file()
        connection = reopen_writer(self.settings)
        self._log = _file(f"{self.settings.path}-wal")
        self._checkpoints.begin(connection)
        return connection

    def serve(self, connection: Connection, first: Job[Any]) -> Connection:
        jobs = [first, *self.waiting(GROUP - 1)]
        connection, woken = self._attempt(connection, self._admitted(connection, jobs))
        acts = [job for job in jobs if isinstance(job, ActJob)]
        if any(job.error is not None and faults.lacks_room(job.error) for job in jobs):
            connection = self._make_room(connection, jobs, acts, woken)
        if acts and self._checkpoints.is_tight():
            # What they freed is of use only when the log, too, is in the database.
            self._empty_log(connection, use_ballast=True)
        try:
            if woken:
                # Before the answers: whoever begins to wait after them must not be woken for what it has seen already.
                self._woken(frozenset(woken))
        finally:
            deliver(jobs)
        if self._checkpoints.passed(connection):
            self._ballast.doubt()
            if self._checkpoints.due():
                self._checkpoints.run(connection)
        self._ballast.tend()
        return connection

    def _admitted(self, connection: Connection, jobs: list[Job[Any]]) -> list[Job[Any]]:
        """No puts while what is in the log finds no room in the database: they would use up what an act needs.

        Whether there is room again is seen by trying, but not for each of them.
        """
        if not self._checkpoints.lacking:
            return jobs
        if self.time.now() >= self._seek_room_at and self._empty_log(connection, use_ballast=False):
            return jobs
        for job in jobs:
            if isinstance(job, PutJob):
                job.error = faults.no_room(self.settings.path)
        return [job for job in jobs if job.error is None]

    def _attempt(self, connection: Connection, jobs: list[Job[Any]]) -> tuple[Connection, set[str]]:
        """Each job has its result or its error after it."""
        if not jobs:
            return connection, set()
        try:
            return connection, self._transact(connection, jobs)
        except Exception as error:  # noqa: BLE001 - callers must hear of it, and the writer must go on
            told = faults.translate(error, self.settings.path)
            for job in jobs:
                job.error = job.error or told
            return self._recover(connection, told), set()

    def _make_room(
        self, connection: Connection, jobs: list[Job[Any]], acts: list[ActJob[Any]], woken: set[str]
    ) -> Connection:
        """On a full disk the log can still be written over, once all of it is in the database.

        For an act that shall make room there is the ballast too.
        """
        may_seek = bool(acts) or self.time.now() >= self._seek_room_at
        done = may_seek and self._empty_log(connection, use_ballast=bool(acts))
        connection = self._repeat(connection, jobs if done else acts, woken)
        for job in acts:
            while faults.lacks_room(job.error) and self._ballast.give_share():
                connection = self._repeat(connection, [job], woken)
            if isinstance(job.error, StoreFull):
                job.error = StoreFull(job.error.message, hint=faults.FEWER)
        return connection

    def _empty_log(self, connection: Connection, *, use_ballast: bool) -> bool:
        done = self._checkpoints.run(connection)
        # What would not reach is kept for the act itself.
        while use_ballast and self._ballast.reaches(self._checkpoints.lacking) and self._ballast.give_share():
            done = self._checkpoints.run(connection)
        self._seek_room_at = 0 if done else self.time.now() + SEEK_ROOM
        return done

    def _repeat(self, connection: Connection, jobs: Sequence[Job[Any]], woken: set[str]) -> Connection:
        """Those for which there was no room, each for itself: a small one may fit where a large one does not."""
        for job in jobs:
            if faults.lacks_room(job.error):
                job.error = None
                job.give_back()
                connection, more = self._attempt(connection, [job])
                woken |= more
        return connection

    def end(self) -> None:
        self._checkpoints.close()

    def _transact(self, connection: Connection, jobs: list[Job[Any]]) -> set[str]:
        """All jobs in one transaction; raises if none of them is there."""
        path = self.settings.path
        self._check_file()
        self._check_log(connection)
        try:
            connection.execute("begin immediate")
        except self._errors as error:
            raise faults.translate(error, path) from error
        run = self._run_alone if len(jobs) == 1 else self._run_beside
        woken = self._put_together(connection, jobs)
        for job in jobs:
            woken |= run(connection, job)
        if connection.in_transaction:
            try:
                self.commit(connection)
            except self._errors as error:
                raise faults.translate_commit(error, path) from error
            self.commits += 1
        return woken

    def _check_file(self) -> None:
        """A file that has no name any more would be gone with this process, and what is written to it too."""
        path = self.settings.path
        if _file(path) != self._file:
            raise StoreUnavailable(
                f"the database {path} was removed, moved or replaced while it was open; nothing was written",
                hint="put it back, or close this app and open a new one",
            )

    def _check_log(self, connection: Connection) -> None:
        """A log without a name goes with the last process that has it open. What it holds is saved first."""
        path = self.settings.path
        if self._log is None or _file(f"{path}-wal") == self._log:
            return
        with suppress(self._errors):
            connection.execute("pragma wal_checkpoint(passive)").fetchall()
        raise StoreUnavailable(
            f"the log {path}-wal was removed while the database was open; nothing was written",
            hint="what it held was moved into the database; close every app that uses it and open them again",
        )

    def _put_together(self, connection: Connection, jobs: list[Job[Any]]) -> set[str]:
        """Puts that wait together are one put: many callers of `enqueue` share its statements as they share its fsync.

        If that fails, it is as if it had not been tried, and each goes alone. An id that two of them bring makes them
        go alone too: only one of them adds it.
        """
        puts = [job for job in jobs if isinstance(job, PutJob) and not job.waits]
        ids = [new.id for job in puts for new in job.items]
        if len(puts) < 2 or len(set(ids)) < len(ids):
            return set()
        claimed = [job for job in puts if job.begin()]
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

    def _put_claimed(self, connection: Connection, claimed: list[PutJob]) -> set[str]:
        tx = Tx(connection, self.time.now())
        result = put(tx, [new for job in claimed for new in job.items])
        self._flush(tx)
        already = set(result.already)
        twins = {one.id: one for one in result.duplicates}
        for job in claimed:
            ids = [new.id for new in job.items]
            job.result = PutResult(
                tuple([item_id for item_id in ids if item_id not in already and item_id not in twins]),
                tuple([item_id for item_id in ids if item_id in already]),
                tuple([twins[item_id] for item_id in ids if item_id in twins]),
            )
        return tx.woken

    def commit(self, connection: Connection) -> None:
        connection.execute("commit")

    def _run_alone(self, connection: Connection, job: Job[Any]) -> set[str]:
        """Without a savepoint: if it fails, the whole transaction is it."""
        try:
            return self._work(connection, job)
        except Exception as error:  # noqa: BLE001 - it belongs to the caller
            job.error = faults.translate(error, self.settings.path)
            if connection.in_transaction:
                connection.execute("rollback")
            return set()

    def _run_beside(self, connection: Connection, job: Job[Any]) -> set[str]:
        connection.execute("savepoint job")
        try:
            woken = self._work(connection, job)
        except Exception as error:
            job.error = faults.translate(error, self.settings.path)
            if not connection.in_transaction:
                # A full or failing disk makes SQLite roll back everything, the neighbours included.
                kind = StoreFull if isinstance(job.error, StoreFull) else StoreUnavailable
                raise kind(
                    f"a neighbour in the same write failed and took it along: {job.error}", hint="repeat the call"
                ) from error
            connection.execute("rollback to job")
            woken = set()
        connection.execute("release job")
        return woken

    def _work(self, connection: Connection, job: Job[Any]) -> set[str]:
        if not job.begin():
            return set()
        tx = Tx(connection, self.time.now())
        job.result = self._act(connection, job, tx) if isinstance(job, ActJob) else job.work(tx)
        self._flush(tx)
        return tx.woken

    def _act(self, connection: Connection, job: Job[T], tx: Tx) -> T:
        """What an operator filters by is planned for its values: some states have an index of their own."""
        connection.keep_plans(keep=False)
        try:
            return job.work(tx)
        finally:
            connection.keep_plans(keep=True)

    def _flush(self, tx: Tx) -> None:
        tx.flush()
        self._checkpoints.weigh(tx.weight)

    def _recover(self, connection: Connection, error: Exception) -> Connection:
        """A clean connection after a failed transaction: rolled back, or a new one if that is not enough."""
        try:
            if connection.in_transaction:
                connection.execute("rollback")
        except self._errors:
            return self._renew(connection)
        # After a disk that failed nothing this connection remembers of the file is to be trusted.
        return self._renew(connection) if isinstance(error, OutcomeUnknown) else connection

    def _renew(self, connection: Connection) -> Connection:
        try:
            fresh = reopen_writer(self.settings)
        except self._errors:
            # Still broken. The old one goes on failing its callers, each of which tries again to renew it.
            return connection
        connection.close()
        self._checkpoints.close()
        self._checkpoints.begin(fresh)
        return fresh
