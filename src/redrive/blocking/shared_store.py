"""A shared store: one open store per process for all blocking callers, in the process's loop thread.

The first call opens it, and the last user closes it. Puts and settlements of several threads are batched. A forked
child has none of its parent's threads and connections: it gets shared stores of its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import socket
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, ParamSpec, Self, TypeVar, cast
from urllib.parse import urlsplit

from redrive.blocking._call import in_event_loop
from redrive.blocking.loop_thread import LoopThreadHost
from redrive.blocking.loops.stop import Stop
from redrive.core.item import Millis, NewItem
from redrive.core.verbs import Answer, Settlement
from redrive.engine.batcher import Batcher
from redrive.engine.receiver_tasks import ReceiverTasks
from redrive.engine.report import Reporter
from redrive.errors import AppClosed, CalledFromLoop
from redrive.events import Events
from redrive.office.replay.by_payload import send_window
from redrive.settings import release
from redrive.stores.base import Store
from redrive.stores.clock import Clock, SystemClock
from redrive.stores.key_checks import check_keys
from redrive.stores.keyring import Keyring, check_keyring
from redrive.stores.url import store_from_url

__all__ = ["Keyring", "SharedStore", "Store", "check_keyring"]

P = ParamSpec("P")
T = TypeVar("T")

STEP: Millis = 1000
"""The store does not notify of expired leases, nor of letters of other processes: a receiver looks this often."""


class SharedStore:
    """Made by `enter`, which counts the users; each of them calls `leave` once."""

    kind: ClassVar[str] = "store"
    """What a user of it calls the thing that is opened and closed."""

    def __init__(self, key: tuple[object, ...], store: Store, clock: Clock | None) -> None:
        self.store = store
        self.clock: Clock = SystemClock() if clock is None else clock
        self.worker = f"{self.kind}-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
        self.pid = os.getpid()
        self.release = release()
        self.fingerprint = _fingerprint(store)
        self.events = Events()
        self.reporter = Reporter(self.worker, self.events, self.clock)
        send = partial(send_window, clock=self.clock)
        self.tasks = ReceiverTasks(self.worker, store, self.events, self.clock, send, release=self.release)
        self.put: Batcher[NewItem, bool] = Batcher(self._put)
        self.settle: Batcher[Settlement, Answer] = Batcher(self._settle)
        self._key = key
        self._users = 0
        self._opening = threading.Lock()
        self._opened = False
        self._ended = False
        self._listeners: dict[str, set[asyncio.Event]] = {}
        self._host = LoopThreadHost(self, what="{name}", instead="call it in a thread")
        # Time that a test lets pass by itself must not pass while a call is at work.
        self._busy: Callable[[str], AbstractContextManager[None]] = getattr(self.clock, "busy", _idle)

    @classmethod
    def enter(cls, store: str | Store, clock: Clock | None, encryption: Keyring | None = None) -> Self:
        """`encryption`: for a store that is named by its URL; users with other keys have a store of their own."""
        _leave_abandoned()
        made, key = _store_of(store, clock, encryption)
        with _lock:
            shared = _stores.get((cls, key))
            if shared is None:
                shared = _stores[cls, key] = cls(key, made, clock)
            shared._users += 1
        return cast("Self", shared)

    @classmethod
    def find(cls, fingerprint: str) -> Self | None:
        """The one of this process on that store, if there is one."""
        with _lock:
            found = [each for each in _stores.values() if isinstance(each, cls) and each.fingerprint == fingerprint]
        return found[0] if found else None

    @property
    def closed(self) -> bool:
        return self._users < 1 or self._ended or self._host.ending

    def check_leaving(self) -> None:
        """The last user waits for the store to be closed, which must not be refused halfway."""
        if self._users == 1 and self._opened and in_event_loop():
            raise _refusal()

    def leave(self) -> None:
        with _lock:
            self._users -= 1
            last = self._users == 0
            if last:
                _stores.pop((type(self), self._key), None)
        if last and self.pid == os.getpid():
            with self._opening:
                if self._opened:
                    self._opened = False
                    self._host.close(self.close)

    def abandon(self, owner: object) -> None:
        """As `leave`, where nothing may be waited for, as in a finalizer; the next `enter` does the rest."""
        self.tasks.remove(owner)
        _abandoned.append(self)

    async def close(self) -> None:
        """In the loop: with the last user, or with the process."""
        self._ended = True
        await self.tasks.close()
        await self.store.close()

    def call(self, method: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run it in the loop of this process, and wait for it."""
        try:
            if not self._opened:
                self._open()
            with self._busy(f"a {self.kind}"):
                return self._host.call(method, *args, **kwargs)
        except CalledFromLoop as error:
            raise _refusal() from error

    def _open(self) -> None:
        with self._opening:
            if self._users < 1:
                hint = f"close a {self.kind} after its last use, or open it again"
                raise AppClosed(f"the {self.kind} is closed; nothing was done", hint=hint)
            if not self._opened:
                self._host.open(self._open_store)
                self._opened = True

    async def _open_store(self) -> None:
        await self.store.open()
        try:
            await check_keys(self.store, self.store.keyring())
        except BaseException:
            await self.store.close()
            raise

    async def _put(self, items: Sequence[NewItem]) -> Sequence[bool]:
        """For each, whether it was added: False if the id was in use."""
        added = set((await self.store.put(items)).added)
        return [item.id in added for item in items]

    async def _settle(self, settlements: Sequence[Settlement]) -> Sequence[Answer]:
        return (await self.store.settle(settlements)).answers

    async def receive(
        self,
        name: str,
        look: Callable[[], Awaitable[list[T]]],
        wait: Millis,
        *,
        stop: Stop | None,
        closed: Callable[[], bool],
    ) -> list[T]:
        """In the loop: what the first successful look gives; nothing when `wait` is over, or `stop` or `closed` is."""
        end = self.clock.monotonic() + wait
        self.tasks.received(name)
        found = await look()
        if found or not wait:
            return found
        with (
            self.listening(name) as notified,
            nullcontext() if stop is None else stop.heard_in(asyncio.get_running_loop()) as stopped,
        ):
            # Look again before the first pause: a notification before the event was there is lost.
            while not (closed() or (stopped is not None and stopped.is_set())):
                notified.clear()
                self.tasks.received(name)
                found = await look()
                rest = end - self.clock.monotonic()
                if found or rest <= 0:
                    return found
                await self._pause(name, notified, stopped, min(rest, STEP))
        return []

    async def _pause(self, name: str, notified: asyncio.Event, stopped: asyncio.Event | None, duration: Millis) -> None:
        """Until the store has something, `notified` or `stopped` is set, or the time is over."""
        waits = [asyncio.ensure_future(self.store.wait((name,), duration)), asyncio.ensure_future(notified.wait())]
        if stopped is not None:
            waits.append(asyncio.ensure_future(stopped.wait()))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        if waits[0].done() and not waits[0].cancelled():
            waits[0].result()

    @contextmanager
    def listening(self, name: str) -> Iterator[asyncio.Event]:
        """In the loop: an event that `notify` sets for this queue."""
        event, listeners = asyncio.Event(), self._listeners.setdefault(name, set())
        listeners.add(event)
        try:
            yield event
        finally:
            listeners.discard(event)
            if not listeners:
                del self._listeners[name]

    def notify(self, name: str) -> None:
        """In the loop: receivers of this process that wait for this queue look again."""
        for event in self._listeners.get(name, ()):
            event.set()

    def notify_from_thread(self, name: str) -> None:
        self._host.tell(lambda: self.notify(name))


