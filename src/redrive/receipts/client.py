"""Sends receipts: durable before the first try, tried by its own schedule, and kept as a letter if nothing helps."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Literal, Self

from redrive.app import Redrive
from redrive.app.internals import Store, set_write_hook
from redrive.core.durations import Duration, parse
from redrive.core.item import Item
from redrive.core.quantity import shown
from redrive.core.rates import RateText
from redrive.engine.heartbeat import Heartbeat
from redrive.errors import (
    AppClosed,
    ConfigError,
    RedriveError,
)
from redrive.office import doors
from redrive.office.settings import GateOptions
from redrive.receipts import receipts_json
from redrive.receipts._delivery import POLICY, Delivery, retries
from redrive.receipts._inside import Inside
from redrive.receipts._outbox import Outbox
from redrive.receipts._overtaken import Overtaken
from redrive.receipts._waiting import state_of
from redrive.receipts.dead_letters import DeadLetterQueue
from redrive.receipts.metrics import ReceiptMetrics
from redrive.receipts.model import Envelope, Receipt, check_sendable, check_tenant, check_terms, item_id
from redrive.receipts.receipts_file import ReceiptsFile
from redrive.receipts.recovery import Recovery
from redrive.receipts.recovery import recover as recover_letters
from redrive.receipts.transports import Deliver, Mcp, check_endpoint, transport_for
from redrive.stores.clock import Clock, SystemClock
from redrive.stores.url import store_from_url

ANOTHER = "make a new ReceiptClient"
KEPT = "it is durable; the next client that is opened on this store delivers it"


class ReceiptClient:
    """A client of one target, on one store.

    `transport` is "mcp" (tool calls, at the endpoint's /mcp), "http" (plain POST) or an async function of (receipt,
    key, tenant_id). A receipt is tried `max_receipt_retries` times, with waits of `backoff_base` to the power of the
    tries so far, in seconds. `breaker`: stop trying while the target is down, for all clients of the store; True, or
    options of a gate. `receipts_file`: a receipts.json that is imported and then kept equal to the open dead letters.
    `close` lets attempts end for `grace`. Without `work` this client delivers by `recover` only.
    """

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
        check_terms(max_receipt_retries, backoff_base, jitter, name="max_receipt_retries")
        limit = parse(timeout, field="timeout")
        if limit < 1:
            raise ConfigError(f"must be greater than 0, got {timeout!r}", field="timeout", hint="use 30s")
        self.queue = queue
        self.tenant_id = check_tenant(tenant_id)
        self.receipts_file = None if receipts_file is None else _path(receipts_file)
        self.metrics = ReceiptMetrics(metrics_prefix)
        self.clock: Clock = SystemClock() if clock is None else clock
        self._terms = max_receipt_retries, backoff_base, jitter
        self._grace = parse(grace, field="grace")
        self._works = work
        self._store = store_from_url(store, clock=clock) if isinstance(store, str) else store
        self.app = Redrive(self._store, log=log, actor=actor, clock=clock, traceback=callable(transport))
        """The app inside. It has the letters, the audit and all else; it is open while the client is."""
        gate = self._declare_gate(breaker, endpoint, transport)
        self.app.queue(queue, order="skip")
        declare = self.app.handler(queue, policy=POLICY, concurrency=concurrency, gate=gate)
        self._transport = transport_for(
            transport, endpoint, auth_token=auth_token, timeout=limit, connections=concurrency
        )
        self._delivery = Delivery(self._transport, self._store, queue, self.metrics)
        self._overtaken = Overtaken(self.app, queue, self.metrics)
        declare(self._handle)
        self._outbox = Outbox(self.app, self._store, queue, self.clock, delivery=self._delivery, metrics=self.metrics)
        self._waiting = self._outbox.waiting
        set_write_hook(self.app, self._outbox.writing)
        self._tasks: list[asyncio.Task[None]] = []
        self._file: ReceiptsFile | None = None
        self._state = "new"
        self._door = asyncio.Lock()
        self._inside = Inside()

    def _declare_gate(
        self, breaker: GateOptions | Literal[True, False], endpoint: str | None, transport: str | Deliver
    ) -> str | None:
        if breaker is False:
            return None
        if breaker is not True and not isinstance(breaker, Mapping):
            raise ConfigError(f"{shown(breaker)} is none", field="breaker", hint="use True, False or options of a gate")
        target = self.queue if callable(transport) else check_endpoint(endpoint, mcp=transport == "mcp")
        name = f"receipts:{target.partition('?')[0].partition('://')[2] or target}"[:128]
        return self.app.gate(name, **({} if breaker is True else breaker))

    # --- life ---

    async def open(self) -> Self:
        async with self._door:
            if self._state == "closed":
                raise AppClosed("this client was closed", hint=ANOTHER)
            if self._state == "new":
                await self._open()
                self._state = "open"
        return self

    async def _open(self) -> None:
        """Nobody will close what could not be opened."""
        await self._transport.open()
        try:
            await self.app.open()
        except BaseException:
            await self._transport.close()
            raise
        try:
            await self._begin()
        except BaseException:
            self._state = "closed"
            await self._end()
            raise

    async def _begin(self) -> None:
        letters = self.dead_letters
        await letters.load()
        await doors.mark(self._store, self.queue, "receipts")
        await self.metrics.open(self.app, self.queue)
        self.app.events.subscribe(self._outbox.hear)
        self._tasks = [asyncio.create_task(self._waiting.run())]
        if self._works:
            work = asyncio.create_task(self.app.run(grace=self._grace / 1000))
            work.add_done_callback(self._worker_ended)
            self._tasks.append(work)
        if self.receipts_file is not None:
            path = receipts_json.check_path(self.receipts_file)
            self._file = ReceiptsFile(self.app, self.queue, path, letters.load)
            await self._file.open()

    async def close(self) -> None:
        """Lets tries end within `grace`; what is not delivered stays durable. May be called twice."""
        async with self._door:
            if self._state == "open":
                self._state = "closed"
                await self._end()

    async def _end(self) -> None:
        self._waiting.close(AppClosed("the client was closed", hint=KEPT))
        try:
            if self._tasks:
                await self.app.stop()
                await self._overtaken.close(self._grace)
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

    async def __aenter__(self) -> Self:
        await self.open()
        self._inside.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._inside.leave():
            await self.close()

    def _worker_ended(self, work: asyncio.Task[None]) -> None:
        """While the client is open that is an operator's order, or a fault of ours: nobody may wait in vain."""
        error = None if work.cancelled() else work.exception()
        why = "was stopped" if error is None else f"ended: {type(error).__name__}: {error}"
        over = error if isinstance(error, RedriveError) else AppClosed(f"the worker of this client {why}", hint=KEPT)
        if self._state == "open":
            self._waiting.close(over)

    def _check_open(self) -> None:
        if self._state == "closed":
            raise AppClosed("the client was closed; nothing was written", hint=ANOTHER)
        if self._state != "open":
            hint = f"use it inside `{self._entered_by}`"
            raise AppClosed("the client is not open; nothing was written", hint=hint)

    # --- sending ---

    async def send_receipt(self, receipt: Receipt | Mapping[str, Any]) -> bool:
        """True: the target has it. False: it is a dead letter now, or not owed any more (superseded).

        Durable before the first try: whoever is killed or gives up meanwhile loses nothing. The same receipt sent again
        is the same delivery; one that is dead is tried anew. Raises InvalidReceipt, and StoreError if it could not be
        written down.
        """
        return await self.send_receipt_with_retry(receipt)

    async def send_receipt_with_retry(
        self, receipt: Receipt | Mapping[str, Any], max_retries: int | None = None, backoff_base: float | None = None
    ) -> bool:
        """As `send_receipt`, with a schedule of its own: so many tries, and the base of the waits in seconds."""
        if not self._works:
            hint = "submit it, or make the client without work=False"
            raise ConfigError("nobody would deliver it here", field="work", hint=hint)
        sent = self._envelope(receipt, max_retries, backoff_base)
        chosen = item_id(self.queue, self.tenant_id, sent[0])
        waiting = self._waiting.begin(chosen)
        try:
            put = await self._outbox.put(*sent, chosen)
            if put != chosen:
                self._waiting.give_up(chosen, waiting)
                chosen, waiting = put, self._waiting.begin(put)
                await self._waiting.look([put])
            return await waiting.future
        finally:
            self._waiting.give_up(chosen, waiting)

    async def submit(
        self, receipt: Receipt | Mapping[str, Any], *, max_retries: int | None = None, backoff_base: float | None = None
    ) -> str:
        """Durable when it returns, delivered in the background. The id is for `wait`, and is its idempotency key."""
        sent = self._envelope(receipt, max_retries, backoff_base)
        return await self._outbox.put(*sent, item_id(self.queue, self.tenant_id, sent[0]))

    async def wait(self, id: str) -> bool:
        """What `send_receipt` would say of a receipt that was submitted. Raises NotFound."""
        self._check_open()
        waiting = self._waiting.begin(id)
        try:
            await state_of(self._store, id)
            await self._waiting.look([id])
            return await waiting.future
        finally:
            self._waiting.give_up(id, waiting)

    def _envelope(
        self, given: Receipt | Mapping[str, Any], max_retries: int | None, backoff_base: float | None
    ) -> tuple[Receipt, Envelope, str]:
        self._check_open()
        usual, base, jitter = self._terms
        # Not by truth: a 0 is a mistake to be told, not a default.
        tries = usual if max_retries is None else max_retries
        base = base if backoff_base is None else backoff_base
        if max_retries is not None or backoff_base is not None:
            check_terms(tries, base)
        receipt = check_sendable(Receipt.of(given))
        envelope = Envelope(receipt=receipt.to_dict(), tenant_id=self.tenant_id)
        return receipt, envelope, retries(tries, float(base), jitter)

    async def _handle(self, item: Item) -> None:
        if not item.gap:
            await self._delivery.handle(item)
            return
        with self._overtaken.after(item):
            await self._delivery.handle(item)

    # --- letters ---

    @property
    def dead_letters(self) -> DeadLetterQueue:
        """Receipts that could not be delivered."""
        return DeadLetterQueue.of(self.app, queue=self.queue, tenant_id=self.tenant_id, storage_path=self.receipts_file)

    async def recover(
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
        self._check_open()
        return await recover_letters(
            self,
            reason=reason,
            dry_run=dry_run,
            limit=limit,
            pace=pace,
            concurrency=concurrency,
            on_progress=on_progress,
            stop=stop,
        )

    async def deliver(self, item: Item) -> None:
        """One try of an item that the caller holds. Raises ReceiptError, or PayloadUndecodable."""
        self._check_open()
        await self._delivery.deliver(item)

    # --- pollers ---

    def heartbeat(
        self, worker: str, *, slots: int, running: Callable[[], int], obey: Callable[[str], None]
    ) -> Heartbeat:
        """Of a poller that uses this client: `redrive worker list` shows it, `drain` and `stop` reach it."""
        return Heartbeat(
            worker,
            self._store,
            queues=lambda: (),
            slots=slots,
            running=running,
            obey=obey,
            events=self.app.events,
            clock=self.clock,
        )

    # --- the target's tools ---

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Any:
        """Call a tool of an MCP target, once: what it gave, read as JSON where it is that. Raises ReceiptError."""
        self._check_open()
        if not isinstance(self._transport, Mcp):
            raise ConfigError(f"it cannot call {tool}", field="transport", hint='use transport="mcp"')
        own = {} if self.tenant_id is None else {"tenant_id": self.tenant_id}
        return await self._transport.call(tool, {**own, **arguments})


AsyncGateClient = ReceiptClient


def _path(path: object) -> str:
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(f"{shown(path)} is not a path", field="receipts_file", hint="use a text or a pathlib.Path")
    return str(path)
