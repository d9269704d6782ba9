"""Loops that work in rounds, with pauses while the store is unreachable, and loops that receive batches of messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Generic, Protocol, TypeVar

from redrive.blocking.loops.heartbeat import Heartbeat
from redrive.blocking.loops.lease_extender import Leased, LeaseExtender, LeaseExtenderConfig
from redrive.blocking.loops.lifecycle import Living
from redrive.blocking.loops.stop import Stop
from redrive.blocking.shared_store import SharedStore
from redrive.errors import MailboxClosedError, MailboxConnectionError
from redrive.stores.clock import Clock

M = TypeVar("M", bound=Leased)
T = TypeVar("T")

LONGEST_PAUSE = 30.0
"""Seconds between two calls of a store that is unreachable; the first pause is one second, each twice the last."""


class Source(Protocol):
    @property
    def closed(self) -> bool: ...

    @property
    def clock(self) -> Clock: ...


class RoundLoop(Living, ABC):
    """Repeats a round until it is stopped, its source is closed, or the given number of rounds is over.

    `interval`: seconds between two rounds while the store answers.
    """

    def __init__(self, what: str, source: Source, *, interval: float = 0.0) -> None:
        super().__init__(what)
        self._heartbeat = Heartbeat(source.clock)
        self._source = source
        self._clock = source.clock
        self._interval = interval
        self._pause = 0.0
        self._stop = Stop()

    @property
    def heartbeat(self) -> Heartbeat:
        return self._heartbeat

    @abstractmethod
    def _log_outage(self, error: Exception | None, pause: float) -> None:
        """The store did not answer, and is called again after `pause` seconds. Without an error: it answers again."""

    def _repeat(self, most: int | None, once: Callable[[], object], shared: SharedStore | None = None) -> None:
        """`most` None: without limit. `shared`: the store whose operators can stop this loop."""
        with self._life.running() as self._stop, self._life.attended(shared), self._around():
            rounds, self._pause = 0, 0.0
            while not self._stop.is_set() and not self._source.closed and rounds != most:
                rounds += 1
                self._heartbeat.beat()
                try:
                    once()
                    self._answered()
                except MailboxClosedError:
                    pass
                except MailboxConnectionError as error:
                    if not self._source.closed:
                        self._failed_to_answer(error)
                pause = self._pause or self._interval
                if pause and rounds != most:
                    self._stop.wait(pause, self._clock)

    def _around(self) -> AbstractContextManager[object]:
        return nullcontext()

    def _until_answered(self, call: Callable[[], T], if_stopped: T) -> T:
        """Retry until the store answers; `if_stopped` if the loop is stopped or its source closed before."""
        while True:
            try:
                answer = call()
            except MailboxConnectionError as error:
                if self._source.closed:
                    break
                self._failed_to_answer(error)
            else:
                self._answered()
                return answer
            self._heartbeat.beat()
            if self._stop.wait(self._pause, self._clock):
                break
        self._pause = 0.0
        return if_stopped

    def _failed_to_answer(self, error: Exception) -> None:
        self._pause = min(self._pause * 2 or 1.0, LONGEST_PAUSE)
        self._log_outage(error, self._pause)

    def _answered(self) -> None:
        if self._pause:
            self._pause = 0.0
            self._log_outage(None, 0.0)


class BatchLoop(RoundLoop, Generic[M]):
    """Processes messages one after the other, and has their leases extended meanwhile."""

    def __init__(self, what: str, source: Source, lease_extender: LeaseExtenderConfig | None) -> None:
        super().__init__(what, source)
        self._extender = LeaseExtender(lease_extender, clock=source.clock)

    @abstractmethod
    def _process(self, message: M) -> bool:
        """Whether to go on with its batch."""

    @abstractmethod
    def _release(self, message: M) -> None:
        """Give a message back that was not processed. Raises nothing: if the store is away, the lease expires."""

    def _around(self) -> AbstractContextManager[object]:
        return closing(self._extender)

    def _process_batch(self, batch: Sequence[M], visibility: float) -> None:
        """What is not processed is given back."""
        self._life.batch, done = batch, 0
        with self._extender.attach(batch, self._heartbeat, visibility_timeout=visibility):
            try:
                for message in batch:
                    if self._stop.is_set():
                        return
                    goes_on = self._process(message)
                    done += 1
                    self._heartbeat.beat()
                    if not goes_on:
                        return
            finally:
                self._give_back(batch[done:])

    def _give_back(self, batch: Sequence[M]) -> None:
        for message in batch:
            if not message.is_finalized:
                self._release(message)
