"""A thread that owns one connection and serves closures in the order they came.

The loop never touches SQLite: it leaves a closure here and awaits a future. What was accepted is served, also by close.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from redrive.errors import StoreUnavailable
from redrive.stores.aside import tell
from redrive.stores.clock import StoreTime
from redrive.stores.sqlite import faults
from redrive.stores.sqlite.binding import Connection
from redrive.stores.sqlite.connect import Settings
from redrive.stores.sqlite.forks import Pause, connected
from redrive.stores.sqlite.tx import Tx

T = TypeVar("T")


class Job(Generic[T]):
    """A closure with whoever waits for it. Either its thread begins it or its caller withdraws it, never both."""

    __slots__ = ("_free", "_gone", "begun", "error", "future", "loop", "resolved", "result", "work")

    def __init__(self, work: Callable[[Tx], T]) -> None:
        self.work = work
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self.loop.create_future()
        self.result: T | None = None
        self.error: Exception | None = None
        self.begun = False
        self.resolved = False
        self._gone: asyncio.Future[None] | None = None
        self._free = [True]

    def claim(self) -> bool:
        """True for the first who asks, from whatever thread."""
        try:
            return self._free.pop()
        except IndexError:
            return False

    def begin(self) -> bool:
        """By its thread. False: it has begun already, or its caller has withdrawn it."""
        if not self.claim():
            return False
        self.begun = True
        return True

    def give_back(self) -> None:
        """As if it had never begun: what was done for it was undone."""
        if self.begun:
            self.begun = False
            self._free.append(True)

    def resolve(self) -> None:
        """In the loop; the caller may have been cancelled meanwhile."""
        self.resolved = True
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)  # type: ignore[arg-type]  # None is a T where a closure returns it

    async def outcome(self) -> T:
        """A cancelled caller leaves when its closure has run or will never run: nothing happens behind its back."""
        try:
            return await self.future
        except asyncio.CancelledError:
            if not self.claim() and not self.resolved:
                self._gone = self.loop.create_future()
                await self._gone
            raise


def deliver(jobs: list[Job[Any]]) -> None:
    """One call into each loop, however many closures of it were served."""
    loops: dict[asyncio.AbstractEventLoop, list[Job[Any]]] = {}
    for job in jobs:
        loops.setdefault(job.loop, []).append(job)
    for loop, mine in loops.items():
        tell(loop, lambda mine=mine: [job.resolve() for job in mine])  # type: ignore[misc]  # the default binds the loop


class Lane(ABC):
    def __init__(self, name: str, settings: Settings, time: StoreTime) -> None:
        self.settings = settings
        self.time = time
        self._name = name
        self._queue: queue.SimpleQueue[Job[Any] | Pause | None] = queue.SimpleQueue()
        self._door = threading.Lock()
        self._open = False
        self._connected = False
        self._thread: threading.Thread | None = None

    @abstractmethod
    def connect(self) -> Connection: ...

    def reconnect(self) -> Connection:
        """After a pause."""
        return self.connect()

    @abstractmethod
    def serve(self, connection: Connection, first: Job[Any]) -> Connection:
        """Serve the job (and others that wait); returns the connection to go on with."""

    def end(self) -> None:  # noqa: B027 - only a lane that has more than its connection has something to do
        """What goes with the connection goes now."""

    async def start(self) -> None:
        """Returns when the connection is open; raises what opening it raised."""
        started: Job[None] = Job(lambda _: None)
        self._open = True
        self._thread = threading.Thread(target=self._run, args=(started,), name=self._name, daemon=True)
        self._thread.start()
        await started.future

    def shut(self) -> None:
        """From now on nothing is accepted."""
        with self._door:
            if self._open:
                self._open = False
                self._queue.put(None)

    def wait(self) -> None:
        """After `shut`: until all that was accepted is served and the connection is closed. Not in a loop."""
        if self._thread is not None:
            self._thread.join()

    async def submit(self, work: Callable[[Tx], T]) -> T:
        return await self.accept(Job(work))

    async def accept(self, job: Job[T]) -> T:
        with self._door:
            self._check()
            self._queue.put(job)
        return await job.outcome()

    def _check(self) -> None:
        if not self._open:
            raise StoreUnavailable(f"the store {self.settings.path} is closed", hint="open it again")

    def pause(self) -> Pause | None:
        """None also of a thread that is about to open one: that waits for the fork, which must not wait for it."""
        pause = Pause()
        with self._door:
            if not self._connected:
                return None
            self._queue.put(pause)
        return pause

    def _run(self, started: Job[None]) -> None:
        connection: Connection | None = None
        try:
            with connected(self):
                connection = self.connect()
                self._connected = True
        except Exception as error:  # noqa: BLE001 - whatever it is, the opener has to hear it
            started.error = faults.translate(error, self.settings.path)
            self._open = False
            deliver([started])
            return
        deliver([started])
        try:
            while (job := self._queue.get()) is not None:
                if isinstance(job, Pause):
                    self._close(connection)
                    connection = None
                    self._connected = False
                    job.closed.set()
                    job.over.wait()
                else:
                    connection = self._serve(connection, job)
        finally:
            self._end(connection)

    def _serve(self, connection: Connection | None, job: Job[Any]) -> Connection | None:
        if connection is None:
            try:
                with connected(self):
                    connection = self.reconnect()
                    self._connected = True
            except Exception as error:  # noqa: BLE001 - it belongs to the caller; the next one tries again
                job.error = faults.translate(error, self.settings.path)
                deliver([job])
                return None
        return self.serve(connection, job)

    def _close(self, connection: Connection | None) -> None:
        self.end()
        if connection is not None:
            connection.close()

    def _end(self, connection: Connection | None) -> None:
        """Also after a mistake of ours in `serve`: nobody may be left waiting for a thread that is gone."""
        with self._door:
            self._open = False
        left, pauses = self._left()
        for job in left:
            job.error = StoreUnavailable(f"the store {self.settings.path} has stopped; nothing was written")
        deliver(left)
        self._close(connection)
        with self._door:
            self._connected = False
        # A fork that came while it was being closed has waited for that.
        for pause in pauses + self._left()[1]:
            pause.closed.set()

    def _left(self) -> tuple[list[Job[Any]], list[Pause]]:
        found: list[Job[Any] | Pause | None] = []
        while not self._queue.empty():
            found.append(self._queue.get())
        return [each for each in found if isinstance(each, Job)], [each for each in found if isinstance(each, Pause)]

    def waiting(self, limit: int) -> list[Job[Any]]:
        """Jobs that wait already, without waiting for more."""
        jobs: list[Job[Any]] = []
        while len(jobs) < limit:
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                break
            if job is None or isinstance(job, Pause):
                # For the thread's own loop, which finds it next.
                self._queue.put(job)
                break
            jobs.append(job)
        return jobs
