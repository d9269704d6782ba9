"""Messages: a delivery is leased until it is acknowledged, given back, or its visibility timeout passes."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from redrive.blocking.handle import Handle
from redrive.core import outcome as o
from redrive.core.instants import moment
from redrive.core.item import Item, Millis, NewItem
from redrive.core.verbs import Answer, Held, Settlement, Verdict
from redrive.engine.report import settlement_of
from redrive.engine.store_retry import retry_unknown
from redrive.errors import (
    MailboxResolutionError,
    MessageFinalizedError,
    ReceiptHandleExpiredError,
    ReplyNotAvailableError,
    SerializationError,
)
from redrive.mailboxes.boxes.envelope import Envelope, Lineage, lineage_of, opened
from redrive.mailboxes.validation import check_visibility

if TYPE_CHECKING:
    from redrive.mailboxes.boxes.mailbox import Mailbox, StoreMailbox

T = TypeVar("T")
R = TypeVar("R")


class Message(ABC, Generic[T, R]):
    """Leased to one receiver for the visibility timeout. `T` is the type of the body, `R` that of replies."""

    @property
    @abstractmethod
    def id(self) -> str: ...

    @property
    @abstractmethod
    def body(self) -> T:
        """Raises SerializationError, each time, if it cannot be read as what the mailbox expects."""

    @property
    @abstractmethod
    def receipt_handle(self) -> str:
        """Names this delivery: the next one has another handle."""

    @property
    @abstractmethod
    def delivery_count(self) -> int:
        """Which delivery this is, from 1. One whose receiver was lost, or that was given back by `nack`, counts; one
        that a loop released, or whose error is excluded, does not.
        """

    @property
    @abstractmethod
    def enqueued_at(self) -> datetime: ...

    @property
    def first_received_at(self) -> datetime:
        return self.enqueued_at

    @property
    def age(self) -> timedelta:
        """Since it was sent, or last replayed."""
        return datetime.now(UTC) - self.enqueued_at

    @property
    def attributes(self) -> Mapping[str, str]:
        return MappingProxyType({})

    @property
    def reply_to(self) -> Mailbox[R, Any] | None:
        """The mailbox for replies; None if the sender named none, or the name cannot be resolved here."""
        return None

    @property
    def reply_to_name(self) -> str | None:
        """Its name, also where it cannot be resolved."""
        return None

    @property
    def lineage(self) -> Lineage | None:
        """Of a message that was replayed, what it was before: `original`, `letter` and `replays`."""
        return None

    @property
    def raw(self) -> bytes:
        """As it is stored."""
        return b""

    @property
    @abstractmethod
    def is_finalized(self) -> bool: ...

    @abstractmethod
    def acknowledge(self) -> None:
        """It is done, and gone. Raises ReceiptHandleExpiredError if the lease is over."""

    @abstractmethod
    def nack(self, visibility_timeout: float = 0) -> None:
        """Give it back: visible again after so many seconds. This delivery counts."""

    @abstractmethod
    def extend_visibility(self, timeout: float) -> None:
        """Keep it for so many seconds from now; never for less than it had."""

    @abstractmethod
    def reply(self, body: R) -> str:
        """Send to the reply mailbox, any number of times until it is finalised. Gives the id of the reply."""


class StoreMessage(Handle, Message[T, R]):
    """A message of a store. Several threads may use it, as one that processes it and one that extends its lease."""

    is_finalized = False

    def __init__(self, mailbox: StoreMailbox[T, R], item: Item, *, taken_at: Millis, ttl: Millis) -> None:
        self.mailbox = mailbox
        self.shared = mailbox.shared
        self.item = item
        self.asked = ""
        """Who requested its cancellation, and why."""
        self.ending = threading.Lock()
        self._taken_at = taken_at
        self._until = taken_at + ttl
        self._only_seen = not ttl

    def __repr__(self) -> str:
        kind = type(self).__name__
        return f"<{kind} {self.id} of {self.mailbox.name!r}, delivery {self.delivery_count}>"

    @property
    def lease(self) -> Held:
        return Held(self.item.id, self.item.deliveries)

    @property
    def mailbox_name(self) -> str:
        return self.mailbox.name

    @cached_property
    def envelope(self) -> Envelope:
        return opened(self.item.payload)

    @property
    def id(self) -> str:
        return self.item.id

    @cached_property
    def body(self) -> T:
        return self._read()  # type: ignore[no-any-return]  # decoded as the body type of the mailbox

    def _read(self) -> Any:
        if self.item.flaw:
            raise SerializationError(f"the message was damaged: {self.item.flaw}", hint="message.raw has what is left")
        return self.envelope.load(self.mailbox.body_type)

    @property
    def raw(self) -> bytes:
        return self.item.payload

    @property
    def receipt_handle(self) -> str:
        return f"{self.item.id}:{self.item.deliveries}"

    @property
    def delivery_count(self) -> int:
        return self.item.attempt

    @property
    def enqueued_at(self) -> datetime:
        return moment(self.item.enqueued_at)

    @cached_property
    def first_received_at(self) -> datetime:
        item = self.item
        attempts = () if item.deliveries == 1 else self.mailbox.call(self.shared.store.get, self.id).attempts
        return moment(attempts[0].started_at if attempts else item.leased_at or item.enqueued_at)

    @property
    def age(self) -> timedelta:
        return timedelta(milliseconds=max(0, self.shared.clock.now() - self.item.renewed_at))

    @property
    def attributes(self) -> Mapping[str, str]:
        return MappingProxyType(self.envelope.attributes)

    @property
    def reply_to(self) -> Mailbox[R, Any] | None:
        name = self.reply_to_name
        return None if name is None else self.mailbox.resolve(name, self.envelope.reply_at)

    @property
    def reply_to_name(self) -> str | None:
        return self.envelope.reply_to or None

    @property
    def lineage(self) -> Lineage | None:
        return lineage_of(self.item, self.envelope)

    # --- settlement -------------------------------------------------------------------------------------------------

    def acknowledge(self) -> None:
        self._end(self.done())

    def nack(self, visibility_timeout: float = 0) -> None:
        self._end(self._given_back(check_visibility(visibility_timeout)))

    def extend_visibility(self, timeout: float) -> None:
        ttl = check_visibility(timeout, field="timeout")
        self.check_held()
        began = self.shared.clock.monotonic()
        extended = self.mailbox.call(self.shared.store.extend, [self.lease], max(1, ttl))
        if self.id in extended.lost:
            raise self._expired("it was settled, or leased to another receiver")
        self._until = max(self._until, began + ttl)

    def reply(self, body: R) -> str:
        if self.is_finalized:
            raise MessageFinalizedError(f"message {self.id} was acknowledged or given back: it is too late to answer")
        self.check_held()
        name = self.reply_to_name
        if name is None:
            hint = "the sender names the mailbox for replies: send(body, reply_to=mailbox)"
            raise ReplyNotAvailableError(f"message {self.id} names no mailbox for answers", hint=hint)
        mailbox = self.reply_to
        if mailbox is None:
            raise MailboxResolutionError(name, hint="open the mailbox with a resolver that knows it")
        return mailbox.send(body)

    def done(self) -> o.Outcome:
        return o.Done()

    def _given_back(self, after: Millis) -> o.Outcome:
        return o.Release("nack", after, counted=True)

    def _end(self, outcome: o.Outcome) -> None:
        """Strict: refused once the visibility timeout has passed, whether the message was leased again or not."""
        self.check_held()
        if self.settle(outcome) is None:
            raise self._expired("it was settled, or leased to another receiver")

    def check_held(self) -> None:
        if self.is_finalized:
            raise self._expired("it was acknowledged or given back before")
        if self.shared.clock.monotonic() >= self._until:
            raise self._expired("its visibility timeout has passed")

    def _expired(self, why: str) -> ReceiptHandleExpiredError:
        text = f"receipt handle {self.receipt_handle} is not valid any more: {why}"
        return ReceiptHandleExpiredError(text, hint="the message is delivered again, if it was not acknowledged")

    def settle(self, outcome: o.Outcome, follow_ups: tuple[NewItem, ...] = ()) -> Answer | None:
        """In one write with the follow-ups, also after the visibility timeout. None: it was settled before, or another
        receiver leased it. Raises MailboxConnectionError; it may then be repeated.
        """
        with self.ending:
            if self.is_finalized or self._only_seen:
                return None
            answer = self.mailbox.call(self.write, self.settlement(outcome, follow_ups))
            return None if answer.verdict is Verdict.REFUSED else answer

    async def write(self, settlement: Settlement) -> Answer:
        """In the loop. `already` is an earlier try of this call: no other receiver has this delivery."""
        answer, _ = await retry_unknown(lambda: self._store_settle(settlement))
        self.is_finalized = answer.verdict is not Verdict.REFUSED
        self.shared.reporter.settled([self.item], [settlement], [answer])
        return answer

    async def _store_settle(self, settlement: Settlement) -> Answer:
        return await self.shared.settle(settlement)

    def settlement(self, outcome: o.Outcome, follow_ups: tuple[NewItem, ...] = ()) -> Settlement:
        ran = max(0, self.shared.clock.monotonic() - self._taken_at)
        worker, release = self.shared.worker, self.shared.release
        return settlement_of(self.item, outcome, worker=worker, ran=ran, follow_ups=follow_ups, release=release)


def acknowledge_all(messages: Sequence[StoreMessage[Any, Any]], call: Callable[..., list[str]]) -> tuple[str, ...]:
    """In one write for messages and one for each letter; the ids of those whose lease was over."""
    lost: list[str] = []
    held: list[StoreMessage[Any, Any]] = []
    given = {message.receipt_handle: message for message in messages}
    with ExitStack() as locks:
        for handle in sorted(given):  # in the same order in each thread: they may have messages in common
            locks.enter_context(given[handle].ending)
        for message in given.values():
            try:
                message.check_held()
            except ReceiptHandleExpiredError:
                lost.append(message.id)
            else:
                held.append(message)
        return (*lost, *(call(_acknowledge, held) if held else ()))


async def _acknowledge(messages: Sequence[StoreMessage[Any, Any]]) -> list[str]:
    """In the loop: the ids of those that were refused."""
    shared = messages[0].shared
    plain = [message for message in messages if message.item.letter is None]
    if plain:
        settlements = [message.settlement(message.done()) for message in plain]
        settled, _ = await retry_unknown(lambda: shared.store.settle(settlements))
        for message, answer in zip(plain, settled.answers, strict=True):
            message.is_finalized = answer.verdict is not Verdict.REFUSED
        shared.reporter.settled([message.item for message in plain], settlements, settled.answers)
    for message in messages:
        if message.item.letter is not None:
            await message.write(message.settlement(message.done()))
    return [message.id for message in messages if not message.is_finalized]
