"""The lifecycle of an app: bound to a store, opened, closed, forked; and the parts that it consists of."""

from __future__ import annotations

import asyncio
import copy
import os
import weakref
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from msgspec import UNSET, UnsetType

from redrive import doors, settings
from redrive.app.declarations import Declarations
from redrive.core.durations import Duration, parse
from redrive.core.item import Millis
from redrive.core.sizes import Size
from redrive.core.sizes import parse as parse_size
from redrive.core.verbs import QueueChange
from redrive.engine.client import Client
from redrive.engine.registry import Handler, Registry
from redrive.engine.write_hook import WriteHook
from redrive.errors import AppClosed, ConfigError
from redrive.events import Events
from redrive.observe.alerts.book import AlertBook
from redrive.observe.app_metrics import AppMetrics
from redrive.observe.logs import log_event
from redrive.office.letters import Letters, check_actor, default_actor
from redrive.office.schedules import Schedules
from redrive.settings import AlertSettings, Settings, load
from redrive.settings.readers import release as read_release
from redrive.stores.base import Store
from redrive.stores.clock import Clock, SystemClock, check_clock
from redrive.stores.key_checks import check_keys
from redrive.stores.keyring import Keyring, check_keyring
from redrive.stores.url import store_from_url

if TYPE_CHECKING:
    from redrive.engine.outbox import Deliver
    from redrive.engine.slots import Demand


