"""The same names for programs without an event loop: `from redrive.receipts.blocking import ReceiptClient`, no `await`.

    with ReceiptClient("https://broker.example", "sqlite:///redrive.db") as client:
        delivered = client.send_receipt({"lease_id": ..., "task_id": ..., "worker_id": ..., "status": "complete"})

Receipts are delivered by an event loop in a thread of its own. All threads of a process may share a client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec

from redrive.blocking.door_facade import Facade, blocking, like
from redrive.blocking.loop_thread import LoopThreadHost
from redrive.core.durations import Duration
from redrive.receipts import client as asynchronous
from redrive.receipts import dead_letters as letters
from redrive.receipts import poller
from redrive.receipts.jobs import Job
from redrive.receipts.metrics import ReceiptMetrics
from redrive.receipts.model import Receipt

__all__ = ["AsyncGateClient", "DeadLetterQueue", "Job", "Receipt", "ReceiptClient", "ReceiptMetrics", "WorkPoller"]

P = ParamSpec("P")
DOOR = "redrive.receipts"


class DeadLetterQueue(Facade[letters.DeadLetterQueue]):
    """All as in `redrive.receipts.DeadLetterQueue`, without `await`."""

    @like(letters.DeadLetterQueue.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._attach(letters.DeadLetterQueue(*args, **kwargs), door=DOOR)

    @like(letters.DeadLetterQueue.close)
    def close(self) -> None:
        super().close()

    store = blocking(letters.DeadLetterQueue.store)
    load = blocking(letters.DeadLetterQueue.load)
    load_file = blocking(letters.DeadLetterQueue.load_file)
    size = blocking(letters.DeadLetterQueue.size)
    get_all = blocking(letters.DeadLetterQueue.get_all)
    remove = blocking(letters.DeadLetterQueue.remove)
    import_ = blocking(letters.DeadLetterQueue.import_)


class _View(DeadLetterQueue):
    """The dead letters of a client that is open."""

    def __init__(self, behind: letters.DeadLetterQueue, host: LoopThreadHost) -> None:
        self._attach(behind, host=host)


class _Behind(asynchronous.ReceiptClient):
    _entered_by = "with client:"


class ReceiptClient(Facade[asynchronous.ReceiptClient]):
    """A client of one target, on one store, for programs without an event loop.

    All as in `redrive.receipts.ReceiptClient`; a transport of your own is an async function here too.
    """

    @like(asynchronous.ReceiptClient.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        client = _Behind(*args, **kwargs)
        self._attach(client, door=DOOR)
        self.queue, self.tenant_id, self.receipts_file = client.queue, client.tenant_id, client.receipts_file
        self.metrics: ReceiptMetrics = client.metrics

    @like(asynchronous.ReceiptClient.close)
    def close(self) -> None:
        super().close()

    send_receipt = blocking(asynchronous.ReceiptClient.send_receipt)
    send_receipt_with_retry = blocking(asynchronous.ReceiptClient.send_receipt_with_retry)
    submit = blocking(asynchronous.ReceiptClient.submit)
    wait = blocking(asynchronous.ReceiptClient.wait)
    recover = blocking(asynchronous.ReceiptClient.recover)
    deliver = blocking(asynchronous.ReceiptClient.deliver)
    call = blocking(asynchronous.ReceiptClient.call)

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


def _on_blocking_client(
    made: Callable[Concatenate[Any, asynchronous.ReceiptClient, P], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, ReceiptClient, P], None]]:
    """The signature of the async poller, with a client of this module."""
    return wraps(made)


class WorkPoller:
    """All as in `redrive.receipts.WorkPoller`; `poll` and `renew` may be plain functions here.

    Ctrl-C and SIGTERM stop `run`: the first lets jobs finish, the second cancels them.
    """

    @_on_blocking_client(poller.WorkPoller.__init__)
    def __init__(self, client: ReceiptClient, *args: Any, **kwargs: Any) -> None:
        self._host = client._host  # noqa: SLF001 - of this module
        self._poller = _Poller(client._behind, *args, **kwargs)  # noqa: SLF001 - of this module
        self.worker_id = self._poller.worker_id

    @property
    def active(self) -> Mapping[str, Job]:
        """Jobs by lease, from the claim until the final receipt is durable."""
        return self._poller.active

    @like(poller.WorkPoller.run)
    def run(self) -> None:
        self._host.work(self._poller.run, self._poller.stop, partial(self._poller.stop, drain_timeout=0))

    @like(poller.WorkPoller.stop)
    def stop(self, *, drain_timeout: Duration | None = None) -> None:
        if self._poller.is_caller:
            self._host.begin(partial(self._poller.stop, drain_timeout=drain_timeout))
        else:
            self._host.call(self._poller.stop, drain_timeout=drain_timeout)
