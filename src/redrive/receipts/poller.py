"""Polls a broker for work, runs it, and sends its receipts. A job ends when its final receipt is durable.

async def handle(job: Job) -> str:
    return f"{job.payload['pages']} pages read"

async with ReceiptClient("https://broker.example", auth_token=...) as client:
    await WorkPoller(client, handle, max_concurrent_jobs=4).run()      # until stop() is called
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from redrive.app.internals import store_of
from redrive.core.durations import Duration, parse, positive
from redrive.core.item import Millis
from redrive.core.quantity import shown
from redrive.core.validation import check_count, check_function, check_str_list
from redrive.engine.caller import Called, is_async
from redrive.engine.poller import JOB_TIMEOUT, SHUTDOWN_CANCELLED, Delivered, Poller, Times
from redrive.errors import ConfigError, PayloadError, RedriveError
from redrive.observe.logs import log
from redrive.receipts.client import ReceiptClient
from redrive.receipts.jobs import HANDLER_ERROR, UNSENDABLE, Job, Reader, ReceiptFactory, is_lease_lost, late, logger
from redrive.receipts.model import NAME_LIMIT, Receipt, is_name

F = TypeVar("F", bound=Callable[..., Any])
Handler = Callable[[Job], Any]
Poll = Callable[[int], Any]
"""Async: at most so many jobs, in a list, each a mapping with lease_id, task_id and payload."""
Renew = Callable[[Job], Any]
"""Async: extends the lease, or raises: ReceiptSuperseded if it is lost, anything else if it may still be valid."""


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
        check_function(handler, field="handler", hint="it takes a job", error=ConfigError)
        check_count(max_concurrent_jobs, field="max_concurrent_jobs", hint="use 1", error=ConfigError)
        self.worker_id = _worker_name(worker_id)
        times = Times(
            interval=positive(polling_interval, field="polling_interval"),
            renewal=positive(heartbeat_interval, field="heartbeat_interval"),
            timeout=positive(job_timeout, field="job_timeout"),
            drain=parse(drain_timeout, field="drain_timeout"),
        )
        ttl = None if lease_ttl is None else max(1, positive(lease_ttl, field="lease_ttl") // 1000)
        given = {"capabilities": capabilities, "accept_types": accept_types}
        hint = 'use a list such as ["ocr"]'
        filters = {name: check_str_list(value, field=name, hint=hint) for name, value in given.items()}
        broker = _Broker(client, self.worker_id, times.timeout, ttl, filters)
        broker.poll = self._or_default(poll, broker.poll, "poll", "most")
        broker.renew = self._or_default(renew, broker.renew, "renew", "job")
        self._poller = Poller(
            self.worker_id,
            handler,
            broker,
            slots=max_concurrent_jobs,
            times=times,
            store=store_of(client.app),
            events=client.app.events,
            clock=client.clock,
        )

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
        return self._poller.active

    async def run(self) -> None:
        """Until `stop` is called. When it is cancelled, jobs are too; their receipts are durable before it ends."""
        await self._poller.run()

    async def stop(self, *, drain_timeout: Duration | None = None) -> None:
        """Poll no more, let jobs finish within `drain_timeout`, cancel the others, and wait for all that.

        A second call may set the time that is left: 0 cancels the jobs at once. A handler that calls it is not waited
        for.
        """
        await self._poller.stop(None if drain_timeout is None else parse(drain_timeout, field="drain_timeout"))


class _Broker:
    """The source of the poller's jobs: the tools of the broker, or functions of the user, and receipts for it."""

    log = staticmethod(partial(log, logger))
    late = staticmethod(late)
    is_lost = staticmethod(is_lease_lost)

    def __init__(
        self, client: ReceiptClient, worker_id: str, timeout: Millis, ttl: int | None, filters: Mapping[str, list[str]]
    ) -> None:
        self._client = client
        self._receipts = ReceiptFactory(worker_id, client.clock)
        self._timeout = timeout
        self._ttl = ttl
        self._filters = {name: value for name, value in filters.items() if value}
        self.read = Reader().jobs
        self.poll: Callable[[int], Any] = self._lease_next
        self.renew: Callable[[Job], Any] = self._renew_lease

    async def _lease_next(self, free: int) -> Any:
        ttl = {} if self._ttl is None else {"lease_ttl_seconds": self._ttl}
        asked = {"worker_id": self._receipts.worker_id, "max_tasks": free, **self._filters, **ttl}
        return await self._client.call("asyncgate.lease_next", asked)

    async def _renew_lease(self, job: Job) -> object:
        ttl = {} if self._ttl is None else {"extend_by_seconds": self._ttl}
        asked = {"worker_id": self._receipts.worker_id, "task_id": job.task_id, "lease_id": job.lease_id, **ttl}
        return await self._client.call("asyncgate.renew_lease", asked)

    async def begin(self, job: Job) -> None:
        # Durable, and not waited for: a slow broker does not delay the work.
        with suppress(RedriveError):
            await self._client.submit(self._receipts.running(job))

    async def ended(self, job: Job, called: Called | None, why: str) -> Delivered:
        try:
            sent = await self._client.submit(self._final(job, called, why))
        except PayloadError as error:
            message = f"{UNSENDABLE}{error.message}"
            sent = await self._client.submit(self._receipts.failed(job, HANDLER_ERROR, message))
        return partial(self._client.wait, sent)

    def _final(self, job: Job, called: Called | None, why: str) -> Receipt:
        if why == JOB_TIMEOUT:
            text = f"the job took longer than {self._timeout / 1000:g} seconds"
            return self._receipts.failed(job, JOB_TIMEOUT, text)
        if called is not None and called.error is None:
            return self._receipts.returned(job, called.value)
        if called is not None and called.error is not None and not why:
            return self._receipts.raised(job, called.error)
        # Another worker can do it: the job itself did not fail.
        message = "the worker shut down" if why == SHUTDOWN_CANCELLED else "the lease was lost"
        return self._receipts.failed(job, why, message, retryable=True)


def _worker_name(given: object) -> str:
    if given is None:
        return f"{platform.node()}-{os.getpid()}"
    if not isinstance(given, str) or not is_name(given):
        text = f"must be a printable string of 1 to {NAME_LIMIT} characters, got {shown(given)}"
        raise ConfigError(text, field="worker_id", hint="leave it out for host and process")
    return given
