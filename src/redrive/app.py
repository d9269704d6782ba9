"""The application object: one store, its handlers, the client, the office and the workers, put together."""

from __future__ import annotations

import asyncio
import inspect
import os
import platform
import weakref
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from redrive.core.durations import Duration, parse
from redrive.core.filters import parse as parse_filter
from redrive.core.item import History, Item, Millis
from redrive.core.policy import Policy
from redrive.core.sizes import Size
from redrive.core.sizes import parse as parse_size
from redrive.core.verbs import (
    Act,
    Amended,
    Backup,
    Cancel,
    CauseTally,
    Checkup,
    QueueChange,
    StoreInfo,
    Tally,
    Tombstone,
    WorkerBeat,
)
from redrive.engine import deaths
from redrive.engine.client import Client
from redrive.engine.ids import ItemId, new_id
from redrive.engine.registry import Function, Handler, Registry, Signature, check_queue_name
from redrive.engine.runner import current
from redrive.engine.worker import Worker
from redrive.errors import AppClosed, ConfigError
from redrive.events import Events
from redrive.observe.logs import log_event
from redrive.office.letters import Letters, amend_in_chunks, check_actor, check_reason, check_several, default_actor
from redrive.stores.base import Store
from redrive.stores.clock import Clock, SystemClock
from redrive.stores.url import store_from_url

F = TypeVar("F", bound=Function)

MAX_PAYLOAD = 1024 * 1024
ASYNC_CONCURRENCY = 50
THREAD_CONCURRENCY = 8


