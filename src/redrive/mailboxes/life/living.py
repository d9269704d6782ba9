"""What loops, consumers and groups have in common: they run in one thread at a time, and any other may stop them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from redrive.engine.receiver_tasks import ReceiveLoop
from redrive.errors import InvalidParameterError
from redrive.mailboxes.boxes import limits
from redrive.mailboxes.boxes.handle import Handle
from redrive.mailboxes.boxes.mailbox import Mailbox, StoreMailbox
from redrive.mailboxes.boxes.message import Message, StoreMessage
from redrive.mailboxes.boxes.stop import Stop
from redrive.mailboxes.life.heartbeat import Heartbeat
from redrive.stores.clock import Clock


class Life:
    """One run at a time, and a shutdown that really waits."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.Lock()
        self._stop: Stop | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.batch: Sequence[Message[Any, Any]] = ()
        """What it received last."""

    @property
    def alive(self) -> bool:
        return self._stop is not None

    @contextmanager
    def running(self) -> Iterator[Stop]:
        """The block is the run. Each run has a `Stop` of its own, so that it may run again after a shutdown."""
        with self._lock:
            if self._stop is not None:
                said = f"this {self._what} runs already"
                raise InvalidParameterError(said, hint="run another one beside it, on the same mailbox")
            stop = self._stop = Stop()
            self._ended.clear()
            self._thread = threading.current_thread()
        try:
            yield stop
        finally:
            with self._lock:
                self._stop = self._thread = None
                self._ended.set()

    @contextmanager
    def attended(self, mailbox: Mailbox[Any, Any]) -> Iterator[None]:
        """Around a run on this mailbox: an operator can end it, and sees how many messages it has in hand."""
        if isinstance(mailbox, StoreMailbox):
            with mailbox.shared.tasks.attended(ReceiveLoop(self.tell, self._in_hand)):
                yield
        else:
            yield

    def _in_hand(self) -> list[StoreMessage[Any, Any]]:
        return [each for each in self.batch if isinstance(each, StoreMessage) and not each.is_finalized]

    def tell(self) -> None:
        """Stop, soon. Without waiting."""
        with self._lock:
            stop = self._stop
        if stop is not None:
            stop.set()

    def shutdown(self, timeout: float) -> bool:
        """True if it has stopped within so many seconds. Told by its own thread, it stops after this."""
        with self._lock:
            stop, thread = self._stop, self._thread
        if stop is None:
            return True
        stop.set()
        return thread is not threading.current_thread() and self._ended.wait(max(0.0, timeout))


class Living(Handle):
    """Leaving its `with` block stops it."""

    _instead = "make it in the process where it runs, on mailboxes that are opened there"

    def __init__(self, what: str) -> None:
        self._life = Life(what)

    @property
    def running(self) -> bool:
        return self._life.alive

    def shutdown(self, *, timeout: float = 30.0) -> bool:
        """Tell it to stop, and wait; True if it has stopped by then. The message under way is finished first."""
        limits.patience(timeout)
        return self._life.shutdown(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()


class Beating(Living):
    """One that a group can watch."""

    def __init__(self, what: str, clock: Clock) -> None:
        super().__init__(what)
        self._heartbeat = Heartbeat(clock)

    @property
    def heartbeat(self) -> Heartbeat:
        return self._heartbeat
