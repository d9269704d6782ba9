"""The poller: a worker for jobs that an external broker leases. Each job is one call of a user's function.

    poller = Poller("worker-1", handler, source, slots=4, times=Times(...), store=store, events=events, clock=clock)
    await poller.run()      # until stop() is called, or an operator drains or stops the worker

It polls for as many jobs as slots are free, with backoff while the broker fails and a pause while it has no work. It
extends the lease of each job until its end was delivered, and cancels a job that takes too long, that lost its lease,
or that outlives the drain. A door translates what the broker gives and gets: see `Source`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from redrive.core.item import Millis, error_line
from redrive.engine.caller import Called, Caller, is_async
from redrive.engine.evidence import text_of
from redrive.engine.heartbeat import Heartbeat
from redrive.engine.ids import new_id
from redrive.errors import ConfigError, QueueFull, RedriveError, StoreError
from redrive.events import Events
from redrive.stores.base import Store
from redrive.stores.clock import Clock

JOB_TIMEOUT = "JOB_TIMEOUT"
SHUTDOWN_CANCELLED = "SHUTDOWN_CANCELLED"
LEASE_LOST = "LEASE_LOST"

CANCEL_GRACE: Millis = 5_000
"""How long a handler that was cancelled may take to end before its job ends without it."""
LONGEST_PAUSE: Millis = 60_000
"""The longest pause between two polls of a broker that does not answer."""
STORE_PAUSES: tuple[Millis, Millis] = (250, 10_000)
"""The first and the longest pause between two tries to make the end of a job durable."""
RENEW_AGAIN = 4
"""A lease extension that failed is tried again after this part of the interval."""
TOOL_THREADS = 1_000
CANCELLED = "the handler was cancelled"
STOPPED = "the poller was stopped while it asked for work: jobs that are given now are not begun, their leases run out"


class ExternalJob(Protocol):
    """`cancel_requested` is set by the poller: JOB_TIMEOUT, SHUTDOWN_CANCELLED, LEASE_LOST, or "" if it is not."""

    cancel_requested: str

    @property
    def lease_id(self) -> str: ...


J = TypeVar("J", bound=ExternalJob)


Delivered = Callable[[], Awaitable[object]]
"""Waits until the broker has the end of a job, or has refused it."""


class Source(Protocol[J]):
    """What a door does for its broker. `poll` and `renew` may be functions of the user, plain or async.

    `renew` raises if the lease was not extended.
    """

    def poll(self, free: int, /) -> Any: ...

    def renew(self, job: J, /) -> Any: ...

    def log(self, level: int, text: str, /, *, trace: BaseException | None = None) -> None: ...

    def read(self, answer: Any) -> Iterable[J]:
        """The jobs in what `poll` returned."""

    def late(self, answer: Any) -> None:
        """What `poll` returned after the stop: its jobs are not begun."""

    def is_lost(self, error: BaseException) -> bool:
        """Whether this error of `renew` says that the lease is lost."""

    async def begin(self, job: J) -> None:
        """The handler of the job is called next."""

    async def ended(self, job: J, called: Called | None, why: str) -> Delivered:
        """Make the end of a job durable; called again while it raises StoreError or QueueFull.

        `called` is None if the handler was not called. `why` is the `cancel_requested` of the job when it ended.
        """


class Times(NamedTuple):
    """The pause between two polls, that between two extensions of a lease, the limits of a job and of a drain."""

    interval: Millis
    renewal: Millis
    timeout: Millis
    drain: Millis


class Poller(Generic[J]):
    def __init__(
        self,
        worker: str,
        handler: Callable[[J], Any],
        source: Source[J],
        *,
        slots: int,
        times: Times,
        store: Store,
        events: Events,
        clock: Clock,
    ) -> None:
        self._worker = worker
        self._handler = handler
        self._source = source
        self._times = times
        self._most = slots
        self._store = store
        self._events = events
        self._clock = clock
        self._drain, self._drained_at = times.drain, 0
        self._active: dict[str, J] = {}
        self._runs: dict[J, _Run] = {}
        self._slots = _Slots[J](slots)
        self._got_too_many = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._deliveries: set[asyncio.Task[None]] = set()
        self._handlers, self._tools = Caller(slots), Caller(TOOL_THREADS)
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._over = asyncio.Event()
        self._over.set()

    @property
    def active(self) -> Mapping[str, J]:
        """Jobs by lease, from the poll until their end is durable."""
        return MappingProxyType(self._active)

    @property
    def is_caller(self) -> bool:
        """Whether a handler of this poller is the caller."""
        return _handled_by.get(None) is self

    async def run(self) -> None:
        """Until `stop` is called. When it is cancelled, jobs are too; their ends are durable before it returns."""
        if not self._over.is_set():
            raise ConfigError("it runs already", field="run", hint="make another one, or await stop() first")
        self._over.clear()
        self._stopping.clear()
        self._handlers, self._tools = Caller(self._most), Caller(TOOL_THREADS)
        heartbeat = Heartbeat(
            f"{self._worker}-{new_id()[:8]}",
            self._store,
            queues=lambda: (),
            slots=self._most,
            running=lambda: len(self._active),
            obey=self._obey,
            events=self._events,
            clock=self._clock,
        )
        await heartbeat.begin()
        beating = asyncio.create_task(heartbeat.run())
        try:
            await self._poll_until_stopped()
            for job in tuple(self._slots.waiting):  # it has not begun: another worker may have it at once
                self._cancel(job, SHUTDOWN_CANCELLED)
            self._drained_at = self._clock.monotonic() + self._drain
            await self._drain_jobs()
        finally:
            try:
                await self._end()
                beating.cancel()
                await asyncio.gather(beating, return_exceptions=True)
                await heartbeat.end()
            finally:
                self._over.set()

    def _obey(self, command: str) -> None:
        """An operator's `drain` lets jobs finish within the drain timeout, `stop` cancels them."""
        self._begin_stop(0 if command == "stop" else None)

    async def stop(self, drain: Millis | None = None) -> None:
        """Poll no more, let jobs finish within `drain`, cancel the others, and wait for all that.

        A second call may set the time that is left: 0 cancels the jobs at once. A handler that calls it is not waited
        for.
        """
        self._begin_stop(drain)
        if not self.is_caller:
            await self._over.wait()

    def _begin_stop(self, drain: Millis | None) -> None:
        if drain is not None:
            self._drain, self._drained_at = drain, self._clock.monotonic() + drain
        self._stopping.set()
        self._changed.set()

    # --- polling ---

    async def _poll_until_stopped(self) -> None:
        interval = pause = self._times.interval
        while not self._stopping.is_set():
            self._changed.clear()
            free = self._slots.free
            claimed = 0
            if free > 0:
                answer, error = await self._ask(free)
                if error is None:
                    claimed = self._claim(answer, free)
                    pause = interval
                else:
                    pause = min(max(pause * 2, _retry_after(error)), max(LONGEST_PAUSE, interval))
                    self._source.log(logging.WARNING, f"cannot ask for work, again in {pause} ms: {error_text(error)}")
            # If there may be more work than slots, the next free slot polls at once.
            full = claimed >= free
            await self._pause(LONGEST_PAUSE if full else pause, until_free=full)

    async def _ask(self, free: int) -> Called:
        """A poll that hangs does not hold up the stop: it is cancelled, or left behind if it runs in a thread."""

        def ended_in_thread(called: Called) -> None:
            if asking.cancelled():
                self._source.late(called.value)

        def ended(task: asyncio.Task[Called]) -> None:
            if not task.cancelled():
                self._source.late(task.result().value)

        poll, loop = self._source.poll, asyncio.get_running_loop()
        in_thread = partial(self._tools.in_thread, partial(poll, free), ended_in_thread)
        call = self._tools(poll, free) if is_async(poll) else in_thread()
        asking = loop.create_task(call, name="poll")
        stopped = loop.create_task(self._stopping.wait(), name="stop of the poller")
        try:
            await asyncio.wait({asking, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            if not asking.done():
                self._source.log(logging.INFO, STOPPED)
                asking.cancel()
                asking.add_done_callback(
                    lambda task: None if task.cancelled() else self._source.late(task.result().value)
                )
        return asking.result() if asking.done() else Called(None, None)

    def _claim(self, answer: Any, free: int) -> int:
        """How many jobs began. What is not a job, or is active already, is not a sign of more work."""
        jobs = {job.lease_id: job for job in self._source.read(answer) if job.lease_id not in self._active}
        if len(jobs) > free and not self._got_too_many:
            self._got_too_many = True
            text = f"asked for {free} jobs, the broker gave {len(jobs)}: some wait for a slot"
            self._source.log(logging.WARNING, text)
        for job in jobs.values():
            self._active[job.lease_id] = job
            slot = self._slots.take(job)
            task = asyncio.get_running_loop().create_task(self._job(job, slot), name=f"job {job.lease_id}")
            self._tasks.add(task)
            task.add_done_callback(self._job_ended)
        return len(jobs)

    async def _pause(self, pause: Millis, *, until_free: bool) -> None:
        """For so long, or until the stop; `until_free`: or until a job has ended."""
        until = self._clock.monotonic() + pause
        while not self._stopping.is_set():
            left = until - self._clock.monotonic()
            if left <= 0 or (await self._clock.wait(self._changed, left) and until_free):
                return
            if not self._stopping.is_set():
                self._changed.clear()

    # --- one job ---

    def _job_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            text = f"the end of {task.get_name()} is not durable; its lease expires"
            self._source.log(logging.ERROR, text, trace=error)

    async def _job(self, job: J, slot: asyncio.Future[bool]) -> None:
        loop = asyncio.get_running_loop()
        keeper = loop.create_task(self._keep_lease(job), name=f"lease {job.lease_id}")
        delivered: Delivered | None = None
        try:
            called = await self._work(job) if await slot else None
            delivered = await self._settle(job, called, job.cancel_requested)
        finally:
            del self._active[job.lease_id]
            delivery = loop.create_task(self._deliver(delivered, keeper), name=f"delivery of {job.lease_id}")
            self._deliveries.add(delivery)
            delivery.add_done_callback(self._deliveries.discard)
            self._changed.set()

    async def _deliver(self, delivered: Delivered | None, keeper: asyncio.Task[None]) -> None:
        """The lease is extended until the end of the job was delivered."""
        try:
            if delivered is not None:
                with suppress(RedriveError):
                    await delivered()
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)

    async def _work(self, job: J) -> Called:
        await self._source.begin(job)
        call = asyncio.get_running_loop().create_task(self._call(job), name=f"handler of {job.lease_id}")
        run = self._runs[job] = _Run(call, in_thread=not is_async(self._handler))
        if job.cancel_requested:  # before the handler could be cancelled
            run.interrupt()
        try:
            if not await self._clock.wait(run.changed, self._times.timeout):
                self._cancel(job, JOB_TIMEOUT)
            if not run.done.is_set() and not await self._clock.wait(run.done, CANCEL_GRACE):
                text = f"the handler of {job.lease_id} does not end, though it was asked to"
                self._source.log(logging.WARNING, text)
                run.abandon()
        finally:
            del self._runs[job]
        called = call.result() if call.done() and not call.cancelled() else Called(None, asyncio.CancelledError())
        if isinstance(called.error, asyncio.CancelledError | concurrent.futures.CancelledError):
            return Called(None, asyncio.CancelledError(CANCELLED))
        if called.error is not None and not job.cancel_requested:
            text = f"the handler of {job.lease_id} failed: {error_text(called.error)}"
            self._source.log(logging.ERROR, text, trace=called.error)
        return called

    async def _call(self, job: J) -> Called:
        _handled_by.set(self)
        if not is_async(self._handler):
            # A thread cannot be cancelled: it keeps its slot until it ends.
            return await self._handlers.in_thread(partial(self._handler, job), ended=lambda _: self._free_slot())
        try:
            return await self._handlers(self._handler, job)
        finally:
            self._free_slot()

    def _free_slot(self) -> None:
        self._slots.release()
        self._changed.set()

    async def _settle(self, job: J, called: Called | None, why: str) -> Delivered:
        """A store that fails is asked again, without limit."""
        pause, longest = STORE_PAUSES
        while True:
            try:
                return await self._source.ended(job, called, why)
            except (StoreError, QueueFull) as error:
                self._source.log(logging.ERROR, f"the end of {job.lease_id} is not durable yet: {error}")
            await self._clock.sleep(pause)
            pause = min(pause * 2, longest)

    async def _keep_lease(self, job: J) -> None:
        renewal = pause = self._times.renewal
        quiet_until = 0
        while True:
            await self._clock.sleep(pause)
            pause = renewal
            _, error = await self._tools(self._source.renew, job)
            if error is None:
                continue
            lost, now = self._source.is_lost(error), self._clock.monotonic()
            if lost or now >= quiet_until:  # logged at most once in an interval
                quiet_until = now + renewal
                self._source.log(logging.WARNING, f"cannot prolong lease {job.lease_id}: {error_text(error)}")
            if lost:
                self._cancel(job, LEASE_LOST)
                return
            pause = max(1, renewal // RENEW_AGAIN)

    def _cancel(self, job: J, why: str) -> None:
        if not job.cancel_requested:
            job.cancel_requested = why
            self._slots.refuse(job)
            if job in self._runs:
                self._runs[job].interrupt()

    # --- the end ---

    async def _drain_jobs(self) -> None:
        while self._active:
            self._changed.clear()
            left = self._drained_at - self._clock.monotonic()
            if not await self._clock.wait(self._changed, left):
                return

    async def _end(self) -> None:
        for job in list(self._active.values()):
            self._cancel(job, SHUTDOWN_CANCELLED)
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        # The ends are durable: their delivery needs no lease.
        for delivery in self._deliveries:
            delivery.cancel()
        if self._deliveries:
            await asyncio.wait(set(self._deliveries))
        self._handlers.close()
        self._tools.close()


_handled_by: ContextVar[Poller[Any]] = ContextVar("redrive_poller")


class _Run:
    """A handler that runs. `changed`: it has ended, or was asked to."""

    def __init__(self, task: asyncio.Task[Called], *, in_thread: bool) -> None:
        self._task = task
        self._in_thread = in_thread
        self.done = asyncio.Event()
        self.changed = asyncio.Event()
        task.add_done_callback(self._ended)

    def _ended(self, _: object) -> None:
        self.done.set()
        self.changed.set()

    def interrupt(self) -> None:
        """A handler in a thread sees it in its job."""
        self.changed.set()
        if not self._in_thread:
            self._task.cancel()

    def abandon(self) -> None:
        """Do not wait for the thread. A handler in the loop was cancelled before."""
        if self._in_thread:
            self._task.cancel()


class _Slots(Generic[J]):
    """Slots for handlers. A job that was given beyond them waits for one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._busy = 0
        self.waiting: dict[J, asyncio.Future[bool]] = {}

    @property
    def free(self) -> int:
        """Less than 0 if jobs wait."""
        return self._most - self._busy - len(self.waiting)

    def take(self, job: J) -> asyncio.Future[bool]:
        """True when the job has its slot, False if it was refused one."""
        slot = self.waiting[job] = asyncio.get_running_loop().create_future()
        self._hand_out()
        return slot

    def release(self) -> None:
        self._busy -= 1
        self._hand_out()

    def _hand_out(self) -> None:
        while self.waiting and self._busy < self._most:
            slot = self.waiting.pop(next(iter(self.waiting)))
            if not slot.done():  # done: the job was cancelled
                self._busy += 1
                slot.set_result(True)

    def refuse(self, job: J) -> None:
        slot = self.waiting.pop(job, None)
        if slot is not None and not slot.done():
            slot.set_result(False)


def error_text(error: BaseException) -> str:
    """Its type and its text, also of an error whose text cannot be read."""
    return error_line(type(error).__name__, text_of(error))


def _retry_after(error: BaseException) -> Millis:
    seconds = getattr(error, "retry_after", None)
    return round(seconds * 1000) if isinstance(seconds, int | float) else 0
