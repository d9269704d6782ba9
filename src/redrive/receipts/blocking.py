"""The same names for programs without an event loop: `from redrive.receipts.blocking import ReceiptClient`, no `await`.

    with ReceiptClient("https://broker.example", "sqlite:///redrive.db") as client:
        delivered = client.send_receipt({"lease_id": ..., "task_id": ..., "worker_id": ..., "status": "complete"})

Receipts are delivered by an event loop in a thread of its own. All threads of a process may share a client.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from redrive.blocking.loop_thread import LoopThreadHost
from redrive.core.durations import Duration
from redrive.receipts import client as asynchronous
from redrive.receipts import dead_letters as letters
from redrive.receipts import poller
from redrive.receipts._lifecycle import Nesting
from redrive.receipts.jobs import Job
from redrive.receipts.metrics import ReceiptMetrics
from redrive.receipts.model import Receipt
from redrive.receipts.poller import Handler

__all__ = ["AsyncGateClient", "DeadLetterQueue", "Job", "Receipt", "ReceiptClient", "ReceiptMetrics", "WorkPoller"]

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A", asynchronous.ReceiptClient, letters.DeadLetterQueue)
Poll = Callable[[int], Any]
"""As in `redrive.receipts.poller`, plain or async."""
Renew = Callable[[Job], Any]


def _blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """The method with the same signature and docstring, run in the loop thread."""
    name = method.__name__

    @wraps(method)
    def call(facade: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = facade._host.call(getattr(facade._behind, name), *args, **kwargs)  # noqa: SLF001 - of this module
        return result

    return call


def _as(
    made: Callable[Concatenate[Any, P], object],
) -> Callable[[Callable[..., T]], Callable[Concatenate[Any, P], T]]:
    """Gives a method the signature and docstring of another one."""
    return wraps(made)


class _Facade(Generic[A]):
    """`behind` is opened, used and closed in the loop thread; a view (`own` False) is neither opened nor closed."""

    _behind: A
    _host: LoopThreadHost

    def _attach(self, behind: A, host: LoopThreadHost | None = None) -> None:
        instead = "import from redrive.receipts, and `await` {name}(...)"
        self._behind, self._own, self._nesting = behind, host is None, Nesting()
        self._host = host or LoopThreadHost(behind, what="{name} of redrive.receipts.blocking", instead=instead)

    def open(self) -> Self:
        if self._own:
            self._host.open(self._behind.open)
        return self

    def close(self) -> None:
        if self._own:
            self._host.close(self._behind.close)

    def __enter__(self) -> Self:
        self.open()
        self._nesting.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._nesting.leave():
            self.close()


class DeadLetterQueue(_Facade[letters.DeadLetterQueue]):
    """All as in `redrive.receipts.DeadLetterQueue`, without `await`."""

    @_as(letters.DeadLetterQueue.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._attach(letters.DeadLetterQueue(*args, **kwargs))

    @_as(letters.DeadLetterQueue.close)
    def close(self) -> None:
        super().close()

    store = _blocking(letters.DeadLetterQueue.store)
    load = _blocking(letters.DeadLetterQueue.load)
    load_file = _blocking(letters.DeadLetterQueue.load_file)
    size = _blocking(letters.DeadLetterQueue.size)
    get_all = _blocking(letters.DeadLetterQueue.get_all)
    remove = _blocking(letters.DeadLetterQueue.remove)
    import_ = _blocking(letters.DeadLetterQueue.import_)


class _View(DeadLetterQueue):
    """The dead letters of a client that is open."""

    def __init__(self, behind: letters.DeadLetterQueue, host: LoopThreadHost) -> None:
        self._attach(behind, host)


class _Behind(asynchronous.ReceiptClient):
    _entered_by = "with client:"


class ReceiptClient(_Facade[asynchronous.ReceiptClient]):
    """A client of one target, on one store, for programs without an event loop.

    All as in `redrive.receipts.ReceiptClient`; a transport of your own is an async function here too.
    """

    @_as(asynchronous.ReceiptClient.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        client = _Behind(*args, **kwargs)
        self._attach(client)
        self.queue, self.tenant_id, self.receipts_file = client.queue, client.tenant_id, client.receipts_file
        self.metrics: ReceiptMetrics = client.metrics

    @_as(asynchronous.ReceiptClient.close)
    def close(self) -> None:
        super().close()

    send_receipt = _blocking(asynchronous.ReceiptClient.send_receipt)
    send_receipt_with_retry = _blocking(asynchronous.ReceiptClient.send_receipt_with_retry)
    submit = _blocking(asynchronous.ReceiptClient.submit)
    wait = _blocking(asynchronous.ReceiptClient.wait)
    recover = _blocking(asynchronous.ReceiptClient.recover)
    deliver = _blocking(asynchronous.ReceiptClient.deliver)
    call = _blocking(asynchronous.ReceiptClient.call)

    @property
    def dead_letters(self) -> DeadLetterQueue:
        """Receipts that could not be delivered."""
        return _View(self._behind.dead_letters, self._host)


AsyncGateClient = ReceiptClient


class _Poller(poller.WorkPoller):
    _plain_tools = True

    @property
    def is_caller(self) -> bool:
        """Whether a handler of this poller is the caller."""
        return self._poller.is_caller


class WorkPoller:
    """All as in `redrive.receipts.WorkPoller`; `poll` and `renew` may be plain functions here.

    Ctrl-C and SIGTERM stop `run`: the first lets jobs finish, the second cancels them.
    """

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
        self._host = client._host  # noqa: SLF001 - of this module
        self._poller = _Poller(
            client._behind,  # noqa: SLF001 - of this module
            handler,
            poll=poll,
            renew=renew,
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

    @_as(poller.WorkPoller.run)
    def run(self) -> None:
        self._host.work(self._poller.run, self._poller.stop, partial(self._poller.stop, drain_timeout=0))

    @_as(poller.WorkPoller.stop)
    def stop(self, *, drain_timeout: Duration | None = None) -> None:
        if self._poller.is_caller:
            self._host.begin(partial(self._poller.stop, drain_timeout=drain_timeout))
        else:
            self._host.call(self._poller.stop, drain_timeout=drain_timeout)
