"""The receipt client: a receipt is durable before the first attempt, retried by its schedule, else a dead letter."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from redrive.app import Redrive
from redrive.app.internals import Store, set_write_hook, store_of
from redrive.core.durations import Duration, parse, positive
from redrive.core.item import Item
from redrive.core.quantity import shown
from redrive.errors import AppClosed, ConfigError, RedriveError
from redrive.office import doors
from redrive.office.settings import GateOptions
from redrive.receipts import receipts_json
from redrive.receipts._delivery import POLICY, Delivery, retry_policy
from redrive.receipts._outbox import Outbox
from redrive.receipts._superseded import SupersededLetters
from redrive.receipts.dead_letters import DeadLetterQueue
from redrive.receipts.metrics import ReceiptMetrics
from redrive.receipts.model import Envelope, Receipt, check_sendable, check_tenant, check_terms, item_id
from redrive.receipts.receipts_file import ReceiptsFile
from redrive.receipts.recovery import Recovering
from redrive.receipts.transports import Deliver, Mcp, check_endpoint, transport_for
from redrive.stores.clock import Clock, SystemClock
from redrive.stores.url import store_from_url

DURABLE = "it is durable; the next client that is opened on this store delivers it"


class ReceiptClient(Recovering):
    """A client of one target, on one store.

    `transport` is "mcp" (tool calls, at the endpoint's /mcp), "http" (plain POST) or an async function of (receipt,
    key, tenant_id). A receipt has `max_receipt_retries` attempts, with waits of `backoff_base` to the power of the
    attempts so far, in seconds. `breaker`: a circuit breaker in the store; True, or options of a gate. `receipts_file`:
    a receipts.json that is imported and then kept equal to the open dead letters. `close` lets attempts end for
    `grace`. Without `work` this client delivers by `recover` only.
    """

    _noun, _again = "client", "make a new ReceiptClient"
    _entered_by = "async with client:"

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
        super().__init__()
        check_terms(max_receipt_retries, backoff_base, jitter, name="max_receipt_retries")
        limit = positive(timeout, field="timeout")
        self.queue = queue
        self.tenant_id = check_tenant(tenant_id)
        self.receipts_file = None
        if receipts_file is not None:
            self.receipts_file = str(receipts_json.check_path(receipts_file, "receipts_file"))
        self.metrics = ReceiptMetrics(metrics_prefix)
        self.clock: Clock = SystemClock() if clock is None else clock
        self._terms = max_receipt_retries, backoff_base, jitter
        self._grace = parse(grace, field="grace")
        self._works = work
        opened = store_from_url(store, clock=clock) if isinstance(store, str) else store
        self.app = Redrive(opened, log=log, actor=actor, clock=clock, traceback=callable(transport))
        """The app inside, with the letters, the audit and all else; it is open while the client is."""
        gate = self._declare_gate(breaker, endpoint, transport)
        self.app.queue(queue, order="skip")
        declare = self.app.handler(queue, policy=POLICY, concurrency=concurrency, gate=gate)
        declare(self._handle)
        self._transport = transport_for(
            transport, endpoint, auth_token=auth_token, timeout=limit, connections=concurrency
        )
        self._store = store_of(self.app)
        self._delivery = Delivery(self._transport, self._store, queue, self.metrics)
        self._superseded = SupersededLetters(self.app, queue, self.metrics)
        self._outbox = Outbox(self.app, queue, self.clock, delivery=self._delivery, metrics=self.metrics)
        self._waiting = self._outbox.waiting
        set_write_hook(self.app, self._outbox.writes)
        self._tasks: list[asyncio.Task[None]] = []
        self._file: ReceiptsFile | None = None

    def _declare_gate(
        self, breaker: GateOptions | Literal[True, False], endpoint: str | None, transport: str | Deliver
    ) -> str | None:
        if breaker is False:
            return None
        if breaker is not True and not isinstance(breaker, Mapping):
            raise ConfigError(f"must be a bool or a mapping, got {shown(breaker)}", field="breaker", hint="use True")
        target = self.queue if callable(transport) else check_endpoint(endpoint, mcp=transport == "mcp")
        name = f"receipts:{target.partition('?')[0].partition('://')[2] or target}"[:128]
        return self.app.gate(name, **({} if breaker is True else breaker))

    # --- lifecycle ---

    async def _open(self) -> None:
        await self._transport.open()
        try:
            await self.app.open()
        except BaseException:
            await self._transport.close()
            raise
        try:
            await self._start()
        except BaseException:
            self._state = "closed"
            await self._end()
            raise

    async def _start(self) -> None:
        letters = self.dead_letters
        if self.receipts_file is not None:
            await receipts_json.resolve(Path(self.receipts_file), "receipts_file")
        await letters.load()
        await doors.mark(self._store, self.queue, "receipts")
        await self.metrics.open(self.app, self.queue)
        self.app.events.subscribe(self._outbox.on_event)
        self._tasks = [asyncio.create_task(self._waiting.run())]
        if self._works:
            work = asyncio.create_task(self.app.run(grace=self._grace / 1000))
            work.add_done_callback(self._worker_ended)
            self._tasks.append(work)
        if self.receipts_file is not None:
            self._file = ReceiptsFile(self.app, self.queue, Path(self.receipts_file), letters.load)
            await self._file.open()

    async def close(self) -> None:
        """Lets attempts end within `grace`; receipts that are not delivered stay durable. May be called twice."""
        await super().close()

    async def _end(self) -> None:
        self._waiting.close(AppClosed("the client was closed", hint=DURABLE))
        try:
            if self._tasks:
                await self.app.stop()
                await self._superseded.close(self._grace)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._tasks = []
            if self._file is not None:
                await self._file.close()
            await self.metrics.close()
            await self.app.close()
            await self._transport.close()

    def _worker_ended(self, work: asyncio.Task[None]) -> None:
        """By an operator's command, or a defect: callers must not wait in vain."""
        error = None if work.cancelled() else work.exception()
        why = "was stopped" if error is None else f"ended: {type(error).__name__}: {error}"
        over = error if isinstance(error, RedriveError) else AppClosed(f"the worker of this client {why}", hint=DURABLE)
        if self._state == "open":
            self._waiting.close(over)

    # --- sending ---

    async def send_receipt(self, receipt: Receipt | Mapping[str, Any]) -> bool:
        """True: the target has it. False: it is a dead letter now, or superseded.

        Durable before the first attempt, also if the caller is killed or cancelled. The same receipt sent again is the
        same delivery; a dead one is retried. Raises InvalidReceipt, and StoreError if it could not be written.
        """
        return await self.send_receipt_with_retry(receipt)

    async def send_receipt_with_retry(
        self, receipt: Receipt | Mapping[str, Any], max_retries: int | None = None, backoff_base: float | None = None
    ) -> bool:
        """As `send_receipt`, with its own number of attempts and base of the waits in seconds."""
        if not self._works:
            hint = "use submit, or make the client without work=False"
            raise ConfigError("this client does not deliver receipts", field="work", hint=hint)
        sent = self._envelope(receipt, max_retries, backoff_base)
        chosen = item_id(self.queue, self.tenant_id, sent[0])
        waiter = self._waiting.begin(chosen)
        try:
            put = await self._outbox.put(*sent, chosen)
            if put != chosen:
                self._waiting.give_up(chosen, waiter)
                chosen, waiter = put, self._waiting.begin(put)
                await self._waiting.look([put])
            return await waiter
        finally:
            self._waiting.give_up(chosen, waiter)

    async def submit(
        self, receipt: Receipt | Mapping[str, Any], *, max_retries: int | None = None, backoff_base: float | None = None
    ) -> str:
        """Durable when it returns, delivered in the background. The id is for `wait`, and is its idempotency key."""
        sent = self._envelope(receipt, max_retries, backoff_base)
        return await self._outbox.put(*sent, item_id(self.queue, self.tenant_id, sent[0]))

    async def wait(self, id: str) -> bool:
        """The result that `send_receipt` would have for a receipt that was submitted. Raises NotFound."""
        self._check_open()
        return await self._waiting.wait(id)

    def _envelope(
        self, given: Receipt | Mapping[str, Any], max_retries: int | None, backoff_base: float | None
    ) -> tuple[Receipt, Envelope, str]:
        self._check_open()
        attempts, base, jitter = self._terms
        # A 0 is refused, and not replaced by the default.
        attempts = attempts if max_retries is None else max_retries
        base = base if backoff_base is None else backoff_base
        if max_retries is not None or backoff_base is not None:
            check_terms(attempts, base)
        receipt = check_sendable(Receipt.of(given))
        envelope = Envelope(receipt=receipt.to_dict(), tenant_id=self.tenant_id)
        return receipt, envelope, retry_policy(attempts, float(base), jitter)

    async def _handle(self, item: Item) -> None:
        if not item.gap:
            await self._delivery.handle(item)
            return
        with self._superseded.after(item):
            await self._delivery.handle(item)

    @property
    def dead_letters(self) -> DeadLetterQueue:
        """Receipts that could not be delivered."""
        return DeadLetterQueue.of(self.app, queue=self.queue, tenant_id=self.tenant_id, storage_path=self.receipts_file)

    async def deliver(self, item: Item) -> None:
        """One attempt, by the holder of the item. Raises ReceiptError, or PayloadUndecodable."""
        self._check_open()
        await self._delivery.deliver(item)

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Any:
        """Call a tool of an MCP target, once; gives its result, decoded if it is JSON. Raises ReceiptError."""
        self._check_open()
        if not isinstance(self._transport, Mcp):
            raise ConfigError(f"it cannot call {tool}", field="transport", hint='use transport="mcp"')
        own = {} if self.tenant_id is None else {"tenant_id": self.tenant_id}
        return await self._transport.call(tool, {**own, **arguments})


AsyncGateClient = ReceiptClient
