"""One open store in this process, for all mailboxes on it: opened by the first call, closed with the last mailbox.

A forked child has none of its parent's threads and connections, so it begins anew with places of its own. Calls speak
of failure as mailboxes do (`MailboxError`), whatever the store said.
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
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from redrive.blocking.house import House
from redrive.core.decide import ToCancelled, ToDone
from redrive.core.item import Item, NewItem
from redrive.core.verbs import Answer, Settlement
from redrive.engine.batcher import Batcher
from redrive.engine.report import Reporter
from redrive.engine.store_retry import retry_unknown as surely
from redrive.errors import (
    AppClosed,
    CalledFromLoop,
    MailboxClosedError,
    MailboxConnectionError,
    MailboxFullError,
    OutcomeUnknown,
    PayloadError,
    QueueFull,
    SerializationError,
    StoreUnavailable,
)
from redrive.events import Events
from redrive.mailboxes.boxes.upkeep import Upkeep
from redrive.stores.base import Store
from redrive.stores.clock import Clock, SystemClock
from redrive.stores.url import store_from_url

if TYPE_CHECKING:
    from redrive.mailboxes.boxes.mailbox import StoreMailbox

__all__ = ["Place", "surely"]

P = ParamSpec("P")
T = TypeVar("T")

_INSTEAD = "call it in a thread, as in: await asyncio.to_thread(mailbox.receive)"
_OURS = "redrive."


class Place:
    """Made by `enter` alone, which counts who is there; `leave` once for each."""

    def __init__(self, key: tuple[object, ...], store: Store, clock: Clock | None) -> None:
        self.store = store
        self.clock: Clock = SystemClock() if clock is None else clock
        self.worker = f"mailbox-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
        self.pid = os.getpid()
        self.fingerprint = _fingerprint(store)
        self.mailboxes: WeakValueDictionary[str, StoreMailbox[Any, Any]] = WeakValueDictionary()
        self.events = Events()
        self._reporter = Reporter(self.worker, self.events, self.clock)
        self.upkeep = Upkeep(self.worker, store, self.events, self.clock)
        self.put: Batcher[NewItem, bool] = Batcher(self._put)
        self.settle: Batcher[Settlement, Answer] = Batcher(self._settle)
        self._key = key
        self._users = 0
        self._opening = threading.Lock()
        self._opened = False
        self._bells: dict[str, set[asyncio.Event]] = {}
        self._house = House(self.upkeep, what="a call of redrive.mailboxes", instead=_INSTEAD)
        # Time that a test lets pass by itself must not pass while a call is at work.
        self._busy: Callable[[str], AbstractContextManager[None]] = getattr(self.clock, "busy", _idle)

    @classmethod
    def enter(cls, store: str | Store, clock: Clock | None) -> Place:
        _see_off()
        made, key = _store_of(store, clock)
        with _lock:
            place = _places.get(key)
            if place is None:
                place = _places[key] = cls(key, made, clock)
            place._users += 1
        return place

    @staticmethod
    def open_by(fingerprint: str) -> Place | None:
        """The place of this process on that store, if there is one."""
        with _lock:
            return next((place for place in _places.values() if place.fingerprint == fingerprint), None)

    @property
    def closed(self) -> bool:
        return self._users < 1 or self.upkeep.ended or self._house.ending

    def check_leaving(self) -> None:
        """Whoever leaves last waits for the store to be closed, which must not be refused halfway."""
        if self._users == 1 and self._opened and asyncio._get_running_loop() is not None:
            raise _refusal()

    def leave(self) -> None:
        with _lock:
            self._users -= 1
            last = self._users == 0
            if last:
                _places.pop(self._key, None)
        if last and self.pid == os.getpid():
            with self._opening:
                if self._opened:
                    self._opened = False
                    self._house.move_out(self.upkeep.close)

    def forget(self, owner: object) -> None:
        """As `leave`, where nothing may be waited for, as when a mailbox is freed; the next who enters sees to it."""
        self.upkeep.remove(owner)
        _forgotten.append(self)

    def call(self, method: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run it in the loop of this process, and wait for it."""
        try:
            if not self._opened:
                self._open()
            with self._busy("a mailbox"):
                return self._house.call(method, *args, **kwargs)
        except CalledFromLoop as error:
            raise _refusal() from error
        except (StoreUnavailable, OutcomeUnknown) as error:
            raise MailboxConnectionError(error.message, hint=error.hint) from error
        except QueueFull as error:
            raise MailboxFullError(error.message, hint=error.hint) from error
        except PayloadError as error:
            raise SerializationError(error.message, hint=error.hint) from error
        except AppClosed as error:
            raise MailboxClosedError(error.message, hint=error.hint) from error

    def _open(self) -> None:
        with self._opening:
            if self._users < 1:
                hint = "close a mailbox when its messages are settled, or open it again"
                raise MailboxClosedError("the mailbox is closed; nothing was done", hint=hint)
            if not self._opened:
                self._house.move_in(self.store.open)
                self._opened = True

    async def _put(self, items: Sequence[NewItem]) -> Sequence[bool]:
        """For each, whether it was added: False for one that was there already."""
        added = set((await self.store.put(items)).added)
        return [item.id in added for item in items]

    async def _settle(self, settlements: Sequence[Settlement]) -> Sequence[Answer]:
        return (await self.store.settle(settlements)).answers

    def report(self, items: Sequence[Item], settlements: Sequence[Settlement], answers: Sequence[Answer]) -> None:
        """In the loop: tell subscribers how deliveries ended. A letter that stays one has not ended."""
        if not self.events:
            return
        for item, settlement, answer in zip(items, settlements, answers, strict=True):
            if item.letter is None or isinstance(settlement.decision, ToDone | ToCancelled):
                ran = 0 if settlement.attempt is None else settlement.attempt.ran
                worker = self.worker if settlement.attempt is None else settlement.attempt.worker
                self._reporter.ended(worker, item, settlement, answer, ran=ran)

    def bell(self, name: str) -> _Bell:
        """In the loop, as a context manager: an event that `ring` sets for the mailbox of this name."""
        return _Bell(self._bells, name)

    def ring(self, name: str) -> None:
        """In the loop: whoever waits for this mailbox in this process looks again."""
        for event in self._bells.get(name, ()):
            event.set()

    def ring_from_outside(self, name: str) -> None:
        self._house.tell(lambda: self.ring(name))


