"""What a mailbox gives: a message in hand, until it is acknowledged, given back, or its time is over."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from redrive.blocking.handle import Handle
from redrive.core import outcome as o
from redrive.core.item import Instant, Item, Millis, NewItem
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
from redrive.mailboxes.boxes import bodies
from redrive.mailboxes.boxes.envelope import Envelope, Lineage, lineage_of, opened
from redrive.mailboxes.boxes.limits import visibility

if TYPE_CHECKING:
    from redrive.mailboxes.boxes.mailbox import Mailbox, StoreMailbox

T = TypeVar("T")
R = TypeVar("R")

_MISSING: Any = object()


class Message(ABC, Generic[T, R]):
    """Whoever holds it has it alone for the visibility timeout. `T` is the type of the body, `R` that of replies."""

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
        """Names this delivery: another one has another handle."""

    @property
    @abstractmethod
    def delivery_count(self) -> int:
        """Which delivery this is, from 1. One whose receiver was lost counts; one given back unused does not."""

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
        """Where answers go; None if nobody waits for one, or if the name cannot be resolved here."""
        return None

    @property
    def reply_to_name(self) -> str | None:
        """The name of it, also where it cannot be resolved."""
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
        """It is done, and gone. ReceiptHandleExpiredError if it is not ours any more."""

    @abstractmethod
    def nack(self, visibility_timeout: float = 0) -> None:
        """Give it back: visible again after so many seconds."""

    @abstractmethod
    def extend_visibility(self, timeout: float) -> None:
        """Keep it for so many seconds from now; never for less than it had."""

    @abstractmethod
    def reply(self, body: R) -> str:
        """Send to whoever waits for an answer, as often as you like until it is finalised. Gives the reply's id."""


class StoreMessage(Handle, Message[T, R]):
    """A message of a store. May be used by several threads, as by one that works and one that extends."""

    def __init__(self, mailbox: StoreMailbox[T, R], item: Item, *, taken_at: Millis, ttl: Millis) -> None:
        self._mailbox = mailbox
        self.shared = self._place = mailbox.shared
        self.item = self._item = item
        self._taken_at = taken_at
        self._until = taken_at + ttl
        self._over = False
        self.asked = ""
        """Who asked for it to be cancelled, and why; "" if nobody did."""
        self._only_seen = not ttl
        self._ending = threading.Lock()
        self._opened: Envelope | None = None
        self._body: Any = _MISSING
        self._first_at: Instant | None = item.leased_at if item.deliveries == 1 else None

    def __repr__(self) -> str:
        kind = type(self).__name__
        return f"<{kind} {self.id} of {self._mailbox.name!r}, delivery {self.delivery_count}>"

    # --- what it is -------------------------------------------------------------------------------------------------

    @property
    def lease(self) -> Held:
        return Held(self.item.id, self.item.deliveries)

    @property
    def mailbox_name(self) -> str:
        return self._mailbox.name

    @property
    def reply_at(self) -> str:
        """The address of the reply mailbox if it is on another store; "" if not."""
        return self._envelope.reply_at

    @property
    def _envelope(self) -> Envelope:
        if self._opened is None:
            self._opened = opened(self.item.payload)
        return self._opened

    @property
    def id(self) -> str:
        return self.item.id

    @property
    def body(self) -> T:
        if self._body is _MISSING:
            self._body = self._read()
        return self._body  # type: ignore[no-any-return]  # what it was decoded as is what the mailbox said

    def _read(self) -> Any:
        if self.item.flaw:
            raise SerializationError(f"the message was damaged: {self.item.flaw}", hint="message.raw has what is left")
        return bodies.loaded(bytes(self._envelope.body), self._mailbox.body_type, self._envelope.type)

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
        return _moment(self.item.enqueued_at)

    @property
    def first_received_at(self) -> datetime:
        if self._first_at is None:
            attempts = self._mailbox.call(self.shared.store.get, self.id).attempts
            self._first_at = attempts[0].started_at if attempts else self.item.leased_at or self.item.enqueued_at
        return _moment(self._first_at)

    @property
    def age(self) -> timedelta:
        return timedelta(milliseconds=max(0, self.shared.clock.now() - self.item.renewed_at))

    @property
    def attributes(self) -> Mapping[str, str]:
        return MappingProxyType(self._envelope.attributes)

    @property
    def reply_to(self) -> Mailbox[R, Any] | None:
        name = self.reply_to_name
        return None if name is None else self._mailbox._resolve(name, self._envelope.reply_at)

    @property
    def reply_to_name(self) -> str | None:
        return self._envelope.reply_to or None

    @property
    def lineage(self) -> Lineage | None:
        return lineage_of(self.item, self._envelope)

    @property
    def is_finalized(self) -> bool:
        return self._over

    # --- what becomes of it -----------------------------------------------------------------------------------------

    def acknowledge(self) -> None:
        self._end(self._settlement(self._done()))

    def nack(self, visibility_timeout: float = 0) -> None:
        self._end(self._settlement(self._given_back(visibility(visibility_timeout))))

    def extend_visibility(self, timeout: float) -> None:
        ttl = visibility(timeout, field="timeout")
        self._check_held()
        began = self.shared.clock.monotonic()
        extended = self._mailbox.call(self.shared.store.extend, [self.lease], max(1, ttl))
        if self.id in extended.lost:
            raise self._expired("it was settled, or given to somebody else")
        self._until = max(self._until, began + ttl)

    def reply(self, body: R) -> str:
        if self._over:
            raise MessageFinalizedError(f"message {self.id} was acknowledged or given back: it is too late to answer")
        self._check_held()
        name = self.reply_to_name
        if name is None:
            hint = "whoever sends it says where answers go: send(body, reply_to=mailbox)"
            raise ReplyNotAvailableError(f"message {self.id} names no mailbox for answers", hint=hint)
        mailbox = self.reply_to
        if mailbox is None:
            raise MailboxResolutionError(name, hint="open the mailbox with a resolver that knows it")
        return mailbox.send(body)

    def _done(self) -> o.Outcome:
        return o.Done()

    def _given_back(self, after: Millis) -> o.Outcome:
        return o.Release("nack", after, counted=True)

    def _end(self, settlement: Settlement) -> None:
        """Strict, as users are promised: a handle whose time is over is refused, taken over by somebody or not."""
        self._check_held()
        if self._settle(settlement) is None:
            raise self._expired("it was settled, or given to somebody else")

    def _check_held(self) -> None:
        if self._over:
            raise self._expired("it was acknowledged or given back before")
        if self.shared.clock.monotonic() >= self._until:
            raise self._expired("its visibility timeout has passed")

    def _expired(self, why: str) -> ReceiptHandleExpiredError:
        said = f"receipt handle {self.receipt_handle} is not valid any more: {why}"
        return ReceiptHandleExpiredError(said, hint="the message is delivered again, if it was not acknowledged")

    def settle(self, outcome: o.Outcome | None, *, follow_ups: tuple[NewItem, ...] = ()) -> Answer | None:
        """For loops: end it with this outcome (None: done). Counts after the visibility timeout, too, while no other
        receiver has leased it; None if it did not count.
        """
        return self._settle(self._settlement(self._done() if outcome is None else outcome, follow_ups=follow_ups))

    def _settle(self, settlement: Settlement) -> Answer | None:
        """None: it did not count, since the message has ended before, or is somebody else's now."""
        with self._ending:
            if self._over or self._only_seen:
                return None
            answer = self._mailbox.call(self._write, settlement)
            return None if answer.verdict is Verdict.REFUSED else answer

    async def _write(self, settlement: Settlement) -> Answer:
        """In the loop. `already` is our own, of a try whose answer was lost: nobody else has this delivery."""
        answer, _ = await retry_unknown(lambda: self._store_settle(settlement))
        self._over = answer.verdict is not Verdict.REFUSED
        self.shared.reporter.settled([self.item], [settlement], [answer])
        return answer

    async def _store_settle(self, settlement: Settlement) -> Answer:
        return await self.shared.settle(settlement)

    def _settlement(self, outcome: o.Outcome, *, follow_ups: tuple[NewItem, ...] = ()) -> Settlement:
        ran = max(0, self.shared.clock.monotonic() - self._taken_at)
        return settlement_of(self.item, outcome, worker=self.shared.worker, ran=ran, follow_ups=follow_ups)


