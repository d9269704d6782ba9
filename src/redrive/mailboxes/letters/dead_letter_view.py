"""Dead-letter view of a mailbox: the letters of the route that has its name, leased in place, as messages."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin

from msgspec import structs

from redrive.blocking.shared_store import Store
from redrive.core import durations
from redrive.core import outcome as o
from redrive.core.acts import Act
from redrive.core.instants import moment
from redrive.core.item import History, Item, Millis, NewItem
from redrive.core.select import Match
from redrive.core.verbs import Answer, Settlement
from redrive.engine.ids import new_id
from redrive.engine.letter_source import LetterSource, at_death, open_letters
from redrive.errors import SerializationError
from redrive.mailboxes.boxes.dead_letter import DeadLetter, dead_letter_of, error_type
from redrive.mailboxes.boxes.envelope import Envelope
from redrive.mailboxes.boxes.message import StoreMessage
from redrive.mailboxes.letters import store_dead_letter
from redrive.mailboxes.metrics import MailboxMetrics, default_metrics
from redrive.office.bulk import discard_letters
from redrive.office.replay.resend import audit_entry

if TYPE_CHECKING:
    from redrive.mailboxes.boxes.mailbox import StoreMailbox
    from redrive.mailboxes.boxes.store import MailboxStore

R = TypeVar("R")


class DeadLetterView:
    """Of one mailbox. `keep`: how long letters are kept, 0 for ever: those that will be discarded are not given."""

    def __init__(self, shared: MailboxStore, name: str, *, keep: Millis = 0) -> None:
        more = (Match("died", "<=", keep),) if keep else ()
        self._source = LetterSource(shared.store, shared.clock, shared.worker, open_letters(name, *more))
        self.look_again = self._source.look_again

    async def receive(self, mailbox: StoreMailbox[Any, R], limit: int, ttl: Millis) -> list[LetterMessage[R]]:
        shared = mailbox.shared
        taken_at = shared.clock.monotonic()
        taken = await self._source.take(limit, max(1, ttl))
        found = await asyncio.gather(*[shared.store.get(item.id) for item in taken])
        # A very short lease may be over, and another process's, before all is read.
        held = [each for each, item in zip(found, taken, strict=True) if each.item.deliveries == item.deliveries]
        messages = [LetterMessage(mailbox, each, self, taken_at=taken_at, ttl=ttl) for each in held]
        if not ttl:
            for message in messages:
                await message.write(message.settlement(o.Release()))
        return messages


class LetterMessage(StoreMessage[Any, R]):
    """A leased letter. Its body is a DeadLetter; `acknowledge` ends the letter, `nack` leaves it one.

    It was enqueued in this mailbox when it died, and its deliveries are counted from then on.
    """

    def __init__(
        self, mailbox: StoreMailbox[Any, R], history: History, view: DeadLetterView, *, taken_at: Millis, ttl: Millis
    ) -> None:
        super().__init__(mailbox, history.item, taken_at=taken_at, ttl=ttl)
        self.history = history
        self._view = view
        self._dead_after = at_death(history)[1]

    def _read(self) -> DeadLetter[Any]:
        return dead_letter_from(self.history, self.envelope, self.mailbox.body_type)

    @property
    def delivery_count(self) -> int:
        return max(1, self.item.deliveries - self._dead_after)

    @property
    def enqueued_at(self) -> datetime:
        return moment(self.item.ended_at or self.item.enqueued_at)

    @cached_property
    def first_received_at(self) -> datetime:
        since = [one for one in self.history.attempts if one.delivery > self._dead_after]
        first = since[0].started_at if since else self.item.leased_at
        return self.enqueued_at if first is None else moment(first)

    @property
    def reply_to_name(self) -> str | None:
        """Of the letter. The reply address of the message that died is in the body."""
        return store_dead_letter.reply_to(self.item, self.envelope)

    def done(self) -> o.Outcome:
        # The message was not processed, so it is not done.
        return o.Cancelled(f"acknowledged in {self.mailbox.name}")

    def _given_back(self, after: Millis) -> o.Outcome:
        return o.Release(f"given back in {self.mailbox.name}", after)

    def settlement(self, outcome: o.Outcome, follow_ups: tuple[NewItem, ...] = ()) -> Settlement:
        settlement = super().settlement(outcome, follow_ups)
        if not isinstance(outcome, o.Cancelled):
            return settlement
        act = Act(self.shared.worker, outcome.note, new_id())
        return structs.replace(settlement, audit=audit_entry("acknowledge", act, self.item.id))

    async def _store_settle(self, settlement: Settlement) -> Answer:
        try:
            return (await self.shared.store.settle_letters([settlement]))[0]
        finally:
            self._view.look_again()


def dead_letter_from(history: History, envelope: Envelope, body_type: Any) -> DeadLetter[Any]:
    """As it was sent, if it was sent as a dead letter; else from its history. `body_type` is the mailbox's."""
    item = history.item
    body = _body(item, envelope, inner(body_type))
    sent = store_dead_letter.sent_letter(item, envelope)
    if sent is not None:
        return replace(sent, body=body)
    attributes = MappingProxyType(envelope.attributes)
    return dead_letter_of(at_death(history)[0], body, reply_to=envelope.reply_to or None, attributes=attributes)


def inner(body_type: Any) -> Any:
    """Of DeadLetter[Order], Order; None for a DeadLetter without a type."""
    if get_origin(body_type) is DeadLetter:
        return get_args(body_type)[0]
    return None if body_type is DeadLetter else body_type


def _body(item: Item, envelope: Envelope, expected: Any) -> Any:
    """The bytes where the body cannot be decoded: a letter can always be read."""
    if item.flaw:
        return item.payload
    try:
        return envelope.load(expected)
    except SerializationError:
        return bytes(envelope.body)


async def expire(store: Store, name: str, keep: Millis, *, metrics: MailboxMetrics | None = None) -> int:
    """Discard the open letters of a mailbox that died longer ago than `keep`; how many. Leased ones are left."""
    counted = default_metrics() if metrics is None else metrics
    old = open_letters(name, Match("died", ">", keep))
    expired = 0
    async for gone in discard_letters(store, old, "retention", f"kept in {name} for {durations.format(keep)}"):
        expired += len(gone)
        for item in gone:
            counted.expired(item.queue, "" if item.letter is None else error_type(item.letter.failure))
    return expired
