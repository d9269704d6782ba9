"""The life cycle of a loop, consumer or group: it runs in one thread at a time, and any other thread may stop it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import Any, Self

from redrive.blocking.handle import Handle
from redrive.blocking.loops.stop import Stop
from redrive.blocking.shared_store import SharedStore
from redrive.core.validation import check_timeout
from redrive.engine.receiver_tasks import Delivery, ReceiveLoop
from redrive.errors import InvalidParameterError


class Life:
    """One run at a time, and a shutdown that really waits."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.Lock()
        self._stop: Stop | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.batch: Sequence[Any] = ()
        """The messages that the run received last; those of a store have an `item`."""

    @property
    def alive(self) -> bool:
        return self._stop is not None

    @contextmanager
    def running(self) -> Iterator[Stop]:
        """The block is the run. Each run has a `Stop` of its own, so that it may run again after a shutdown."""
        with self._lock:
            if self._stop is not None:
                text = f"this {self._what} is already running"
                raise InvalidParameterError(text, hint="run another one beside it")
            stop = self._stop = Stop()
            self._ended.clear()
            self._thread = threading.current_thread()
        try:
            yield stop
        finally:
            with self._lock:
                self._stop = self._thread = None
                self._ended.set()

    def attended(self, shared: SharedStore | None) -> AbstractContextManager[None]:
        """Around a run on this store: an operator can stop it, and sees the number of its deliveries."""
        return nullcontext() if shared is None else shared.tasks.attended(ReceiveLoop(self.stop, self._in_hand))

    def _in_hand(self) -> list[Delivery]:
        return [each for each in self.batch if hasattr(each, "item") and not each.is_finalized]

    def stop(self) -> None:
        """Stop soon, without waiting."""
        with self._lock:
            stop = self._stop
        if stop is not None:
            stop.set()

    def shutdown(self, timeout: float) -> bool:
        """True if it has stopped within so many seconds. Called in its own thread, it stops after this."""
        with self._lock:
            stop, thread = self._stop, self._thread
        if stop is None:
            return True
        stop.set()
        return thread is not threading.current_thread() and self._ended.wait(max(0.0, timeout))


class Living(Handle):
    """Leaving its `with` block stops it."""

    _instead = "make it in the process where it runs"

    def __init__(self, what: str) -> None:
        self._life = Life(what)

    @property
    def running(self) -> bool:
        return self._life.alive

    def shutdown(self, *, timeout: float = 30.0) -> bool:
        """Stop, and wait; True if it has stopped by then. The message in hand is finished first."""
        check_timeout(timeout)
        return self._life.shutdown(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()
