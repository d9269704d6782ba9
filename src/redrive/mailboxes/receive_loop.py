"""The base of loops that receive from a mailbox of any class."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar, cast

from redrive.blocking.loops.lease_extender import LeaseExtenderConfig
from redrive.blocking.loops.rounds import BatchLoop
from redrive.core.generics import parameters_of
from redrive.errors import MailboxError
from redrive.mailboxes import logs
from redrive.mailboxes.boxes.mailbox import Mailbox
from redrive.mailboxes.boxes.message import Message
from redrive.mailboxes.metrics import MailboxMetrics, default_metrics
from redrive.mailboxes.validation import check_metrics, check_rounds, check_times

T = TypeVar("T")
R = TypeVar("R")

STEP = 1.0
"""Seconds that a mailbox whose `receive` takes no stop waits at a time."""


class MailboxLoop(BatchLoop[Message[T, R]], Generic[T, R]):
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
        super().__init__(what, mailbox, lease_extender)
        self._requests = mailbox
        self._metrics = default_metrics() if metrics is None else metrics
        self._max_messages = max_messages
        self._takes_stop = "stop" in parameters_of(mailbox.receive)

    @property
    def name(self) -> str:
        return self._requests.name

    @property
    @abstractmethod
    def dead_letters(self) -> tuple[Mailbox[Any, Any], ...]:
        """Mailboxes whose depth is reported."""

    def _log_outage(self, error: Exception | None, pause: float) -> None:
        logs.outage(self.name, error, pause)

    def _run(self, max_iterations: int | None, visibility: float, wait: float) -> None:
        most = check_rounds(max_iterations)
        check_times(visibility, wait)
        for mailbox in self.dead_letters:
            self._metrics.watch(mailbox)
        self._repeat(most, partial(self._round, visibility, wait), getattr(self._requests, "shared", None))

    def _round(self, visibility: float, wait: float) -> None:
        batch = self._receive(visibility, wait)
        self._answered()
        self._process_batch(batch, visibility)

    def _receive(self, visibility: float, wait: float) -> Sequence[Message[T, R]]:
        """A stop ends the wait, within a second where the mailbox's own `receive` takes no stop."""
        asked: dict[str, Any] = {"max_messages": self._max_messages, "visibility_timeout": visibility}
        if self._takes_stop:
            # Beyond what every mailbox promises, so the types do not know it.
            ours: Any = self._requests
            return cast("Sequence[Message[T, R]]", ours.receive(**asked, wait_time_seconds=wait, stop=self._stop))
        while True:
            step = min(wait, STEP)
            wait -= step
            batch = self._requests.receive(**asked, wait_time_seconds=step)
            if batch or wait <= 0 or self._stop.is_set() or self._requests.closed:
                return batch

    def _settled(self, message: Message[T, R], settle: Callable[[], object]) -> bool:
        """Whether it counted. If not, the message comes again, here or to its next receiver."""
        try:
            settle()
        except MailboxError as error:
            logs.not_settled(message.id, error)
            return False
        return True
