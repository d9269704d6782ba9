"""Lease extender: extends the leases of messages in hand while their loop has a heartbeat.

A beat extends what is due. A thread does so between beats, for handlers that cannot beat during a long call, as long as
the last beat is younger than `silence`: a loop that is stuck loses its messages in the end. A lease is never shortened.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from redrive.blocking._call import in_event_loop
from redrive.blocking.loops.heartbeat import Heartbeat
from redrive.blocking.loops.stop import Stop
from redrive.core.quantity import shown
from redrive.core.validation import check_clock, check_type, is_number
from redrive.errors import InvalidParameterError, ReceiptHandleExpiredError
from redrive.observe.logs import log
from redrive.stores.clock import Clock, SystemClock

LONGEST = 300.0
"""Seconds of an extension, if none is configured."""
LONGEST_LEASE = 43_200
SHORTEST = 0.01
"""Seconds between two checks, however short the leases are."""

logger = logging.getLogger("redrive.loops")


class Leased(Protocol):
    """A message in hand."""

    @property
    def id(self) -> str: ...

    @property
    def is_finalized(self) -> bool: ...

    def extend_visibility(self, timeout: float) -> None:
        """Raises ReceiptHandleExpiredError if the lease is lost."""


@dataclass(frozen=True, slots=True)
class LeaseExtenderConfig:
    """Seconds. Each `interval` at most one extension, to `extension` from then; `enabled=False`: none at all.

    Without an `extension` it is the visibility timeout of the message, at most 300: so messages of a killed worker are
    delivered again after a short timeout, however long it had worked on them.
    """

    interval: float = 60.0
    extension: float | None = None
    enabled: bool = True
    silence: float = 720.0

    def __post_init__(self) -> None:
        for field in ("interval", "extension", "silence"):
            value: object = getattr(self, field)
            if field == "extension" and value is None:
                continue
            if not is_number(value) or not value > 0:
                raise InvalidParameterError(
                    f"must be greater than 0, got {shown(value)}", field=field, hint="use seconds"
                )
        most = LONGEST if self.extension is None else self.extension
        if most > LONGEST_LEASE:
            hint = f"use at most {LONGEST_LEASE}"
            raise InvalidParameterError(
                f"{most:g} s exceed the longest visibility timeout", field="extension", hint=hint
            )
        if most <= self.interval:
            text = f"{most:g} s end before the next extension, in {self.interval:g} s"
            raise InvalidParameterError(text, field="extension", hint="make it two intervals at least")

    def step(self, visibility: float) -> tuple[float, float]:
        """Interval and extension of messages that were received for so many seconds; 0: not known."""
        if self.extension is not None or not visibility:
            return self.interval, self.extension or LONGEST
        extension = min(LONGEST, visibility)
        # What is extended by little must not be over before its next turn.
        return min(self.interval, extension / 2), extension


class _Held:
    """A message in hand, and until when it is ours, on the monotonic clock in seconds."""

    __slots__ = ("extension", "interval", "message", "next", "until")

    def __init__(self, message: Leased, until: float, first: float, interval: float, extension: float) -> None:
        self.message = message
        self.until = until
        self.next = first
        self.interval = interval
        self.extension = extension


class LeaseExtender:
    """One for each loop: it holds one batch at a time."""

    def __init__(self, config: LeaseExtenderConfig | None = None, *, clock: Clock | None = None) -> None:
        if config is not None:
            check_type(config, LeaseExtenderConfig, field="lease_extender", hint="use LeaseExtenderConfig")
        check_clock(clock)
        self.config = LeaseExtenderConfig() if config is None else config
        self._clock = SystemClock() if clock is None else clock
        self._lock = threading.Lock()
        self._extending = threading.Lock()
        self._held: list[_Held] = []
        self._heartbeat: Heartbeat | None = None
        self._stop: Stop | None = None
        self._thread: threading.Thread | None = None
        self._wakes = 0.0
        self._pause = self.config.interval
        # Time that a test lets pass by itself must not pass while a handler is at work.
        self._busy: Callable[[str], AbstractContextManager[None]] = getattr(self._clock, "busy", _idle)

    @contextmanager
    def attach(
        self,
        messages: Leased | Sequence[Leased],
        heartbeat: Heartbeat,
        *,
        visibility_timeout: float | None = None,
    ) -> Iterator[None]:
        """In the block these are kept, except those that were acknowledged or given back.

        `visibility_timeout`: with how much they were received, a moment ago; None: not known, so that they are extended
        at once. Messages that were received with 0 have no lease, and get none.
        """
        batch = list(messages) if isinstance(messages, Sequence) else [messages]
        if not self.config.enabled or not batch or visibility_timeout == 0:
            yield
            return
        with self._busy("a handler"):
            self._hold(batch, heartbeat, visibility_timeout or 0.0)
            heartbeat.add_callback(self._beaten)
            try:
                yield
            finally:
                heartbeat.remove_callback(self._beaten)
                with self._lock:
                    self._held, self._heartbeat = [], None
                    watch = self._thread
                if self._busy is not _idle and watch is not None:
                    # Nor may a thread that only sleeps on let it pass.
                    self.close()
                    watch.join(SHORTEST * 100)

    def close(self) -> None:
        """No more by itself. It may be used again."""
        with self._lock:
            stop, self._stop, self._thread = self._stop, None, None
        if stop is not None:
            stop.set()

    def _hold(self, batch: list[Leased], heartbeat: Heartbeat, visibility: float) -> None:
        now = self._now()
        # Not later than half of what we have, so that a short lease is prolonged in time.
        first = now + min(self.config.interval, visibility / 2) if visibility > 0 else now
        step = self.config.step(visibility)
        with self._lock:
            self._held = [_Held(message, now + visibility, first, *step) for message in batch]
            self._heartbeat = heartbeat
            self._pause = max(min(self.config.interval, visibility / 2), SHORTEST)
            # A forked child has no thread.
            late = self._thread is None or not self._thread.is_alive() or self._wakes > now + self._pause
        if late:
            self._keep_watch()

    def _keep_watch(self) -> None:
        """A thread that wakes when the first of these is due. Until then it does for all that come."""
        self.close()
        with self._lock:
            stop = self._stop = Stop()
            self._wakes = self._now() + self._pause
            self._thread = threading.Thread(target=self._watch, args=(stop,), name="redrive-extender", daemon=True)
            self._thread.start()

    def _watch(self, stop: Stop) -> None:
        wakes = self._wakes
        while not stop.wait(wakes - self._now(), self._clock):
            heartbeat = self._heartbeat
            if heartbeat is not None and heartbeat.elapsed() < self.config.silence:
                self._extend(self._now())
            with self._lock:
                if not self._held:
                    # The next message in need of a watch starts another.
                    self._thread = None if self._stop is stop else self._thread
                    return
                now = self._now()
                wakes = max(now + SHORTEST, min([now + self._pause, *(held.next for held in self._held)]))
                if self._stop is stop:
                    self._wakes = wakes

    def _beaten(self) -> None:
        # In an event loop nothing may block; the thread does it then.
        if not in_event_loop():
            self._extend(self._now())

    def _extend(self, now: float) -> None:
        """What is due, and would be ours for longer by it."""
        # A beat and the thread may extend at the same time: a handler must not wait for a slow store.
        if not self._extending.acquire(blocking=False):
            return
        try:
            with self._lock:
                due = [held for held in self._held if held.next <= now]
            for held in due:
                if held.message.is_finalized:
                    self._drop(held)
                elif now + held.extension <= held.until:
                    held.next = now + held.interval
                else:
                    self._prolong(held, now)
        finally:
            self._extending.release()

    def _prolong(self, held: _Held, now: float) -> None:
        held.next = now + held.interval
        try:
            held.message.extend_visibility(held.extension)
        except ReceiptHandleExpiredError as error:
            # Another receiver leased it, or it was settled meanwhile: it cannot be settled here any more.
            self._drop(held)
            if not held.message.is_finalized:
                text = "Lease lost while the message was worked on"
                log(logger, logging.WARNING, text, message_id=held.message.id, error=error)
        except Exception as error:  # noqa: BLE001 - a store that is down for now: the work goes on, and so does this
            text = "Lease could not be extended"
            log(logger, logging.WARNING, text, message_id=held.message.id, error=error)
        else:
            held.until = now + held.extension

    def _drop(self, held: _Held) -> None:
        with self._lock:
            if held in self._held:
                self._held.remove(held)

    def _now(self) -> float:
        return self._clock.monotonic() / 1000


def _idle(_what: str) -> AbstractContextManager[None]:
    return nullcontext()
