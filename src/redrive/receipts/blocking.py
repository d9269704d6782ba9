"""The same for programs without an event loop: `from redrive.receipts.blocking import ReceiptClient`, and no `await`.

    with ReceiptClient("https://broker.example", "sqlite:///redrive.db") as client:
        delivered = client.send_receipt({"lease_id": ..., "task_id": ..., "worker_id": ..., "status": "complete"})

Receipts are delivered by a loop in a thread of its own. All threads of a process may share a client.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from redrive.core.durations import Duration
from redrive.core.item import Item
from redrive.core.rates import RateText
from redrive.office.settings import GateOptions
from redrive.receipts import client as asynchronous
from redrive.receipts import dead_letters as letters
from redrive.receipts._blocking_poller import WorkPoller
from redrive.receipts._house import House
from redrive.receipts._inside import Inside
from redrive.receipts.dead_letters import DeadReceipt, Imported
from redrive.receipts.jobs import Job
from redrive.receipts.metrics import ReceiptMetrics
from redrive.receipts.model import Receipt
from redrive.receipts.receipts_json import Contents
from redrive.receipts.recovery import Recovery
from redrive.receipts.transports import Deliver
from redrive.stores.base import Store
from redrive.stores.clock import Clock

__all__ = ["AsyncGateClient", "DeadLetterQueue", "Job", "Receipt", "ReceiptClient", "ReceiptMetrics", "WorkPoller"]


class DeadLetterQueue:
    """Alone (`with DeadLetterQueue("sqlite:///redrive.db") as queue:`), or as `client.dead_letters`.

    `storage_path` is a receipts.json, or the folder that has one: it is imported when the queue is opened, once, and
    never written.
    """

    def __init__(
        self,
        store: str | Store = "sqlite:///redrive.db",
        *,
        queue: str = "receipts",
        tenant_id: str | None = None,
        storage_path: str | os.PathLike[str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._letters = letters.DeadLetterQueue(
            store, queue=queue, tenant_id=tenant_id, storage_path=storage_path, clock=clock
        )
        self._house = House(self._letters)
        self._own = True
        self._inside = Inside()

    @classmethod
    def _view(cls, view: letters.DeadLetterQueue, house: House) -> Self:
        made = cls.__new__(cls)
        made._letters, made._house, made._own = view, house, False  # noqa: SLF001 - it is one of ours
        made._inside = Inside()  # noqa: SLF001 - as above
        return made

    def open(self) -> Self:
        if self._own:
            self._house.move_in(self._letters.open)
        return self

    def close(self) -> None:
        """What is stored stays. May be called twice."""
        if self._own:
            self._house.move_out(self._letters.close)

    def __enter__(self) -> Self:
        self.open()
        self._inside.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._inside.leave():
            self.close()

    def store(
        self, receipt: Receipt | Mapping[str, Any], attempts: int = 0, error: BaseException | str | None = None
    ) -> str:
        """Keep a receipt that could not be delivered; durable when it returns. Gives its id.

        One that is here already stays as it is, or comes back if it was removed.
        """
        return self._house.call(self._letters.store, receipt, attempts, error)

    def load(self) -> int:
        """Import the file of `storage_path`, unless that was done before; how many came in."""
        return self._house.call(self._letters.load)

    def load_file(self) -> Imported | None:
        """As `load`, and what became of it in full; None if there is nothing new."""
        return self._house.call(self._letters.load_file)

    def size(self) -> int:
        """How many wait for recovery."""
        return self._house.call(self._letters.size)

    def get_all(self) -> list[DeadReceipt]:
        """Those that wait for recovery, first failed first."""
        return self._house.call(self._letters.get_all)

    def remove(self, key: str, *, reason: str = "removed") -> bool:
        """Into the trash: by id, or by lease id if only one has it (else Conflict). False if there is none."""
        return self._house.call(self._letters.remove, key, reason=reason)

    def import_(self, path: Path | None, contents: Contents, *, reason: str, dry_run: bool = False) -> Imported:
        """What can be read of a file. Ids are made of what the receipts say, so that a second time adds nothing.

        `path` None: it came from elsewhere, and there is no file to remember or to keep aside.
        """
        return self._house.call(self._letters.import_, path, contents, reason=reason, dry_run=dry_run)


class _InHouse(asynchronous.ReceiptClient):
    """What it says of itself is for whoever is outside."""

    _entered_by = "with client:"


class ReceiptClient:
    """A client of one target, on one store, for programs without an event loop.

    All as in `redrive.receipts.ReceiptClient`; a transport of your own is an async function here too.
    """

    def __init__(
        self,
        endpoint: str | None,
        store: str | Store = "sqlite:///redrive.db",
        *,
        transport: str | Deliver = "mcp",
        auth_token: str | None = None,
        tenant_id: str | None = None,
        max_receipt_retries: int = 5,
        backoff_base: float = 2.0,
        jitter: float = 0.0,
        timeout: Duration = "30s",
        concurrency: int = 50,
        queue: str = "receipts",
        breaker: bool | GateOptions = False,
        receipts_file: str | os.PathLike[str] | None = None,
        metrics_prefix: str = "redrive",
        grace: Duration = "5s",
        work: bool = True,
        actor: str | None = None,
        log: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self._client = _InHouse(
            endpoint,
            store,
            transport=transport,
            auth_token=auth_token,
            tenant_id=tenant_id,
            max_receipt_retries=max_receipt_retries,
            backoff_base=backoff_base,
            jitter=jitter,
            timeout=timeout,
            concurrency=concurrency,
            queue=queue,
            breaker=breaker,
            receipts_file=receipts_file,
            metrics_prefix=metrics_prefix,
            grace=grace,
            work=work,
            actor=actor,
            log=log,
            clock=clock,
        )
        self._house = House(self._client)
        self._inside = Inside()
        self.queue = self._client.queue
        self.tenant_id = self._client.tenant_id
        self.receipts_file = self._client.receipts_file
        self.metrics: ReceiptMetrics = self._client.metrics

    def open(self) -> Self:
        self._house.move_in(self._client.open)
        return self

    def close(self) -> None:
        """Lets tries end within `grace`; what is not delivered stays durable. May be called twice."""
        self._house.move_out(self._client.close)

    def __enter__(self) -> Self:
        self.open()
        self._inside.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._inside.leave():
            self.close()

    def send_receipt(self, receipt: Receipt | Mapping[str, Any]) -> bool:
        """True: the target has it. False: it is a dead letter now, or not owed any more (superseded).

        Durable before the first try: whoever is killed or gives up meanwhile loses nothing. The same receipt sent again
        is the same delivery; one that is dead is tried anew. Raises InvalidReceipt, and StoreError if it could not be
        written down.
        """
        return self._house.call(self._client.send_receipt, receipt)

    def send_receipt_with_retry(
        self, receipt: Receipt | Mapping[str, Any], max_retries: int | None = None, backoff_base: float | None = None
    ) -> bool:
        """As `send_receipt`, with a schedule of its own: so many tries, and the base of the waits in seconds."""
        return self._house.call(self._client.send_receipt_with_retry, receipt, max_retries, backoff_base)

    def submit(
        self, receipt: Receipt | Mapping[str, Any], *, max_retries: int | None = None, backoff_base: float | None = None
    ) -> str:
        """Durable when it returns, delivered in the background. The id is for `wait`, and is its idempotency key."""
        return self._house.call(self._client.submit, receipt, max_retries=max_retries, backoff_base=backoff_base)

    def wait(self, id: str) -> bool:
        """What `send_receipt` would say of a receipt that was submitted. Raises NotFound."""
        return self._house.call(self._client.wait, id)

    @property
    def dead_letters(self) -> DeadLetterQueue:
        """What could not be delivered, and waits for somebody."""
        return DeadLetterQueue._view(self._client.dead_letters, self._house)  # noqa: SLF001 - of this module

    def recover(
        self,
        *,
        reason: str = "recovery",
        dry_run: bool = False,
        limit: int | None = None,
        pace: RateText | None = None,
        concurrency: int = 1,
        on_progress: Callable[[int, int], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> Recovery:
        """Try each dead letter once more, where it lies: a crash leaves it dead. Stops when the target is unreachable.

        `limit` is how many are tried, `pace` how fast, as in "10/s". `on_progress` hears how many of how many were
        reached; `stop` is asked before each, and True leaves the rest.
        """
        return self._house.call(
            self._client.recover,
            reason=reason,
            dry_run=dry_run,
            limit=limit,
            pace=pace,
            concurrency=concurrency,
            on_progress=on_progress,
            stop=stop,
        )

    def _lives_in(self) -> tuple[asynchronous.ReceiptClient, House]:
        """The client that does the work, and the way to it."""
        return self._client, self._house

    def deliver(self, item: Item) -> None:
        """One try of an item that the caller holds. Raises ReceiptError, or PayloadUndecodable."""
        self._house.call(self._client.deliver, item)

    def call(self, tool: str, arguments: Mapping[str, Any]) -> Any:
        """Call a tool of an MCP target, once: what it gave, read as JSON where it is that. Raises ReceiptError."""
        return self._house.call(self._client.call, tool, arguments)


AsyncGateClient = ReceiptClient
