"""Engine tests without real time: any number of apps over one store and one FakeClock.

Time passes only when everything that can happen without it has happened: no task in the loop has a turn left, no verb
is on its way through a store, no message of the store is on its way to its workers, and no handler's thread has
anything to do but to wait. So a test is as exact on a server as in memory, and on a busy machine as on an idle one.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import pytest

from redrive import Redrive
from redrive.core.durations import parse
from redrive.core.item import History, Item, Millis
from redrive.core.verbs import LeaseRequest, Tally, Want
from redrive.events import Event
from redrive.stores.base import Store
from redrive.stores.url import store_from_url
from redrive.testing._relay import Answer, P, Relay
from redrive.testing.clock import FakeClock
from redrive.testing.faults import FaultyStore
from tests.support.folders import quick_folder
from tests.support.rest import Calls, alone, busy_aside, turns
from tests.support.rig.patience import breathe
from tests.support.stores import STORES, fresh_store

if TYPE_CHECKING:
    from redrive.stores.redis import RedisStore

T = TypeVar("T")
E = TypeVar("E", bound=Event)

LABS = tuple(kind if kind == "memory" else pytest.param(kind, marks=pytest.mark.slow) for kind in STORES)
"""The quick run tries the engine in memory only: what a store has to do for it is in the conformance suite."""
MOMENT = 50_000
"""Breaths for a message that is sure to come: even a server that stands still for a while has sent it by then."""
PATIENCE = 60_000
"""Moments of real time in which something must happen that no fake time can bring about."""
LOST = 60.0
"""Seconds after which an answer of a store is not to be expected any more."""


_in_wait: contextvars.ContextVar[bool] = contextvars.ContextVar("in_wait", default=False)


class LabClock(FakeClock):
    """Also counts: a store's `wait` is under way except while it sleeps, so that time stands still while it looks."""

    under_way = 0
    verbs = 0

    def __init__(self) -> None:
        super().__init__()
        self._waiting: set[asyncio.Future[None]] = set()

    def enter(self) -> None:
        self.under_way += 1
        self.verbs += 1

    def leave(self) -> None:
        self.under_way -= 1
        self.verbs += 1
        if not self.under_way:
            for waiting in self._waiting:
                if not waiting.done():
                    waiting.set_result(None)
            self._waiting.clear()

    async def ended(self) -> None:
        """Until no verb is under way."""
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        await asyncio.wait_for(waiting, LOST)

    async def wait(self, event: asyncio.Event, timeout: Millis) -> bool:
        if not _in_wait.get():
            return await super().wait(event, timeout)
        self.leave()
        try:
            return await super().wait(event, timeout)
        finally:
            self.enter()


class Shared(Relay):
    """One app's handle on the lab's store: counts verbs under way, and does not open or close what others use."""

    def __init__(self, store: Store, clock: LabClock) -> None:
        super().__init__(store)
        self._clock = clock

    async def open(self) -> Shared:
        return self

    async def close(self) -> None:
        return

    async def relay(self, verb: Callable[P, Awaitable[Answer]], *args: P.args, **kwargs: P.kwargs) -> Answer:
        token = _in_wait.set(verb.__name__ == "wait")
        self._clock.enter()
        try:
            return await verb(*args, **kwargs)
        finally:
            self._clock.leave()
            _in_wait.reset(token)


class Seen:
    """What an app told its subscribers."""

    def __init__(self, app: Redrive) -> None:
        self.all: list[Event] = []
        app.events.subscribe(self.all.append)

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.all if isinstance(event, kind)]


