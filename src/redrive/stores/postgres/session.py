"""What an open store has in one process and one event loop: its connections, its ear, and what it remembers.

Ways to speak to the server, which differ in what a lost answer means: `call` and `write` may have happened then,
`read`, `page` and `look` are simply repeated by whoever wants to.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import psycopg

from redrive.core.item import Instant
from redrive.core.verbs import NewEntry
from redrive.errors import StoreError, StoreUnavailable
from redrive.stores.aside import through
from redrive.stores.clock import Clock, StoreTime
from redrive.stores.gather import Gather
from redrive.stores.memo import Memo
from redrive.stores.postgres import faults
from redrive.stores.postgres.arrays import texts
from redrive.stores.postgres.connect import connect
from redrive.stores.postgres.install import PATIENCE, Installed, install
from redrive.stores.postgres.lease import Floors
from redrive.stores.postgres.options import Options
from redrive.stores.postgres.pool import Pool
from redrive.stores.postgres.put import put
from redrive.stores.postgres.shelf import append_acts
from redrive.stores.postgres.tx import Tx
from redrive.stores.postgres.wake import Ear
from redrive.stores.postgres.wire import Row, Wire
from redrive.stores.statements import load
from redrive.stores.waiters import Waiters

__all__ = ["Session", "Tx"]

T = TypeVar("T")

TRIES = 6
"""So often a transaction is tried that the server asks to repeat."""
FOLD_AFTER = 500
"""Writes of ours after which somebody should add up the counters."""

_PLANS_FOR_MANY = ("seqscan", "bitmapscan", "hashjoin", "mergejoin", "incremental_sort")
_FOR_FEW = "; ".join([f"set local enable_{plan} = off" for plan in _PLANS_FOR_MANY])
_BEGIN = "begin"
_BEGIN_ACT = f"begin; {_FOR_FEW}"
_BEGIN_LOOK = "begin isolation level repeatable read read only"
_BEGIN_GUESS = f"begin read only; {_FOR_FEW}"
_BEGIN_PAGE = f"{_BEGIN_GUESS}; set local enable_sort = off"


def _yes() -> bool:
    return True


def _no() -> bool:
    return False


class Session:
    """Belongs to the process and the loop that opened it. In a forked child it can only be left alone."""

    def __init__(self, options: Options, clock: Clock | None) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.get_running_loop()
        self.options = options
        self.schema = options.quoted
        self.memo = Memo()
        self.ordered: set[str] = set()
        self.families: set[str] = set()
        self.floors = Floors(self.loop.time)
        self.gather = Gather(lambda items: put(self, items))
        self.waiters = Waiters()
        self._time = None if clock is None else StoreTime(clock)
        self._pool = Pool(lambda: connect(options), options.pool)
        self._ear = Ear(options, self.waiters, self._pool)
        self._statements: dict[tuple[str, str], str] = {}
        self._writes = 0
        self._folding: asyncio.Task[None] | None = None
        self._closed = False

    def pinned(self) -> Instant | None:
        """What the server takes for now: None is its own clock."""
        return None if self._time is None else self._time.now()

    def sql(self, verb: str, name: str) -> str:
        key = (verb, name)
        text = self._statements.get(key)
        if text is None:
            text = self._statements[key] = load("postgres", verb)[name].replace("{schema}", self.schema)
        return text

    async def open(self, *, make: bool = True) -> Installed:
        """Migrates if need be. Raises one clear error for whatever is in the way.

        `make`: also where there is nothing of redrive's yet.
        """
        try:
            wire = await self._pool.take()
            try:
                async with asyncio.timeout(PATIENCE):
                    return await install(wire, self.options, make=make)
            finally:
                await self._restored(wire)
        except TimeoutError as error:
            self._pool.abandon()
            raise faults.too_slow(self.options, "opening") from error
        except psycopg.Error as error:
            self._pool.abandon()
            raise faults.translate(error, self.options) from error
        except BaseException:
            self._pool.abandon()
            raise

    # --- speaking ---

    async def call(self, statement: str, params: Sequence[Any] = ()) -> list[Row]:
        """One statement that writes, in a transaction of its own."""
        rows = await through(self._again(lambda: self._visit(lambda wire: wire.rows(statement, params), wrote=_yes)))
        self._wrote()
        return rows

    async def read(self, statement: str, params: Sequence[Any] = ()) -> list[Row]:
        return await through(self._again(lambda: self._visit(lambda wire: wire.rows(statement, params), wrote=_no)))

    async def page(self, statement: str, params: Sequence[Any] = (), *, guessed: bool = False) -> list[Row]:
        """A read of a few rows among any number, in the order of an index.

        The planner guesses how many there are; before its first statistics, or long after its last, it may take plans
        that read them all to give a hundred. Those are switched off for this transaction alone. So is sorting: where it
        can do without, the statement is in the words of the index that has the order; it is still done where it must
        be. `guessed`: the statement has no such words, and the planner may know a better way than in order.
        """
        begin = _BEGIN_GUESS if guessed else _BEGIN_PAGE

        async def paged(wire: Wire) -> list[Row]:
            await wire.cursor().execute(begin.encode(), prepare=False)
            rows = await wire.rows(statement, params)
            await wire.rows("commit")
            return rows

        return await through(self._again(lambda: self._visit(paged, wrote=_no)))

    async def write(
        self, work: Callable[[Tx], Awaitable[T]], audit: NewEntry | None = None, *, of_all: bool = False
    ) -> T:
        """A transaction. `work` may run more than once, and changes nothing but what it does through its Tx.

        Acts know which rows they mean, so they are planned as pages are, unless they are `of_all` there is. `audit`:
        the entry that goes with it.
        """
        begin = _BEGIN if of_all else _BEGIN_ACT

        async def audited(tx: Tx) -> T:
            result = await work(tx)
            if audit is not None:
                await append_acts(self, tx, (audit,), "")
            return result

        result, woken = await through(self._again(lambda: self._transaction(audited, begin)))
        self._wrote()
        self.floors.drop(woken)
        self.wake(woken)
        return result

    async def look(self, work: Callable[[Tx], Awaitable[T]]) -> T:
        """Several statements that see one and the same moment."""

        async def looked(wire: Wire) -> T:
            result = await work(await self._begun(wire, _BEGIN_LOOK))
            await wire.rows("commit")
            return result

        return await through(self._again(lambda: self._visit(looked, wrote=_no)))

    async def _transaction(self, work: Callable[[Tx], Awaitable[T]], begin: str) -> tuple[T, set[str]]:
        committing = False

        async def done(wire: Wire) -> tuple[T, set[str]]:
            nonlocal committing
            tx = await self._begun(wire, begin)
            result = await work(tx)
            await tx.flush()
            if any(":" in queue for queue in tx.woken):
                await tx.execute(self.sql("families", "call_lower"), (texts(sorted(tx.woken)),))
            committing = True
            await wire.rows("commit")
            return result, tx.woken

        return await self._visit(done, wrote=lambda: committing)

    async def _begun(self, wire: Wire, begin: str) -> Tx:
        """In one round trip with the instant at which everything happens: all in one text, and that comes last.

        Not by psycopg's pipeline, which is left half open when the connection breaks in it.
        """
        pinned = self.pinned()
        clock = self.sql("clock", "now").replace("%b", "null" if pinned is None else str(int(pinned)))
        cursor = wire.cursor()
        await cursor.execute(f"{begin}; {clock}".encode(), prepare=False)
        while cursor.nextset():
            pass
        ((now,),) = await cursor.fetchall()
        return Tx(wire, now, self.schema)

    async def _again(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """As long as the server undoes it and asks to repeat; a little apart, or the same two would meet again."""
        for number in range(1, TRIES):
            try:
                return await attempt()
            except _AgainError:
                await asyncio.sleep(random.uniform(0, 0.005 * 2**number))  # noqa: S311 - not a secret
        try:
            return await attempt()
        except _AgainError as error:
            raise error.told from error.__cause__

    async def _visit(self, work: Callable[[Wire], Awaitable[T]], *, wrote: Callable[[], bool]) -> T:
        """With a connection, within the time a verb has. One that leaves a doubt is never used again."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.options.timeout / 1000
        wire = await self._taken(deadline)
        try:
            async with asyncio.timeout_at(deadline):
                result = await work(wire)
        except TimeoutError as error:
            self._pool.drop(wire)
            raise self._lost(error, wrote) from error
        except psycopg.Error as error:
            raise await self._failed(wire, error, wrote) from error
        except Exception as error:  # noqa: BLE001 - it is told, or raised as it is
            await self._restored(wire)
            told = faults.translate(error, self.options)
            raise told from (None if told is error else error)
        except BaseException:
            self._pool.drop(wire)
            raise
        self._pool.give(wire)
        return result

    async def _taken(self, deadline: float) -> Wire:
        if self._closed:
            raise closed(self.options)
        try:
            async with asyncio.timeout_at(deadline):
                return await self._pool.take()
        except TimeoutError:
            if self._pool.in_use:
                raise faults.pool_exhausted(self.options) from None
            raise faults.too_slow(self.options, "connecting") from None

    def _lost(self, error: BaseException, wrote: Callable[[], bool]) -> Exception:
        """Without an answer. What surely did not write did not happen."""
        if wrote():
            return faults.unknown(None if isinstance(error, TimeoutError) else error, self.options)
        if isinstance(error, TimeoutError):
            return faults.too_slow(self.options, "an answer")
        return StoreUnavailable(f"the connection to {self.options.location} was lost: {faults.first_line(error)}")

    async def _failed(self, wire: Wire, error: psycopg.Error, wrote: Callable[[], bool]) -> Exception:
        """The server said no, or the connection broke."""
        if faults.is_lost(wire, error):
            self._pool.drop(wire)
            return self._lost(error, wrote)
        if faults.is_outdated(error):
            self._pool.drop(wire)
        else:
            await self._restored(wire)
        told = faults.translate(error, self.options)
        return _AgainError(told) if error.sqlstate in faults.AGAIN else told

    async def _restored(self, wire: Wire) -> None:
        """To the pool, out of any transaction."""
        try:
            if wire.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                async with asyncio.timeout(1):
                    await wire.rows("rollback")
        except (TimeoutError, psycopg.Error):
            self._pool.drop(wire)
        else:
            self._pool.give(wire)

    # --- waking and tidying ---

    def wake(self, queues: Collection[str]) -> None:
        """After the commit: who waits in this process, and through the server who waits elsewhere. "" is any queue."""
        if queues:
            self.waiters.wake(None if "" in queues else queues)
            self._ear.tell(queues)

    async def listen(self) -> None:
        """Before the first look of whoever waits."""
        await self._ear.listen()

    def _wrote(self) -> None:
        self._writes += 1
        if self._writes >= FOLD_AFTER and (self._folding is None or self._folding.done()):
            self._writes = 0
            self._folding = asyncio.create_task(self.fold())

    async def fold(self) -> None:
        """Adds up the counters. It can wait: sums are right at any time."""
        # If it fails, the next one will do it.
        with suppress(StoreError):
            await self.read(self.sql("fold", "call"))

    async def close(self) -> None:
        self._closed = True
        self.waiters.wake()
        if self._folding is not None:
            self._folding.cancel()
        await self._ear.close()
        await self._pool.close(self.options.timeout / 1000 + 1)

    def abandon(self) -> None:
        """Its loop is over, or it is another process's: psycopg then lets go without a word to the server."""
        self._closed = True
        self._ear.abandon()
        self._pool.abandon()


class _AgainError(Exception):
    """The server undid it and asks to repeat; `told` is what to say when that does not help."""

    def __init__(self, told: Exception) -> None:
        super().__init__(str(told))
        self.told = told


def closed(options: Options) -> StoreUnavailable:
    return StoreUnavailable(
        f"the store {options.location} is closed", hint="await store.open() first, and use it before close()"
    )