class AppParts:
    """The store, the clock, the handlers and whatever else an app consists of, and whether it is open.

    An app has one such object. A test sandbox replaces it by a copy on another store, and puts it back afterwards.
    """

    def __init__(self, *, frames: bool, max_payload: int, actor: str, entered_by: str, release: str = "") -> None:
        self.frames = frames
        self.release = release
        self.max_payload = max_payload
        self.actor = actor
        self.entered_by = entered_by
        self.registry = Registry()
        self.declared = Declarations()
        self.events = Events()
        self.metrics: AppMetrics | None = None
        self.alerts = AlertBook(self.outbox)

    def bind(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self.stops: dict[Stop, None] = {}
        self.alerting: list[asyncio.Task[None]] = []
        self.alerted: int = 0
        self.state = "new"
        self.lock = asyncio.Lock()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.write_hook: WriteHook | None = None
        self.client = Client(store, self.registry, self.events, clock, self.max_payload, release=self.release)
        self.letters = Letters(
            store, self.events, actor=self.actor, clock=clock, frames=self.frames, max_result=self.max_payload
        )
        self.schedules = Schedules(store, actor=self.actor, before=self.catch_up, release=self.release)
        _apps.add(self)

    def bound_to(self, store: Store, clock: Clock) -> AppParts:
        """A copy, not yet open, with the same events; what is registered or declared in it stays in it. Without alerts:
        a test must not wake anybody.
        """
        other = copy.copy(self)
        other.registry, other.declared = self.registry.copy(), self.declared.copy()
        other.alerts = AlertBook(other.outbox)
        other.bind(store, clock)
        return other

    def load_alerts(self, chosen: AlertSettings) -> None:
        """The channels and rules of settings, beside those of the code."""
        self.alerts.load(chosen.channels, chosen.rules, chosen.every)

    @property
    def open_loop(self) -> asyncio.AbstractEventLoop | None:
        return self.loop if self.state == "open" else None

    async def open(self) -> bool:
        """False if it was open already."""
        async with self.lock:
            if self.state == "closed":
                raise AppClosed("this app was closed", hint="make a new Redrive")
            if self.state == "open":
                return False
            self.alerts.check()
            await self.store.open()
            try:
                await check_keys(self.store, self.store.keyring())
                await self.declared.write(self.store, self.registry)
            except BaseException:
                # An app that could not be opened is not closed by its caller.
                await self.store.close()
                raise
            self.state = "open"
            self.loop = asyncio.get_running_loop()
            return True

    async def close(self) -> None:
        async with self.lock:
            if self.state == "open":
                await self.stop_workers(0)
                self.state = "closed"
                await self.store.close()
                self.loop = None
                if self.metrics is not None:
                    await self.metrics.close()

    def check_open(self) -> Self:
        if self.state != "open":
            what = "was closed" if self.state == "closed" else "is not open"
            raise AppClosed(f"the app {what}; nothing was written", hint=f"use it inside `{self.entered_by}`")
        return self

    async def catch_up(self) -> Self:
        """Writes what was declared since the app was opened: it is in force before work goes on."""
        self.check_open()
        if self.declared.pending:
            async with self.lock:
                if self.declared.pending:
                    await self.declared.write(self.store, self.registry)
        return self

    def outbox(self, target: str, deliver: Deliver | None, concurrency: int = 10, **settings: Any) -> str:
        """Declare an outbox queue, with a handler if this process delivers."""
        from redrive.engine.outbox import BREAKER, KEEP, breaker_of, outbox_handler, outbox_queue

        queue = outbox_queue(target)
        if deliver is not None:
            self.registry.add(outbox_handler(target, deliver, concurrency=concurrency))
        self.declared.gate(breaker_of(target), BREAKER)
        self.declared.queue(queue, QueueChange(keep=KEEP, gate=breaker_of(target), **settings))
        self.registry.outboxes.add(queue)
        return queue

    async def work(
        self,
        store: Store,
        handlers: Mapping[str, Handler],
        *,
        until_idle: bool,
        grace: Duration,
        most: int | None = None,
        demand: Demand | None = None,
        item: str = "",
    ) -> int:
        """Runs a worker, for one item or for all, and says how many items it leased.

        `redrive.testing` passes a store and handlers that it can watch.
        """
        # Imported here: most processes only enqueue or look, and start sooner without it.
        from redrive.engine.worker import Worker
        from redrive.office.replay.by_payload import send_window

        stop = Stop(parse(grace, field="grace"))
        worker = Worker(
            store,
            handlers,
            events=self.events,
            clock=self.clock,
            frames=self.frames,
            max_result=self.max_payload,
            policies=self.registry.policies,
            until_idle=until_idle,
            most=most,
            demand=demand,
            # A worker beside it may be the one that the hook is for.
            write_hook=None if item else self.write_hook,
            item=item,
            release=self.release,
            send_by_payload=partial(send_window, clock=self.clock, max_payload=self.max_payload),
        )
        self.stops[stop] = None
        self.loop = asyncio.get_running_loop()
        try:
            async with nullcontext() if item else self._alerting(store, worker.name):
                await worker.run(stop.asked, stop.now, stop.grace)
        finally:
            self.stops.pop(stop, None)
            stop.over.set()
        return worker.leased

    @asynccontextmanager
    async def _alerting(self, store: Store, worker: str) -> AsyncIterator[None]:
        """Judge the alert rules, if there are any, from the start of the app's first worker to the end of its last.
        Once for all of them: each would count the same events, and send the same message about the store.
        """
        if self.alerts.rules and not self.alerting:
            from redrive.observe.alerts.down import DownWatch
            from redrive.observe.alerts.leader import AlertLeader

            self.alerts.check()
            leader = AlertLeader(self.alerts, store, worker, events=self.events, clock=self.clock)
            down = DownWatch(self.alerts, store.info().location, worker, events=self.events, clock=self.clock)
            self.alerting = [asyncio.create_task(part) for part in (leader.run(), down.run())]
        self.alerted += 1
        try:
            yield
        finally:
            self.alerted -= 1
            if not self.alerted:
                ending, self.alerting = self.alerting, []
                for task in ending:
                    task.cancel()
                await asyncio.gather(*ending, return_exceptions=True)

    async def stop_workers(self, limit: Millis | None) -> None:
        stops = tuple(self.stops)
        for stop in stops:
            stop.asked.set()
        if limit is not None:
            await asyncio.gather(*(self.clock.wait(stop.over, limit) for stop in stops))
            for stop in stops:
                stop.now.set()
        for stop in stops:
            await stop.over.wait()

    def forget_parent(self) -> None:
        """In a forked child: the parent's loop and workers, and an open or close that goes on there, are not ours."""
        self.lock = asyncio.Lock()
        self.loop = None
        self.stops = {}
        self.alerting, self.alerted = [], 0


_apps: weakref.WeakSet[AppParts] = weakref.WeakSet()


def _forget_parent() -> None:
    for app in tuple(_apps):
        app.forget_parent()


os.register_at_fork(after_in_child=_forget_parent)


class Stop:
    """How a running worker is told to stop: first politely, then now."""

    def __init__(self, grace: int) -> None:
        self.grace = grace
        self.asked = asyncio.Event()
        self.now = asyncio.Event()
        self.over = asyncio.Event()


class Lifecycle:
    _entered_by = "async with app:"

    def __init__(
        self,
        store: str | Store | UnsetType = UNSET,
        *,
        max_payload: Size | None = None,
        traceback: bool = True,
        log: bool = True,
        actor: str | None = None,
        clock: Clock | None = None,
        release: str | None = None,
        encryption: Keyring | None = None,
    ) -> None:
        # An app that names its store has all settings from its code, the release apart; what is left out is as by
        # default. None is no name: it is what a variable gives that somebody forgot to set.
        chosen = load().settings if store is UNSET else Settings(release=settings.release())
        check_clock(clock)
        most = parse_size(chosen.max_payload if max_payload is None else max_payload, field="max_payload")
        if most < 1:
            raise ConfigError("nothing would fit", field="max_payload", hint="use 1 byte or more")
        acts = (chosen.actor or default_actor()) if actor is None else check_actor(actor)
        named = (chosen.release or "") if release is None else read_release(release, "release")
        self._parts = AppParts(
            frames=traceback, max_payload=most, actor=acts, entered_by=self._entered_by, release=named
        )
        opened = _store(chosen.store if store is UNSET else store, clock)
        keyring = chosen.encryption_keys if encryption is None else check_keyring(encryption)
        if keyring is not None:
            opened.use_keys(keyring)
        self._parts.bind(opened, clock or SystemClock())
        self.events = self._parts.events
        self._parts.load_alerts(chosen.alerts)
        if log:
            self.events.subscribe(log_event)

    async def open(self) -> Self:
        if await self._parts.open():
            await self._tell_doors()
        return self

    async def _tell_doors(self) -> None:
        try:
            for door in doors.registered():
                if door.opened is not None:
                    await door.opened(self, self._parts.store)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stops workers that still run, then lets go of the store. May be called twice."""
        await self._parts.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def _store(store: str | Store, clock: Clock | None) -> Store:
    if isinstance(store, str):
        return store_from_url(store, clock=clock)
    if not callable(getattr(store, "lease", None)):
        hint = "use a URL such as sqlite:///redrive.db, or a store object"
        raise ConfigError(f"{store!r} is not a store", field="store", hint=hint)
    return store
