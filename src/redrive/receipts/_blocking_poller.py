"""The poller for programs without an event loop: handlers are plain functions, each in a thread of its own."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from redrive.core.durations import Duration
from redrive.engine.threads import Threads
from redrive.receipts import poller
from redrive.receipts._asking import came_late
from redrive.receipts._work import called
from redrive.receipts.jobs import Job
from redrive.receipts.poller import Handler
from redrive.receipts.transports import is_async

if TYPE_CHECKING:
    from redrive.receipts.blocking import ReceiptClient

Poll = Callable[[int], Any]
"""At most so many jobs, in a list, each a mapping with lease_id, task_id and payload; plain or async."""
Renew = Callable[[Job], Any]
"""Prolongs the lease, or raises, ReceiptSuperseded if it is lost; plain or async."""


class WorkPoller:
    """All as in `redrive.receipts.WorkPoller`; `poll` and `renew` may be plain functions here."""

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
        asynchronous, self._house = client._lives_in()  # noqa: SLF001 - it is one of ours
        self._inside = threading.local()
        self._poller = poller.WorkPoller(
            asynchronous,
            self._marked(handler),
            poll=None if poll is None else _awaited(poll, came_late),
            renew=None if renew is None else _awaited(renew),
            worker_id=worker_id,
            polling_interval=polling_interval,
            max_concurrent_jobs=max_concurrent_jobs,
            heartbeat_interval=heartbeat_interval,
            job_timeout=job_timeout,
            drain_timeout=drain_timeout,
            lease_ttl=lease_ttl,
            capabilities=capabilities,
            accept_types=accept_types,
        )
        self.worker_id = self._poller.worker_id

    @property
    def active(self) -> Mapping[str, Job]:
        """Jobs by lease, from the claim until the final receipt is durable."""
        return self._poller.active

    def run(self) -> None:
        """Until `stop` is called. When it is cancelled, jobs are too; their receipts are durable before it ends.

        Ctrl-C and SIGTERM stop it: the first lets jobs finish, the second cancels them.
        """
        self._house.work(self._poller.run, self._poller.stop, partial(self._poller.stop, drain_timeout=0))

    def stop(self, *, drain_timeout: Duration | None = None) -> None:
        """Ask for no more work, let jobs finish within `drain_timeout`, cancel the others, and wait for all that.

        Whoever calls it again may say how long from then on: 0 cancels them at once. A handler that calls it is not
        waited for.
        """
        if getattr(self._inside, "handler", False):
            self._house.begin(partial(self._poller.stop, drain_timeout=drain_timeout))
        else:
            self._house.call(self._poller.stop, drain_timeout=drain_timeout)

    def _marked(self, handler: Handler) -> Handler:
        """A plain handler whose thread is known as one."""
        given: object = handler
        if inspect.iscoroutinefunction(given) or not callable(given):
            return handler  # what is no function is told by the poller itself

        def marked(job: Job) -> Any:
            self._inside.handler = True
            try:
                return handler(job)
            finally:
                self._inside.handler = False

        return marked


def _awaited(
    function: Callable[..., Any], left_behind: Callable[[Future[Any]], None] | None = None
) -> Callable[..., Awaitable[Any]]:
    """A plain function runs in a thread: it may take its time, and one that hangs does not hold up the end.

    `left_behind` gets the call that nobody waited for, when it has ended.
    """
    if is_async(function) or not callable(function):
        return function  # what is no function is told by the poller itself

    async def awaited(*args: Any) -> Any:
        thread = Threads(1)
        call = thread.submit(partial(called, function, *args))
        call.add_done_callback(lambda _: thread.close())
        try:
            return await asyncio.wrap_future(call)
        except asyncio.CancelledError:
            if left_behind is not None:
                call.add_done_callback(left_behind)
            raise

    return awaited