class _Bell:
    def __init__(self, bells: dict[str, set[asyncio.Event]], name: str) -> None:
        self._bells = bells
        self._name = name
        self._event = asyncio.Event()

    def __enter__(self) -> asyncio.Event:
        self._bells.setdefault(self._name, set()).add(self._event)
        return self._event

    def __exit__(self, *_: object) -> None:
        events = self._bells[self._name]
        events.discard(self._event)
        if not events:
            del self._bells[self._name]


def _refusal() -> CalledFromLoop:
    """It names the method that somebody outside called: what that one does within means nothing to him."""
    frame: FrameType | None = sys._getframe(1)
    name = ""
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_OURS):
        name, frame = frame.f_code.co_name, frame.f_back
    said = f"{name} would block the event loop that runs in this thread; nothing was done"
    return CalledFromLoop(said, hint=f"call it in a thread, as in: await asyncio.to_thread(….{name}, …)")


def _idle(_what: str) -> AbstractContextManager[None]:
    return nullcontext()


def _store_of(store: str | Store, clock: Clock | None) -> tuple[Store, tuple[object, ...]]:
    """Without touching it, and what makes it the same as another: where it is, how it is used, and by which time."""
    if not isinstance(store, str):
        return store, ("store", id(store))
    made = store_from_url(store, clock=clock)
    info = made.info()
    location = str(Path(info.location).resolve()) if info.engine == "sqlite" else info.location
    return made, (info.engine, location, urlsplit(store).query, id(clock) if clock is not None else None)


def _fingerprint(store: Store) -> str:
    """Tells stores apart in a message, where an address does not belong. Files of two hosts are two stores."""
    info = store.info()
    where = info.location
    if info.engine == "memory":
        where = secrets.token_hex(16)
    elif info.engine == "sqlite":
        where = f"{socket.gethostname()}:{Path(where).resolve()}"
    return hashlib.sha256(f"{info.engine} {where}".encode()).hexdigest()[:12]


_lock = threading.RLock()
_places: dict[tuple[object, ...], Place] = {}
_forgotten: deque[Place] = deque()


def _see_off() -> None:
    while _forgotten:
        try:
            place = _forgotten.popleft()
        except IndexError:  # another thread was faster
            return
        place.leave()


def _begin_anew() -> None:
    global _lock, _places
    # The parent's places are kept by its mailboxes; to free them here would close files that both share.
    _lock, _places = threading.RLock(), {}
    _forgotten.clear()


os.register_at_fork(after_in_child=_begin_anew)