class Redrive:
    """A durable work queue on one store.

    `store` is a URL (`memory:`, `sqlite:///file`) or a store object. `traceback=False` keeps frames out of evidence.
    """

    _entered_by = "async with app:"

    def __init__(
        self,
        store: str | Store = "sqlite:///redrive.db",
        *,
        max_payload: Size = MAX_PAYLOAD,
        traceback: bool = True,
        log: bool = True,
        actor: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        most = parse_size(max_payload, field="max_payload")
        if most < 1:
            raise ConfigError("nothing would fit", field="max_payload", hint="use 1 byte or more")
        self._frames = traceback
        self._max_payload = most
        self._registry = Registry()
        self._actor = check_actor(actor) if actor is not None else default_actor()
        self.events = Events()
        if log:
            self.events.subscribe(log_event)
        self._bind(_store(store, clock), clock or SystemClock())
        _apps.add(self)

    def _bind(self, store: Store, clock: Clock) -> None:
        """To its store; `redrive.testing` binds it to another one for as long as a test lasts."""
        self._store = store
        self._clock = clock
        self._stops: set[_Stop] = set()
        self._state = "new"
        self._door = asyncio.Lock()
        self._home: asyncio.AbstractEventLoop | None = None
        self._client = Client(store, self._registry, self.events, clock, self._max_payload)
        self._letters = Letters(store, self.events, actor=self._actor)

    # -- life ----------------------------------------------------------------------------------------------------

    async def open(self) -> Self:
        async with self._door:
            if self._state == "closed":
                raise AppClosed("this app was closed", hint="make a new Redrive")
            if self._state == "new":
                await self._store.open()
                self._state = "open"
                self._home = asyncio.get_running_loop()
                for queue in sorted(self._registry.declared):
                    await self._store.configure(queue, QueueChange())
        return self

    async def close(self) -> None:
        """Stops workers that still run, then lets go of the store. May be called twice."""
        async with self._door:
            if self._state == "open":
                await self._stop_workers(0)
                self._state = "closed"
                await self._store.close()
                self._home = None

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self._state != "open":
            what = "was closed" if self._state == "closed" else "is not open"
            raise AppClosed(f"the app {what}; nothing was written", hint=f"use it inside `{self._entered_by}`")

    def _forget_parent(self) -> None:
        """In a forked child: the parent's loop, its workers and whoever opens or closes there are not ours."""
        self._door = asyncio.Lock()
        self._home = None
        self._stops = set()

    # -- declaring -----------------------------------------------------------------------------------------------

    def queue(self, name: str) -> str:
        """Declare a queue that is handled elsewhere, so that this process may enqueue to it."""
        self._registry.declared.add(check_queue_name(name))
        return name

    def handler(
        self,
        queue: str,
        *,
        policy: Policy | None = None,
        lease: Duration = "30s",
        timeout: Duration | None = None,
        concurrency: int | None = None,
    ) -> Callable[[F], F]:
        """Decorate the function that handles `queue`; async functions run in the loop, others in threads.

        A payload that is an object becomes keyword arguments; a parameter `item: Item` gets the item itself.
        """
        name = check_queue_name(queue)
        rule: object = policy if policy is not None else Policy()
        if not isinstance(rule, Policy):
            hint = "use Policy(backoff=..., max_attempts=...)"
            raise ConfigError(f"{policy!r} is not a Policy", field="policy", hint=hint)
        ttl = _positive(lease, "lease")
        limit = None if timeout is None else _positive(timeout, "timeout")
        if concurrency is not None and not _is_count(concurrency):
            raise ConfigError(f"{concurrency!r} is not a number of slots", field="concurrency", hint="use 1 or more")

        def register(function: F) -> F:
            if not callable(function):
                raise ConfigError(f"{function!r} is not a function", field="handler", hint="decorate a function")
            is_async = _is_async(function)
            slots = concurrency or (ASYNC_CONCURRENCY if is_async else THREAD_CONCURRENCY)
            self._registry.add(Handler(name, function, rule, ttl, limit, slots, is_async, Signature(function)))
            return function

        return register

    # -- work ----------------------------------------------------------------------------------------------------

    async def enqueue(
        self,
        queue: str,
        payload: object = None,
        *,
        delay: Duration | None = None,
        id: str | None = None,
        within: object | None = None,
    ) -> ItemId:
        """Durable when it returns. With your own `id` a repeat adds nothing and says so in `.duplicate`.

        `within` your own PostgreSQL connection: the item is there when your transaction commits, or never.
        """
        self._check_open()
        return await self._client.enqueue(queue, payload, delay, id, within)

    async def enqueue_many(
        self,
        queue: str,
        payloads: Iterable[object],
        *,
        delay: Duration | None = None,
        within: object | None = None,
    ) -> list[ItemId]:
        """All or none, in one write; `within` as in `enqueue`."""
        self._check_open()
        return await self._client.enqueue_many(queue, payloads, delay, within)

    def follow_up(self, queue: str, payload: object = None, *, delay: Duration | None = None) -> ItemId:
        """Inside a handler: enqueue this in the very write that makes the current item done, or not at all."""
        run = current.get(None)
        if run is None:
            raise ConfigError("not inside a handler", field="follow_up", hint="use enqueue outside of handlers")
        if queue not in self._registry.declared:
            hint = f"register a handler for it, or declare it with app.queue({queue!r})"
            raise ConfigError(f"{queue!r} is not declared here", field="queue", hint=hint)
        item = self._client.new_item(new_id(), queue, payload, delay)
        run.follow_ups += (item,)
        return ItemId(item.id)

    async def get(self, item_id: str) -> Item:
        """The item as it is now. Raises NotFound."""
        self._check_open()
        return (await self._client.get(item_id)).item

    async def history(self, item_id: str) -> History:
        """The item with every attempt and every operator's act. Raises NotFound."""
        self._check_open()
        return await self._client.get(item_id)

    async def wait(self, item_id: str, *, timeout: Duration | None = None) -> Any:
        """The handler's result. Raises ItemFailed if the item is dead or cancelled, WaitTimeout if it takes longer."""
        self._check_open()
        return await self._client.wait(item_id, timeout)

    async def run(
        self, *, until_idle: bool = False, queues: Iterable[str] | None = None, grace: Duration = "30s"
    ) -> None:
        """A worker, here, until `stop` is called. `until_idle`: until nothing is leased or will become due by itself.

        When stopped it takes nothing new, lets handlers finish within `grace` and releases the rest, uncharged.
        """
        self._check_open()
        await self._work(self._store, self._registry.choose(queues), until_idle=until_idle, grace=grace)

    async def _work(self, store: Store, handlers: Mapping[str, Handler], *, until_idle: bool, grace: Duration) -> None:
        """With a store and handlers that `redrive.testing` can watch."""
        stop = _Stop(parse(grace, field="grace"))
        worker = Worker(
            store,
            handlers,
            events=self.events,
            clock=self._clock,
            frames=self._frames,
            max_result=self._max_payload,
            until_idle=until_idle,
        )
        self._stops.add(stop)
        self._home = asyncio.get_running_loop()
        try:
            await worker.run(stop.asked, stop.now, stop.grace)
        finally:
            self._stops.discard(stop)
            stop.over.set()

    async def stop(self, *, grace: Duration | None = None) -> None:
        """Stop the workers of this app and wait for them; `grace` shortens the one given to `run`.

        In a handler it asks them to stop and does not wait: they wait for the handler.
        """
        limit = None if grace is None else parse(grace, field="grace")
        if current.get(None) is None:
            await self._stop_workers(limit)
        else:
            for stop in self._stops:
                stop.asked.set()

    async def _stop_workers(self, limit: Millis | None) -> None:
        stops = tuple(self._stops)
        for stop in stops:
            stop.asked.set()
        if limit is not None:
            await asyncio.gather(*(self._clock.wait(stop.over, limit) for stop in stops))
            for stop in stops:
                stop.now.set()
        for stop in stops:
            await stop.over.wait()

    # -- looking and steering ------------------------------------------------------------------------------------

    @property
    def letters(self) -> Letters:
        """The dead letter office."""
        self._check_open()
        return self._letters

    def info(self) -> StoreInfo:
        self._check_open()
        return self._store.info()

    async def tally(self) -> Tally:
        self._check_open()
        return await self._store.tally()

    async def causes(self, queue: str | None = None, *, limit: int = 100) -> tuple[CauseTally, ...]:
        """Open letters grouped by cause, most first."""
        self._check_open()
        return await self._store.causes(queue, limit)

    async def workers(self) -> tuple[WorkerBeat, ...]:
        self._check_open()
        return await self._store.workers()

    async def report_death(self, pid: int, *, why: str) -> tuple[str, ...]:
        """For whoever supervises workers on this host: how the process died, for the evidence of what it held.

        Gives the names of its workers; none if the process had no worker, or they stopped in good order.
        """
        self._check_open()
        return await deaths.report(self._store, platform.node(), pid, why)

    async def pause(self, queue: str, *, reason: str) -> None:
        """No worker leases from the queue until `resume`; what runs goes on."""
        self._check_open()
        await self._client.check_queue(queue)
        await self._store.configure(queue, QueueChange(paused=True, by=self._actor, reason=check_reason(reason)))

    async def resume(self, queue: str) -> None:
        self._check_open()
        await self._client.check_queue(queue)
        await self._store.configure(queue, QueueChange(paused=False))

    async def cancel(self, ids: str | Iterable[str], *, reason: str) -> Amended:
        """Cancel items that are ready (waiting, scheduled or between retries)."""
        self._check_open()
        chosen = [str(each) for each in check_several(ids, "ids")]
        act = Act(self._actor, check_reason(reason), new_id())
        return await amend_in_chunks(self._store, chosen, Cancel(), act)

    async def prune(self, filter: str, *, reason: str, limit: int = 1000) -> tuple[Tombstone, ...]:
        """Remove resolved items for good (done, cancelled, letters in the trash); each leaves a tombstone."""
        self._check_open()
        selection = parse_filter(filter)
        if not filter.strip():
            hint = "to mean everything that is resolved, say state:done,cancelled,dead"
            raise ConfigError("it is empty", field="filter", hint=hint)
        if not _is_count(limit):
            raise ConfigError(f"{limit!r} is not a number of items", field="limit", hint="use 1 or more")
        act = Act(self._actor, check_reason(reason), new_id())
        return await self._store.prune(selection, limit, act)

    async def check(self, *, quick: bool = False) -> Checkup:
        """Whether the store is whole and agrees with itself. Changes nothing; `quick` leaves payloads unread."""
        self._check_open()
        return await self._store.check(quick=quick)

    async def backup(self, path: str | os.PathLike[str], *, force: bool = False) -> Backup:
        """Copy the whole store, as it is now, into a new file, while work goes on. `force` replaces a file."""
        self._check_open()
        target: object = path
        if not isinstance(target, str | os.PathLike):
            raise ConfigError(f"{path!r} is not a path", field="path", hint="use a text or a pathlib.Path")
        return await self._store.backup(os.fspath(path), force=force)


_apps: weakref.WeakSet[Redrive] = weakref.WeakSet()


def _forget_parent() -> None:
    for app in tuple(_apps):
        app._forget_parent()  # noqa: SLF001 - of this module


os.register_at_fork(after_in_child=_forget_parent)


class _Stop:
    """How a running worker is told to stop: first politely, then now."""

    def __init__(self, grace: int) -> None:
        self.grace = grace
        self.asked = asyncio.Event()
        self.now = asyncio.Event()
        self.over = asyncio.Event()


def _store(store: str | Store, clock: Clock | None) -> Store:
    if clock is not None and not callable(getattr(clock, "monotonic", None)):
        hint = "leave it out, or use redrive.testing.FakeClock()"
        raise ConfigError(f"{clock!r} is not a clock", field="clock", hint=hint)
    if isinstance(store, str):
        return store_from_url(store, clock=clock)
    if not callable(getattr(store, "lease", None)):
        hint = "use a URL such as sqlite:///redrive.db, or a store object"
        raise ConfigError(f"{store!r} is not a store", field="store", hint=hint)
    return store


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _positive(value: Duration, field: str) -> int:
    millis = parse(value, field=field)
    if millis < 1:
        raise ConfigError(f"{value!r} is too short", field=field, hint="use a positive duration such as 30s")
    return millis


def _is_async(function: Function) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