def acknowledge_all(
    messages: Sequence[StoreMessage[Any, Any]], call: Callable[..., Sequence[Answer]]
) -> tuple[str, ...]:
    """In one write for messages and one for letters; the ids of those that were not held any more."""
    lost: list[str] = []
    held: list[StoreMessage[Any, Any]] = []
    with ExitStack() as locks:
        for message in {message.receipt_handle: message for message in messages}.values():
            locks.enter_context(message._ending)
            try:
                message._check_held()
            except ReceiptHandleExpiredError:
                lost.append(message.id)
            else:
                held.append(message)
        settlements = [message._settlement(message._done()) for message in held]
        answers = call(_settle_all, held, settlements) if held else ()
        lost += [each.id for each, answer in zip(held, answers, strict=True) if answer.verdict is Verdict.REFUSED]
    return tuple(lost)


async def _settle_all(
    messages: Sequence[StoreMessage[Any, Any]], settlements: Sequence[Settlement]
) -> Sequence[Answer]:
    """In the loop. Letters are few, and end one by one."""
    shared = messages[0].shared
    plain = [at for at, message in enumerate(messages) if message.item.letter is None]
    answers: dict[int, Answer] = {}
    if plain:
        settled, _ = await retry_unknown(lambda: shared.store.settle([settlements[at] for at in plain]))
        answers = dict(zip(plain, settled.answers, strict=True))
        for at, answer in answers.items():
            messages[at]._over = answer.verdict is not Verdict.REFUSED
        shared.reporter.settled([messages[at].item for at in plain], [settlements[at] for at in plain], settled.answers)
    for at, message in enumerate(messages):
        if at not in answers:
            answers[at] = await message._write(settlements[at])
    return [answers[at] for at in range(len(messages))]


def _moment(at: Instant) -> datetime:
    return datetime.fromtimestamp(at / 1000, UTC)
