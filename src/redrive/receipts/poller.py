"""Polls a broker for work, runs it, and sends its receipts. A job ends when its final receipt is durable.

async def handle(job: Job) -> str:
    return f"{job.payload['pages']} pages read"

async with ReceiptClient("https://broker.example", auth_token=...) as client:
    await WorkPoller(client, handle, max_concurrent_jobs=4).run()      # until stop() is called
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import platform
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from redrive.core.durations import Duration, parse, positive
from redrive.core.item import Millis
from redrive.core.quantity import shown
from redrive.engine.caller import Called, Caller, is_async
from redrive.engine.ids import new_id
from redrive.errors import ConfigError, PayloadError, QueueFull, RedriveError, StoreError
from redrive.observe.logs import log
from redrive.receipts.client import ReceiptClient
from redrive.receipts.jobs import (
    HANDLER_ERROR,
    JOB_TIMEOUT,
    LEASE_LOST,
    SHUTDOWN_CANCELLED,
    UNSENDABLE,
    Job,
    Reader,
    ReceiptFactory,
    error_text,
    is_lease_lost,
    log_late_jobs,
    logger,
)
from redrive.receipts.model import NAME_LIMIT, Receipt, is_name
from redrive.stores.clock import Clock

F = TypeVar("F", bound=Callable[..., Any])
Handler = Callable[[Job], Any]
Poll = Callable[[int], Awaitable[Any]]
"""At most so many jobs, in a list, each a mapping with lease_id, task_id and payload."""
Renew = Callable[[Job], Awaitable[object]]
"""Extends the lease, or raises: ReceiptSuperseded if it is lost, anything else if it may still be valid."""

LETTING_GO: Millis = 5_000
"""How long a handler that was cancelled may take to end before its receipt is sent without it."""
LONGEST_PAUSE: Millis = 60_000
"""The longest pause between two polls of a broker that does not answer."""
STORE_PAUSES: tuple[Millis, Millis] = (250, 10_000)
"""The first and the longest pause between two tries to write a receipt."""
RENEW_AGAIN = 4
"""A lease extension that failed is tried again after this part of the interval."""
TOOL_THREADS = 1_000
STOPPED = "the poller was stopped while it asked for work: jobs that are given now are not begun, their leases run out"


class WorkPoller:
    """`poll` and `renew` are the broker's tools `lease_next` and `renew_lease` unless you give your own.

    The lease of a job is extended until its final receipt was delivered or is a dead letter, also while the poller
    drains. A job that takes longer than `job_timeout` is cancelled, and fails as JOB_TIMEOUT.
    """

    _plain_tools = False

    def __init__(
        self,
        client: ReceiptClient,
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
        given: object = handler
        if not callable(given):
            raise ConfigError(f"must be a function, got {shown(given)}", field="handler", hint="it takes a job")
        most: object = max_concurrent_jobs
        if not isinstance(most, int) or isinstance(most, bool) or most < 1:
            text = f"must be a whole number of 1 or more, got {shown(most)}"
            raise ConfigError(text, field="max_concurrent_jobs", hint="use 1")
        self.worker_id = _worker_name(worker_id)
        self._client = client
        self._clock: Clock = client.clock
        self._handler = handler
        self._receipts = ReceiptFactory(self.worker_id)
        self._most = max_concurrent_jobs
        self._interval = positive(polling_interval, field="polling_interval")
        self._renewal = positive(heartbeat_interval, field="heartbeat_interval")
        self._timeout = positive(job_timeout, field="job_timeout")
        self._drain = parse(drain_timeout, field="drain_timeout")
        self._drained_at: Millis = 0
        self._ttl = None if lease_ttl is None else positive(lease_ttl, field="lease_ttl")
        self._filters = {
            "capabilities": check_str_list(capabilities, "capabilities"),
            "accept_types": check_str_list(accept_types, "accept_types"),
        }
        self._poll = self._or_default(poll, self._lease_next, "poll", "most")
        self._renew = self._or_default(renew, self._renew_lease, "renew", "job")
        self._active: dict[str, Job] = {}
        self._runs: dict[Job, _Run] = {}
        self._slots = _Slots(max_concurrent_jobs)
        self._reader = Reader()
        self._gave_too_many = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._deliveries: set[asyncio.Task[None]] = set()
        self._handlers, self._tools = Caller(self._most), Caller(TOOL_THREADS)
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._over = asyncio.Event()
        self._over.set()

    def _or_default(self, function: F | None, default: F, field: str, takes: str) -> F:
        if function is None:
            return default
        if not is_async(function) and not (self._plain_tools and callable(function)):
            hint = f"make it an `async def` of ({takes}), or leave it out for the broker's tool"
            raise ConfigError(f"must be an async function, got {shown(function)}", field=field, hint=hint)
        return function

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
        self._handlers, self._tools = Caller(self._most), Caller(TOOL_THREADS)
        name = f"{self.worker_id}-{new_id()[:8]}"
        heartbeat = self._client.heartbeat(name, slots=self._most, running=lambda: len(self._active), obey=self._obey)
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
        if command == "stop":
            self._drain, self._drained_at = 0, self._clock.monotonic()
        self._stopping.set()
        self._changed.set()

    async def stop(self, *, drain_timeout: Duration | None = None) -> None:
        """Poll no more, let jobs finish within `drain_timeout`, cancel the others, and wait for all that.

        A second call may set the time that is left: 0 cancels the jobs at once. A handler that calls it is not waited
        for.
        """
        if drain_timeout is not None:
            self._drain = parse(drain_timeout, field="drain_timeout")
            self._drained_at = self._clock.monotonic() + self._drain
        self._stopping.set()
        self._changed.set()
        if not in_handler(self):
            await self._over.wait()

    # --- polling ---

    async def _poll_until_stopped(self) -> None:
        pause = self._interval
        while not self._stopping.is_set():
            self._changed.clear()
            free = self._slots.free
            claimed = 0
            if free > 0:
                answer, error = await self._ask(free)
                if error is None:
                    claimed = self._claim(answer, free)
                    pause = self._interval
                else:
                    pause = min(max(pause * 2, _retry_after(error)), max(LONGEST_PAUSE, self._interval))
                    log(logger, logging.WARNING, f"cannot ask for work, again in {pause} ms: {error_text(error)}")
            # If there may be more work than slots, the next free slot polls at once.
            full = claimed >= free
            await self._pause(LONGEST_PAUSE if full else pause, until_free=full)

    async def _ask(self, free: int) -> Called:
        """A poll that hangs does not hold up the stop: it is cancelled, or left behind if it runs in a thread."""

        def ended(called: Called) -> None:
            if asking.cancelled():
                log_late_jobs(called.value)

        plain = None if is_async(self._poll) else partial(self._poll, free)
        call = self._tools(self._poll, free) if plain is None else self._tools.in_thread(plain, ended)
        asking = asyncio.get_running_loop().create_task(call, name="poll")
        stopped = asyncio.get_running_loop().create_task(self._stopping.wait(), name="stop of the poller")
        try:
            await asyncio.wait({asking, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            if not asking.done():
                log(logger, logging.INFO, STOPPED)
                asking.cancel()
                asking.add_done_callback(lambda task: None if task.cancelled() else log_late_jobs(task.result().value))
        return asking.result() if asking.done() else Called(None, None)

    def _claim(self, answer: Any, free: int) -> int:
        """How many jobs began. What is not a job, or is active already, is not a sign of more work."""
        jobs = {job.lease_id: job for job in self._reader.jobs(answer) if job.lease_id not in self._active}
        if len(jobs) > free and not self._gave_too_many:
            self._gave_too_many = True
            log(logger, logging.WARNING, f"asked for {free} jobs, the broker gave {len(jobs)}: some wait for a slot")
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

    async def _lease_next(self, free: int) -> Any:
        asked: dict[str, Any] = {"worker_id": self.worker_id, "max_tasks": free}
        asked |= {name: value for name, value in self._filters.items() if value}
        if self._ttl is not None:
            asked["lease_ttl_seconds"] = max(1, self._ttl // 1000)
        return await self._client.call("asyncgate.lease_next", asked)

    async def _renew_lease(self, job: Job) -> object:
        asked: dict[str, Any] = {"worker_id": self.worker_id, "task_id": job.task_id, "lease_id": job.lease_id}
        if self._ttl is not None:
            asked["extend_by_seconds"] = max(1, self._ttl // 1000)
        return await self._client.call("asyncgate.renew_lease", asked)

    # --- one job ---

    def _job_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log(logger, logging.ERROR, f"{task.get_name()} ends without a receipt; its lease expires", trace=error)

    async def _job(self, job: Job, slot: asyncio.Future[bool]) -> None:
        keeper = asyncio.get_running_loop().create_task(self._keep_lease(job), name=f"lease {job.lease_id}")
        sent = ""
        try:
            receipt = await self._work(job) if await slot else self._undone(job)
            sent = await self._submit(job, receipt)
        finally:
            del self._active[job.lease_id]
            delivery = asyncio.get_running_loop().create_task(self._deliver(sent, keeper), name=f"receipt {sent}")
            self._deliveries.add(delivery)
            delivery.add_done_callback(self._deliveries.discard)
            self._changed.set()

    async def _deliver(self, sent: str, keeper: asyncio.Task[None]) -> None:
        """The lease is extended until the broker has the receipt, or has refused it."""
        try:
            if sent:
                with suppress(RedriveError):
                    await self._client.wait(sent)
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)

    async def _work(self, job: Job) -> Receipt:
        """Runs the handler; gives the final receipt."""
        # Durable, and not waited for: a slow broker does not delay the work.
        with suppress(RedriveError):
            await self._client.submit(self._receipts.running(job, self._clock.now()))
        call = asyncio.get_running_loop().create_task(self._call(job), name=f"handler of {job.lease_id}")
        run = self._runs[job] = _Run(call, in_thread=not is_async(self._handler))
        if job.cancel_requested:  # before the handler could be cancelled
            run.interrupt()
        try:
            if not await self._clock.wait(run.changed, self._timeout):
                self._cancel(job, JOB_TIMEOUT)
            if not run.done.is_set() and not await self._clock.wait(run.done, LETTING_GO):
                log(logger, logging.WARNING, f"the handler of {job.lease_id} does not end, though it was asked to")
                run.abandon()
        finally:
            del self._runs[job]
        return self._final(job, run.task)

    async def _call(self, job: Job) -> Called:
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

    def _final(self, job: Job, task: asyncio.Task[Called]) -> Receipt:
        now, why = self._clock.now(), job.cancel_requested
        cancelled = Called(None, asyncio.CancelledError("the handler was cancelled"))
        value, error = task.result() if task.done() and not task.cancelled() else cancelled
        if why == JOB_TIMEOUT:
            seconds = self._timeout / 1000
            return self._receipts.failed(job, now, JOB_TIMEOUT, f"the job took longer than {seconds:g} seconds")
        if error is None:
            return self._receipts.returned(job, now, value)
        if why:
            return self._undone(job)
        if isinstance(error, asyncio.CancelledError | concurrent.futures.CancelledError):
            return self._receipts.raised(job, now, cancelled.error or error)
        log(logger, logging.ERROR, f"the handler of {job.lease_id} failed: {error_text(error)}", trace=error)
        return self._receipts.raised(job, now, error)

    def _undone(self, job: Job) -> Receipt:
        """Another worker can do it: the job itself did not fail."""
        why = job.cancel_requested
        message = "the worker shut down" if why == SHUTDOWN_CANCELLED else "the lease was lost"
        return self._receipts.failed(job, self._clock.now(), why, message, retryable=True)

    async def _submit(self, job: Job, receipt: Receipt) -> str:
        """Its id, when it is durable. A store that fails is asked again, without limit."""
        pause, longest = STORE_PAUSES
        while True:
            try:
                return await self._client.submit(receipt)
            except PayloadError as error:
                message = f"{UNSENDABLE}{error.message}"
                receipt = self._receipts.failed(job, self._clock.now(), HANDLER_ERROR, message)
            except (StoreError, QueueFull) as error:
                log(logger, logging.ERROR, f"the receipt of {receipt.lease_id} is not durable yet: {error}")
            await self._clock.sleep(pause)
            pause = min(pause * 2, longest)

    async def _keep_lease(self, job: Job) -> None:
        pause, quiet_until = self._renewal, 0
        while True:
            await self._clock.sleep(pause)
            pause = self._renewal
            _, error = await self._tools(self._renew, job)
            if error is None:
                continue
            lost, now = is_lease_lost(error), self._clock.monotonic()
            if lost or now >= quiet_until:  # logged at most once in an interval
                quiet_until = now + self._renewal
                log(logger, logging.WARNING, f"cannot prolong lease {job.lease_id}: {error_text(error)}")
            if lost:
                self._cancel(job, LEASE_LOST)
                return
            pause = max(1, self._renewal // RENEW_AGAIN)

    def _cancel(self, job: Job, why: str) -> None:
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
        # Receipts are durable: their delivery needs no lease.
        for delivery in self._deliveries:
            delivery.cancel()
        if self._deliveries:
            await asyncio.wait(set(self._deliveries))
        self._handlers.close()
        self._tools.close()


_handled_by: ContextVar[WorkPoller] = ContextVar("redrive_poller")


def in_handler(poller: WorkPoller) -> bool:
    """Whether a handler of the poller is the caller."""
    return _handled_by.get(None) is poller


class _Run:
    """A handler that runs. `changed`: it has ended, or was asked to."""

    def __init__(self, task: asyncio.Task[Called], *, in_thread: bool) -> None:
        self.task = task
        self.done = asyncio.Event()
        self.changed = asyncio.Event()
        self._in_thread = in_thread
        task.add_done_callback(self._ended)

    def _ended(self, _: object) -> None:
        self.done.set()
        self.changed.set()

    def interrupt(self) -> None:
        """A handler in a thread sees it in its job."""
        self.changed.set()
        if not self._in_thread:
            self.task.cancel()

    def abandon(self) -> None:
        """Do not wait for the thread. A handler in the loop was cancelled before."""
        if self._in_thread:
            self.task.cancel()


class _Slots:
    """Slots for handlers. A job that was claimed beyond them waits for one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._busy = 0
        self.waiting: dict[Job, asyncio.Future[bool]] = {}

    @property
    def free(self) -> int:
        """Less than 0 if jobs wait."""
        return self._most - self._busy - len(self.waiting)

    def take(self, job: Job) -> asyncio.Future[bool]:
        """True when the job has its slot, False if it was refused one."""
        self.waiting[job] = asyncio.get_running_loop().create_future()
        slot = self.waiting[job]
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

    def refuse(self, job: Job) -> None:
        slot = self.waiting.pop(job, None)
        if slot is not None and not slot.done():
            slot.set_result(False)


def _retry_after(error: BaseException) -> Millis:
    seconds = getattr(error, "retry_after", None)
    return round(seconds * 1000) if isinstance(seconds, int | float) else 0


def _worker_name(given: object) -> str:
    if given is None:
        return f"{platform.node()}-{os.getpid()}"
    if not isinstance(given, str) or not is_name(given):
        text = f"must be a printable string of 1 to {NAME_LIMIT} characters, got {shown(given)}"
        raise ConfigError(text, field="worker_id", hint="leave it out for host and process")
    return given


def check_str_list(given: object, field: str) -> list[str]:
    """A string alone would be taken for as many words as it has letters."""
    if not isinstance(given, str | bytes | Mapping) and isinstance(given, Iterable):
        found = list(given)
        if all(isinstance(each, str) and each.strip() for each in found):
            return found
        given = found
    text = f"must be a list of non-empty strings, got {shown(given)}"
    raise ConfigError(text, field=field, hint='use a list such as ["ocr"]')