def _refusal() -> CalledFromLoop:
    """It names the method that the user called, not the ones that this called."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - no other way to the caller
    name = ""
    while frame is not None and frame.f_globals.get("__name__", "").startswith("redrive."):
        name, frame = frame.f_code.co_name, frame.f_back
    text = f"{name} would block the event loop that runs in this thread; nothing was done"
    return CalledFromLoop(text, hint=f"call it in a thread, as in: await asyncio.to_thread(….{name}, …)")


def _idle(_what: str) -> AbstractContextManager[None]:
    return nullcontext()


def _store_of(store: str | Store, clock: Clock | None, encryption: Keyring | None) -> tuple[Store, tuple[object, ...]]:
    """The store, not opened, and its key: stores with the same location, options, clock and keyring are the same."""
    if not isinstance(store, str):
        return store, ("store", id(store))
    made = store_from_url(store, clock=clock)
    made.use_keys(encryption)
    info = made.info()
    location = str(Path(info.location).resolve()) if info.engine == "sqlite" else info.location
    objects = [None if each is None else id(each) for each in (clock, encryption)]
    return made, (info.engine, location, urlsplit(store).query, *objects)


def _fingerprint(store: Store) -> str:
    """Names a store in a message, which must not have an address. Files of two hosts are two stores."""
    info = store.info()
    where = info.location
    if info.engine == "memory":
        where = secrets.token_hex(16)
    elif info.engine == "sqlite":
        where = f"{socket.gethostname()}:{Path(where).resolve()}"
    return hashlib.sha256(f"{info.engine} {where}".encode()).hexdigest()[:12]


_lock = threading.RLock()
_stores: dict[tuple[type[SharedStore], tuple[object, ...]], SharedStore] = {}
_abandoned: deque[SharedStore] = deque()


def _leave_abandoned() -> None:
    while _abandoned:
        try:
            shared = _abandoned.popleft()
        except IndexError:  # another thread was faster
            return
        shared.leave()


def _after_fork() -> None:
    global _lock, _stores
    # The parent's stores are kept by their users; to free them here would close files that both share.
    _lock, _stores = threading.RLock(), {}
    _abandoned.clear()


os.register_at_fork(after_in_child=_after_fork)
