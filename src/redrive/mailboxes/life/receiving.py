"""Receiving by loops: a wait that a stop ends, and pauses with a backoff while the store is unreachable."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from inspect import signature
from typing import Any, Generic, TypeVar, cast

from redrive.blocking.loops.lease_extender import LeaseExtender, LeaseExtenderConfig
from redrive.blocking.loops.lifecycle import Beating
from redrive.blocking.loops.stop import Stop
from redrive.mailboxes import logs
from redrive.mailboxes.boxes.mailbox import Mailbox
from redrive.mailboxes.boxes.message import Message
from redrive.mailboxes.metrics import MailboxMetrics, default_metrics
from redrive.mailboxes.validation import check_metrics, check_rounds, check_times

T = TypeVar("T")
R = TypeVar("R")

STEP = 1.0
"""Seconds that a mailbox whose `receive` takes no stop waits at a time."""
LONGEST_PAUSE = 30.0
"""Seconds between two calls of a store that is unreachable; the first pause is one second, each twice the last."""


def receive_until(
    mailbox: Mailbox[T, R],
    stop: Stop,
    *,
    max_messages: int = 1,
    visibility_timeout: float = 30,
    wait_time_seconds: float = 0,
) -> Sequence[Message[T, R]]:
    asked: dict[str, Any] = {"max_messages": max_messages, "visibility_timeout": visibility_timeout}
    if _takes_stop(type(mailbox)):
        # Beyond what every mailbox promises, so the types do not know it.
        ours: Any = mailbox
        return cast("Sequence[Message[T, R]]", ours.receive(**asked, wait_time_seconds=wait_time_seconds, stop=stop))
    while True:
        step = min(wait_time_seconds, STEP)
        wait_time_seconds -= step
        got = mailbox.receive(**asked, wait_time_seconds=step)
        if got or wait_time_seconds <= 0 or stop.is_set() or mailbox.closed:
            return got


@lru_cache
def _takes_stop(kind: type[Mailbox[Any, Any]]) -> bool:
    return "stop" in signature(kind.receive).parameters


class Outage:
    """The connection to the store of one mailbox. `pause`: seconds until the next call, 0 while it answers."""

    def __init__(self, mailbox: str) -> None:
        self._mailbox = mailbox
        self.pause = 0.0

    def goes_on(self, error: Exception) -> float:
        """After a failed call."""
        self.pause = min(self.pause * 2 or 1.0, LONGEST_PAUSE)
        logs.log(
            logging.ERROR,
            "Mailbox unreachable",
            mailbox=self._mailbox,
            error=logs.text_of(error),
            retry_in_seconds=self.pause,
        )
        return self.pause

    def is_over(self) -> None:
        """After each successful call."""
        if self.pause:
            self.pause = 0.0
            logs.log(logging.WARNING, "Mailbox reachable again", mailbox=self._mailbox)


class MailboxLoop(Beating, ABC, Generic[T, R]):
    """Receives from one mailbox until it is stopped, the mailbox is closed, or the given rounds are over."""

    def __init__(
        self,
        what: str,
        mailbox: Mailbox[T, R],
        metrics: MailboxMetrics | None,
        *,
        max_messages: int,
        lease_extender: LeaseExtenderConfig | None,
    ) -> None:
        check_metrics(metrics)
        super().__init__(what, mailbox.clock)
        self._requests = mailbox
        self._clock = mailbox.clock
        self._metrics = default_metrics() if metrics is None else metrics
        self._max_messages = max_messages
        self._extender = LeaseExtender(lease_extender, clock=mailbox.clock)
        self._outage = Outage(mailbox.name)
        self._stop = Stop()

    @property
    def name(self) -> str:
        return self._requests.name

    @property
    @abstractmethod
    def dead_letters(self) -> tuple[Mailbox[Any, Any], ...]:
        """Mailboxes whose depth is reported."""

    @abstractmethod
    def _round(self, visibility: float, wait: float) -> None: ...

    def _repeat(self, max_iterations: int | None, visibility: float, wait: float) -> None:
        most, rounds = check_rounds(max_iterations), 0
        check_times(visibility, wait)
        for mailbox in self.dead_letters:
            self._metrics.watch(mailbox)
        shared = getattr(self._requests, "shared", None)
        with self._life.running() as self._stop, self._life.attended(shared), self._around():
            try:
                while not self._stop.is_set() and not self._requests.closed and rounds != most:
                    rounds += 1
                    self._heartbeat.beat()
                    self._round(visibility, wait)
            finally:
                self._extender.close()

    def _around(self) -> AbstractContextManager[None]:
        return nullcontext()

    def _receive(self, visibility: float, wait: float) -> Sequence[Message[T, R]]:
        return receive_until(
            self._requests,
            self._stop,
            max_messages=self._max_messages,
            visibility_timeout=visibility,
            wait_time_seconds=wait,
        )
