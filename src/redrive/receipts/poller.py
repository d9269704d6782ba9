"""Asks a broker for work, does it, and sends its receipts. What the handler did is durable before the job is forgotten.

async def handle(job: Job) -> str:
    return f"{job.payload['pages']} pages read"

async with ReceiptClient("https://broker.example", auth_token=...) as client:
    await WorkPoller(client, handle, max_concurrent_jobs=4).run()      # until stop() is called
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Protocol

from redrive.core.durations import Duration, parse
from redrive.core.item import Millis
from redrive.engine.heartbeat import Heartbeat
from redrive.engine.ids import new_id
from redrive.engine.threads import Threads
from redrive.errors import ConfigError, PayloadError, QueueFull, RedriveError, StoreError
from redrive.receipts._asking import Reader, answer_of
from redrive.receipts._logs import said, say
from redrive.receipts._places import Places
from redrive.receipts._poller_options import check_handler, check_places, own_or_usual, positive, words, worker_name
from redrive.receipts._work import Work, asked_to_end, awaited, called, raised_in, result_of, tell
from redrive.receipts.jobs import (
    HANDLER_ERROR,
    JOB_TIMEOUT,
    LEASE_LOST,
    SHUTDOWN_CANCELLED,
    UNSENDABLE,
    Clerk,
    Job,
    ended,
)
from redrive.receipts.model import Receipt
from redrive.stores.clock import Clock

Handler = Callable[[Job], Any]
Poll = Callable[[int], Awaitable[Any]]
"""At most so many jobs, in a list, each a mapping with lease_id, task_id and payload."""
Renew = Callable[[Job], Awaitable[object]]
"""Prolongs the lease, or raises: ReceiptSuperseded if it is lost, anything else if it may still count."""

LETTING_GO: Millis = 5_000
"""So long a handler that was cancelled, or asked to end, may take for it before its receipt is sent without it."""
LONGEST_PAUSE: Millis = 60_000
"""Between two questions to a broker that does not answer."""
STORE_PAUSES: tuple[Millis, Millis] = (250, 10_000)
"""The first and the longest between two tries to write a receipt down."""
BEATS_AGAIN = 4
"""A heartbeat that failed comes again after this part of the interval."""


class Sender(Protocol):
    """What a poller needs of a ReceiptClient."""

    @property
    def clock(self) -> Clock: ...

    async def submit(self, receipt: Receipt) -> str: ...

    async def wait(self, id: str) -> bool: ...

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Any: ...

    def heartbeat(
        self, worker: str, *, slots: int, running: Callable[[], int], obey: Callable[[str], None]
    ) -> Heartbeat: ...


class WorkPoller:
    """`poll` and `renew` are the broker's tools `lease_next` and `renew_lease` unless you give your own.

    Heartbeats prolong the lease of a job until its final receipt was delivered or is a dead letter, also while the
    poller drains. A job that takes longer than `job_timeout` is cancelled, and fails as JOB_TIMEOUT.
    """

    def __init__(
        self,
        client: Sender,
        handler: Handler,
        *,
        poll: Poll | None = None,
        renew: Renew | None = None,
        worker_id: str | None = None,
        polling_interval: Duration = 5.0,
        max_concurrent_jobs: int = 1,
        heartbeat_interval: Duration = 60.0,
        job_timeout: Duration = 300.0,
        drain_timeout: Duration = 300.0,
        lease_ttl: Duration | None = None,
        capabilities: Iterable[str] = (),
        accept_types: Iterable[str] = (),
    ) -> None:
        check_handler(handler)
        check_places(max_concurrent_jobs)
        self.worker_id = worker_name(worker_id)
        self._client = client
        self._clock: Clock = client.clock
        self._handler = handler
        self._is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
        self._clerk = Clerk(self.worker_id)
        self._most = max_concurrent_jobs
        self._interval = positive(polling_interval, "polling_interval")
        self._beat = positive(heartbeat_interval, "heartbeat_interval")
        self._timeout = positive(job_timeout, "job_timeout")
        self._drain = parse(drain_timeout, field="drain_timeout")
        self._drained_at: Millis = 0
        self._ttl = None if lease_ttl is None else positive(lease_ttl, "lease_ttl")
        self._asks = {
            "capabilities": words(capabilities, "capabilities"),
            "accept_types": words(accept_types, "accept_types"),
        }
        self._poll = own_or_usual(poll, self._lease_next, "poll", "most")
        self._renew = own_or_usual(renew, self._renew_lease, "renew", "job")
        self._active: dict[str, Job] = {}
        self._works: dict[Job, Work] = {}
        self._places = Places(max_concurrent_jobs)
        self._reader = Reader()
        self._gave_too_many = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._tails: set[asyncio.Task[None]] = set()
        self._threads = Threads(max_concurrent_jobs)
        self._stirred = asyncio.Event()
        self._stopping = asyncio.Event()
        self._over = asyncio.Event()
        self._over.set()

    @property
    def active(self) -> Mapping[str, Job]:
        """Jobs by lease, from the claim until the final receipt is durable."""
        return MappingProxyType(self._active)

    async def run(self) -> None:
        """Until `stop` is called. When it is cancelled, jobs are too; their receipts are durable before it ends."""
        if not self._over.is_set():
            raise ConfigError("it runs already", field="WorkPoller", hint="make another one, or await stop() first")
        self._over.clear()
        self._stopping.clear()
        self._threads = Threads(self._most)
        name = f"{self.worker_id}-{new_id()[:8]}"
        heartbeat = self._client.heartbeat(name, slots=self._most, running=lambda: len(self._active), obey=self._obey)
        await heartbeat.begin()
        beating = asyncio.create_task(heartbeat.run())
        try:
            await self._ask_for_work()
            for job in self._places.waiting:  # it has not begun: somebody else may have it at once
                self._cancel(job, SHUTDOWN_CANCELLED)
            self._drained_at = self._clock.monotonic() + self._drain
            await self._all_done()
        finally:
            try:
                await self._end()
                beating.cancel()
                await asyncio.gather(beating, return_exceptions=True)
                await heartbeat.end()
            finally:
                self._over.set()

    def _obey(self, command: str) -> None:
        """An operator's `drain` lets jobs finish as long as they may, `stop` cancels them."""
        if command == "stop":
            self._drain, self._drained_at = 0, self._clock.monotonic()
        self._stopping.set()
        self._stirred.set()

    async def stop(self, *, drain_timeout: Duration | None = None) -> None:
        """Ask for no more work, let jobs finish within `drain_timeout`, cancel the others, and wait for all that.

        Whoever calls it again may say how long from then on: 0 cancels them at once. A handler that calls it is not
        waited for.
        """
        if drain_timeout is not None:
            self._drain = parse(drain_timeout, field="drain_timeout")
            self._drained_at = self._clock.monotonic() + self._drain
        self._stopping.set()
        self._stirred.set()
        if asyncio.current_task() not in {work.task for work in self._works.values()}:
            await self._over.wait()

    # --- asking for work ---

    async def _ask_for_work(self) -> None:
        pause = self._interval
        while not self._stopping.is_set():
            self._stirred.clear()
            free = self._places.free
            claimed = 0
            if free > 0:
                try:
                    claimed = await self._claim(free)
                    pause = self._interval
                except (Exception, asyncio.CancelledError) as error:  # a broker that is down is no reason to end
                    if asked_to_end(error):
                        raise
                    pause = min(max(pause * 2, _patience(error)), max(LONGEST_PAUSE, self._interval))
                    say(logging.WARNING, f"cannot ask for work, again in {pause} ms: {said(error)}")
            # Where there may be more work than places, whoever becomes free asks at once.
            full = claimed >= free
            await self._pause(LONGEST_PAUSE if full else pause, until_free=full)

    async def _claim(self, free: int) -> int:
        """How many jobs began: what is no job, or one that we have, is no sign of more work."""
        given = self._reader.jobs(await answer_of(self._poll, free, self._stopping))
        jobs = {job.lease_id: job for job in given if job.lease_id not in self._active}
        if len(jobs) > free and not self._gave_too_many:
            self._gave_too_many = True
            say(logging.WARNING, f"asked for {free} jobs, the broker gave {len(jobs)}: some wait for a place")
        for job in jobs.values():
            self._begin(job)
        return len(jobs)

    async def _pause(self, pause: Millis, *, until_free: bool) -> None:
        """For so long, or until it stops; `until_free`: or until a job has ended."""
        until = self._clock.monotonic() + pause
        while not self._stopping.is_set():
            left = until - self._clock.monotonic()
            if left <= 0 or (await self._clock.wait(self._stirred, left) and until_free):
                return
            if not self._stopping.is_set():
                self._stirred.clear()

    async def _lease_next(self, free: int) -> Any:
        asked: dict[str, Any] = {"worker_id": self.worker_id, "max_tasks": free}
        asked |= {name: value for name, value in self._asks.items() if value}
        if self._ttl is not None:
            asked["lease_ttl_seconds"] = max(1, self._ttl // 1000)
        return await self._client.call("asyncgate.lease_next", asked)

    async def _renew_lease(self, job: Job) -> object:
        asked: dict[str, Any] = {"worker_id": self.worker_id, "task_id": job.task_id, "lease_id": job.lease_id}
        if self._ttl is not None:
            asked["extend_by_seconds"] = max(1, self._ttl // 1000)
        return await self._client.call("asyncgate.renew_lease", asked)

    # --- one job ---

    def _begin(self, job: Job) -> None:
        self._active[job.lease_id] = job
        place = self._places.enter(job)
        task = asyncio.get_running_loop().create_task(self._job(job, place), name=f"job {job.lease_id}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            say(logging.ERROR, f"the {task.get_name()} ends without a receipt; its lease will run out", trace=error)

    async def _job(self, job: Job, place: asyncio.Future[bool]) -> None:
        heart = asyncio.get_running_loop().create_task(self._heartbeat(job), name=f"heartbeat {job.lease_id}")
        kept = ""
        try:
            receipt = await self._work(job) if await place else self._undone(job)
            kept = await self._keep(job, receipt)
        finally:
            del self._active[job.lease_id]
            tail = asyncio.get_running_loop().create_task(self._tail(kept, heart), name=f"receipt of {job.lease_id}")
            self._tails.add(tail)
            tail.add_done_callback(self._tails.discard)
            self._stirred.set()

    async def _tail(self, kept: str, heart: asyncio.Task[None]) -> None:
        """The lease is kept until the broker has the receipt, or is known not to take it."""
        try:
            if kept:
                with suppress(RedriveError):
                    await self._client.wait(kept)
        finally:
            heart.cancel()
            await asyncio.gather(heart, return_exceptions=True)

    async def _work(self, job: Job) -> Receipt:
        """The final receipt."""
        # Durable, but nobody waits for its delivery: a broker that is slow to hear of it holds up no work.
        with suppress(RedriveError):
            await self._client.submit(self._clerk.running(job, self._clock.now()))
        work = Work(self._start(job), is_async=self._is_async)
        self._works[job] = work
        if job.cancel_requested:  # before there was anything to cancel
            work.ask_to_end()
        try:
            if not await self._clock.wait(work.stirred, self._timeout):
                self._cancel(job, JOB_TIMEOUT)
            if not work.done.is_set() and not await self._clock.wait(work.done, LETTING_GO):
                say(logging.WARNING, f"the handler of {job.lease_id} does not end, though it was asked to")
                work.give_up()
        finally:
            del self._works[job]
        return self._judged(job, work.task)

    def _start(self, job: Job) -> asyncio.Task[Any]:
        function, threads = self._handler, self._threads
        loop = asyncio.get_running_loop()
        if self._is_async:
            work = loop.create_task(awaited(function, job), name=f"handler of {job.lease_id}")
            work.add_done_callback(lambda _: self._freed())
            return work
        future = threads.submit(lambda: called(function, job))
        # A thread cannot be cancelled: it takes its place until it ends, however its job was judged.
        future.add_done_callback(lambda _: tell(loop, lambda: self._thread_freed(threads)))
        return loop.create_task(result_of(future), name=f"handler of {job.lease_id}")

    def _judged(self, job: Job, work: asyncio.Task[Any]) -> Receipt:
        now, why = self._clock.now(), job.cancel_requested
        finished = work.done() and not work.cancelled()
        error = raised_in(work) if finished else asyncio.CancelledError("the handler was cancelled")
        if why == JOB_TIMEOUT:
            seconds = self._timeout / 1000
            return self._clerk.failed(job, now, JOB_TIMEOUT, f"the job took longer than {seconds:g} seconds")
        if why and error is not None:
            return self._undone(job)
        if error is None:
            return self._clerk.returned(job, now, work.result())
        if finished:
            say(logging.ERROR, f"the handler of {job.lease_id} failed: {said(error)}", trace=error)
        return self._clerk.raised(job, now, error)

    def _undone(self, job: Job) -> Receipt:
        """Somebody else can do it: it failed for no reason of its own."""
        why = job.cancel_requested
        message = "the worker shut down" if why == SHUTDOWN_CANCELLED else "the lease was lost"
        return self._clerk.failed(job, self._clock.now(), why, message, retryable=True)

    async def _keep(self, job: Job, receipt: Receipt) -> str:
        """Its id, when it is durable. A store that fails is asked again: the result of a job is not given up."""
        pause, longest = STORE_PAUSES
        while True:
            try:
                return await self._client.submit(receipt)
            except PayloadError as error:
                message = f"{UNSENDABLE}{error.message}"
                receipt = self._clerk.failed(job, self._clock.now(), HANDLER_ERROR, message)
            except (StoreError, QueueFull) as error:
                say(logging.ERROR, f"the receipt of {receipt.lease_id} is not durable yet: {error}")
            await self._clock.sleep(pause)
            pause = min(pause * 2, longest)

    async def _heartbeat(self, job: Job) -> None:
        pause, quiet_until = self._beat, 0
        while True:
            await self._clock.sleep(pause)
            pause = self._beat
            try:
                await self._renew(job)
            except (Exception, asyncio.CancelledError) as error:  # the job goes on as long as the lease may
                if asked_to_end(error):
                    raise
                lost, now = ended(error), self._clock.monotonic()
                if lost or now >= quiet_until:  # it comes again sooner than anybody wants to read of it
                    quiet_until = now + self._beat
                    say(logging.WARNING, f"cannot prolong lease {job.lease_id}: {said(error)}")
                if lost:
                    self._cancel(job, LEASE_LOST)
                    return
                pause = max(1, self._beat // BEATS_AGAIN)

    def _cancel(self, job: Job, why: str) -> None:
        if not job.cancel_requested:
            job.cancel_requested = why
            self._places.turn_away(job)
            if job in self._works:
                self._works[job].ask_to_end()

    def _freed(self) -> None:
        self._places.leave()
        self._stirred.set()

    def _thread_freed(self, threads: Threads) -> None:
        threads.freed()
        self._freed()

    # --- the end ---

    async def _all_done(self) -> None:
        """Until no job is left, or nobody waits for them any more."""
        while self._active:
            self._stirred.clear()
            left = self._drained_at - self._clock.monotonic()
            if not self._active or not await self._clock.wait(self._stirred, left):
                return

    async def _end(self) -> None:
        for job in list(self._active.values()):
            self._cancel(job, SHUTDOWN_CANCELLED)
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        # Receipts are durable: whoever delivers them needs no lease of ours for it.
        for tail in self._tails:
            tail.cancel()
        if self._tails:
            await asyncio.wait(set(self._tails))
        self._threads.close()


def _patience(error: BaseException) -> Millis:
    """What the broker asks for, if it does."""
    seconds = getattr(error, "retry_after", None)
    return round(seconds * 1000) if isinstance(seconds, int | float) else 0
