"""An app from its making to its end: bound to a store, opened, closed, forked."""

from __future__ import annotations

import asyncio
import os
import weakref
from types import TracebackType
from typing import Self

from msgspec import UNSET, UnsetType

from redrive import doors
from redrive.app._declared import Declared
from redrive.core.item import Millis
from redrive.core.sizes import Size
from redrive.core.sizes import parse as parse_size
from redrive.engine.client import Client
from redrive.engine.registry import Registry
from redrive.engine.write_hook import WriteHook
from redrive.errors import AppClosed, ConfigError
from redrive.events import Events
from redrive.observe.app_metrics import AppMetrics
from redrive.observe.logs import log_event
from redrive.office.letters import Letters, check_actor, default_actor
from redrive.office.schedules import Schedules
from redrive.settings import Settings, load
from redrive.stores.base import Store
from redrive.stores.clock import Clock, SystemClock, check_clock
from redrive.stores.url import store_from_url


class Life:
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
    ) -> None:
        # An app that names its store is told everything by its code; what is left out is as by default. None is no
        # name: it is what a variable gives that somebody forgot to set.
        chosen = load().settings if store is UNSET else Settings()
        check_clock(clock)
        most = parse_size(chosen.max_payload if max_payload is None else max_payload, field="max_payload")
        if most < 1:
            raise ConfigError("nothing would fit", field="max_payload", hint="use 1 byte or more")
        self._frames = traceback
        self._max_payload = most
        self._registry = Registry()
        self._declared = Declared()
        self._actor = (chosen.actor or default_actor()) if actor is None else check_actor(actor)
        self.events = Events()
        if log:
            self.events.subscribe(log_event)
        self._bind(_store(chosen.store if store is UNSET else store, clock), clock or SystemClock())
        self._metrics: AppMetrics | None = None
        _apps.add(self)

    def _bind(self, store: Store, clock: Clock) -> None:
        """To its store; `redrive.testing` binds it to another one for as long as a test lasts."""
        self._store = store
        self._clock = clock
        self._stops: set[Stop] = set()
        self._state = "new"
        self._door = asyncio.Lock()
        self._home: asyncio.AbstractEventLoop | None = None
        self._write_hook: WriteHook | None = None
        self._client = Client(store, self._registry, self.events, clock, self._max_payload)
        self._letters = Letters(
            store, self.events, actor=self._actor, clock=clock, frames=self._frames, max_result=self._max_payload
        )
        self._schedules = Schedules(store, actor=self._actor, before=self._catch_up)

    async def open(self) -> Self:
        new = False
        async with self._door:
            if self._state == "closed":
                raise AppClosed("this app was closed", hint="make a new Redrive")
            if self._state == "new":
                await self._store.open()
                try:
                    await self._declared.write(self._store, self._registry)
                except BaseException:
                    # Nobody will close what could not be opened.
                    await self._store.close()
                    raise
                self._state = "open"
                self._home = asyncio.get_running_loop()
                new = True
        if new:
            await self._tell_doors()
        return self

    async def _tell_doors(self) -> None:
        try:
            for door in doors.registered():
                if door.opened is not None:
                    await door.opened(self, self._store)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stops workers that still run, then lets go of the store. May be called twice."""
        async with self._door:
            if self._state == "open":
                await self._stop_workers(0)
                self._state = "closed"
                await self._store.close()
                self._home = None
                if self._metrics is not None:
                    await self._metrics.close()

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

    async def _catch_up(self) -> None:
        """What was declared since the app was opened is in force before work goes on."""
        self._check_open()
        if self._declared.pending:
            async with self._door:
                if self._declared.pending:
                    await self._declared.write(self._store, self._registry)

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

    def _forget_parent(self) -> None:
        """In a forked child: the parent's loop, its workers and whoever opens or closes there are not ours."""
        self._door = asyncio.Lock()
        self._home = None
        self._stops = set()


_apps: weakref.WeakSet[Life] = weakref.WeakSet()


def _forget_parent() -> None:
    for app in tuple(_apps):
        app._forget_parent()  # noqa: SLF001 - of this module


os.register_at_fork(after_in_child=_forget_parent)


class Stop:
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