class Messages:
    """The store tells its workers of new work by messages of Redis: on their way when the verb has ended."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._numbers = count()

    async def heard(self) -> None:
        """Until all that was sent so far has come: they come in order, and this one is the last."""
        session = await self._store._here()  # noqa: SLF001 - nobody else needs to know
        mark = f"lab {next(self._numbers)}"
        with session.waiters.register([mark]) as waiter:
            wire = await session.pool.take()
            listening = await wire.ask("PUBLISH", session.bell._channel, mark)  # noqa: SLF001 - as above
            session.pool.give(wire)
            if listening:
                await asyncio.wait_for(waiter.event.wait(), LOST)


class Lab:
    def __init__(self, kind: str, store: Store, clock: LabClock, calls: Calls) -> None:
        self.kind = kind
        self.url = ""
        self.clock = clock
        self.apps: list[Redrive] = []
        self._calls = calls
        self._use(store)

    def _use(self, store: Store) -> None:
        self.store = store
        self.shared = Shared(store, self.clock)
        """For what goes on while time passes: time stands still until each of its verbs has ended."""
        # Those of earlier tests, and those of SQLite, which answer verbs only.
        self._silent = frozenset(threading.enumerate())
        self._messages = Messages(cast("RedisStore", store)) if self.kind == "redis" else None

    async def reopen(self) -> Store:
        """A new handle on the same store, as a new process would have it. The old one is closed; memory stays."""
        if self.kind != "memory":
            await self.store.close()
            self._use(await store_from_url(self.url, clock=self.clock).open())
        return self.shared

    async def app(self, *, max_payload: int = 1024 * 1024, release: str | None = None) -> Redrive:
        return await self._open(Shared(self.store, self.clock), max_payload, release)

    async def faulty(self, *, counted: Collection[str] | None = None) -> tuple[Redrive, FaultyStore]:
        """An app whose way to the store can be broken, while other apps' stays whole."""
        faulty = FaultyStore(Shared(self.store, self.clock), counted=counted)
        return await self._open(faulty), faulty

    async def _open(self, store: Store, max_payload: int = 1024 * 1024, release: str | None = None) -> Redrive:
        app = Redrive(store, clock=self.clock, log=False, actor="lab", max_payload=max_payload, release=release)
        self.apps.append(app)
        return await app.open()

    def refuse_members(self, patch: pytest.MonkeyPatch) -> None:
        """From now on nothing may ask for a row of every member of the families: there may be very many."""
        right = self.store.tally

        async def tally(*, members: bool | Collection[str] = True) -> Tally:
            assert members is not True, "the rows of all members were asked for"
            return await right(members=members)

        patch.setattr(self.store, "tally", tally)

    # -- time ----------------------------------------------------------------------------------------------------

    async def quiet(self) -> None:
        """Until nothing more can happen without time passing."""
        loop = asyncio.get_running_loop()
        heard = None
        for _ in range(PATIENCE):
            before = self.clock.verbs
            rests = await turns(loop)
            if self.clock.under_way:
                await self.clock.ended()
            elif self._calls.under_way() or busy_aside():
                await breathe()
            elif self._messages is not None and heard != self.clock.verbs:
                await self._messages.heard()
                heard = self.clock.verbs
            elif rests and alone(loop, self._silent):
                return
            else:
                # Turns for a task that spins, and for what may come from a socket or thread that is not known.
                await turns(loop, rest=False)
                if self.clock.verbs == before and not self._calls.under_way():
                    return
        raise AssertionError("a verb does not end, or a thread does not begin")

    async def noticed(self, check: Callable[[], bool]) -> None:
        """Hold time until `check` says so, or for some seconds of real time if it never does.

        To be awaited while time passes: some stores tell those who wait by a message, which no verb waits for.
        """
        self.clock.enter()
        try:
            for _ in range(MOMENT):
                if check():
                    return
                await breathe()
        finally:
            self.clock.leave()

    async def until(self, check: Callable[[], bool], *, limit: str = "1h") -> None:
        """Let time pass, sleeper by sleeper, until `check` holds."""
        end = self.clock.monotonic() + parse(limit)
        patience = PATIENCE
        while True:
            await self.quiet()
            if check():
                return
            pause = self.clock.next_in
            if pause is None:
                patience -= 1
                assert patience, "nobody sleeps, and nothing happens"
                await breathe()
            elif self.clock.monotonic() + pause <= end:
                self.clock.advance(pause)
            else:
                # What is left of fake time is over. A thread at work needs real time alone.
                at_work = any(thread not in self._silent for thread in threading.enumerate())
                patience = patience - 1 if at_work else 0
                assert patience, f"not within {limit} of fake time"
                await breathe()

    async def drive(self, work: Awaitable[T], *, limit: str = "1h") -> T:
        """Let time pass until the work is done."""
        task = asyncio.ensure_future(work)
        try:
            await self.until(task.done, limit=limit)
        except AssertionError:
            task.cancel()
            raise
        return await task

    async def pass_time(self, duration: str) -> None:
        """So much time, with everything that happens in it."""
        end = self.clock.monotonic() + parse(duration)
        while True:
            await self.quiet()
            pause = self.clock.next_in
            if pause is None or self.clock.monotonic() + pause > end:
                break
            self.clock.advance(pause)
        self.clock.advance(end - self.clock.monotonic())
        await self.quiet()

    # -- workers -------------------------------------------------------------------------------------------------

    async def drain(self, app: Redrive, *, limit: str = "1d") -> None:
        """Work until nothing is left that will become due by itself."""
        await self.drive(app.run(until_idle=True), limit=limit)

    @contextlib.asynccontextmanager
    async def working(self, app: Redrive) -> AsyncIterator[asyncio.Task[None]]:
        """A worker in the background."""
        task = asyncio.create_task(app.run())
        await self.quiet()
        try:
            yield task
        finally:
            await self.drive(app.stop(grace=0))
            await self.drive(task)

    async def ghost(self, queue: str, *, worker: str = "ghost", ttl: str = "30s", limit: int = 100) -> tuple[Item, ...]:
        """Leases by a worker that is never heard of again."""
        want = Want(queue, limit, parse(ttl), max_crashes=3)
        return (await self.store.lease(LeaseRequest(worker, (want,), f"nonce of {worker}"))).items

    async def history(self, item_id: str) -> History:
        return await self.store.get(item_id)

    async def item(self, item_id: str) -> Item:
        return (await self.store.get(item_id)).item


@contextlib.asynccontextmanager
async def open_lab(kind: str, folder: Path) -> AsyncIterator[Lab]:
    clock = LabClock()
    with pytest.MonkeyPatch.context() as patch, quick_folder(folder) as place, fresh_store(kind, place) as url:
        store = await store_from_url(url, clock=clock).open()
        made = Lab(kind, store, clock, Calls(patch))
        made.url = url
        try:
            yield made
        finally:
            for app in made.apps:
                await made.drive(app.close())
            await made.store.close()


@pytest.fixture(params=LABS)
async def lab(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Lab]:
    async with open_lab(request.param, tmp_path) as made:
        yield made


@pytest.fixture
async def memory_lab(tmp_path: Path) -> AsyncIterator[Lab]:
    """For what the store has no part in."""
    async with open_lab("memory", tmp_path) as made:
        yield made
