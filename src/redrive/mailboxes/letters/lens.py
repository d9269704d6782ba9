"""The letters of a route as messages of the mailbox that has its name."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin

from msgspec import structs

from redrive.core import outcome as o
from redrive.core.item import History, Item, Millis, NewItem
from redrive.core.select import Ids, Match, Selection
from redrive.core.verbs import Act, Answer, NewEntry, Settlement
from redrive.engine.ids import new_id
from redrive.errors import SerializationError
from redrive.mailboxes.boxes import bodies
from redrive.mailboxes.boxes.dead_letter import DeadLetter, dead_letter_of, moment
from redrive.mailboxes.boxes.envelope import Envelope
from redrive.mailboxes.boxes.message import StoreMessage
from redrive.mailboxes.letters import born
from redrive.mailboxes.letters.lending import Letters, at_death, open_letters
from redrive.stores.audit import AuditRecord, entry

if TYPE_CHECKING:
    from redrive.mailboxes.boxes.mailbox import StoreMailbox
    from redrive.mailboxes.boxes.place import Place

R = TypeVar("R")


class Lens:
    """Of one mailbox: it knows where its next look at the letters begins. `more`: what else must hold for them.

    `keep`: how long they are kept; those that retention will take are not given any more. 0 for ever.
    """

    def __init__(self, place: Place, name: str, *more: Selection, keep: Millis = 0) -> None:
        self._store = place.store
        more += (Match("died", "<=", keep),) if keep else ()
        self._letters = Letters(place.store, place.clock, place.worker, open_letters(name, *more))

    def look_again(self) -> None:
        """One of them was given back."""
        self._letters.look_again()

    async def take(self, count: int, ttl: Millis) -> list[History]:
        """At most so many letters, held for so long, with all that is known of them."""
        taken = await self._letters.take(count, ttl)
        found = await asyncio.gather(*[self._store.get(item.id) for item in taken])
        # A lease of next to nothing may be over, and somebody else's, before all is read.
        return [each for each, item in zip(found, taken, strict=True) if each.item.deliveries == item.deliveries]


class LetterMessage(StoreMessage[Any, R]):
    """A letter in hand. Its body is a DeadLetter; to acknowledge it ends the letter, to give it back leaves it one.

    It came into this mailbox when it died, and its deliveries are counted from there.
    """

    def __init__(self, mailbox: StoreMailbox[Any, R], history: History, *, taken_at: Millis, ttl: Millis) -> None:
        super().__init__(mailbox, history.item, taken_at=taken_at, ttl=ttl)
        self._history = history
        self._dead_after = at_death(history)[1]

    def _read(self) -> DeadLetter[Any]:
        return dead_letter_from(self._history, self._envelope, self._mailbox.body_type)

    @property
    def delivery_count(self) -> int:
        return max(1, self._item.deliveries - self._dead_after)

    @property
    def enqueued_at(self) -> datetime:
        return moment(self._item.ended_at or self._item.enqueued_at)

    @property
    def first_received_at(self) -> datetime:
        since = [one for one in self._history.attempts if one.delivery > self._dead_after]
        first = since[0].started_at if since else self._item.leased_at
        return self.enqueued_at if first is None else moment(first)

    @property
    def reply_to_name(self) -> str | None:
        """Of the letter. Where the message's own answers were to go is told by its body."""
        return born.reply_to(self._item, self._envelope)

    def _done(self) -> o.Outcome:
        # Nobody did what the message asked for: so it is not done.
        return o.Cancelled(f"acknowledged in {self._mailbox.name}")

    def _given_back(self, after: Millis) -> o.Outcome:
        return o.Release(f"given back in {self._mailbox.name}", after)

    def _settlement(self, outcome: o.Outcome, *, follow_ups: tuple[NewItem, ...] = ()) -> Settlement:
        settlement = super()._settlement(outcome, follow_ups=follow_ups)
        if not isinstance(outcome, o.Cancelled):
            return settlement
        act = Act(self._place.worker, outcome.note, new_id())
        return structs.replace(settlement, audit=over("acknowledge", self._item.id, act))

    async def _store_settle(self, settlement: Settlement) -> Answer:
        try:
            return (await self._place.store.settle_letters([settlement]))[0]
        finally:
            if self._mailbox._lens is not None:
                self._mailbox._lens.look_again()


def over(word: str, letter_id: str, act: Act) -> NewEntry:
    """What the audit says of a letter that is none any more: in the write that ends it."""
    return entry(AuditRecord(word, Ids((letter_id,)), (letter_id,)), act)


def dead_letter_from(history: History, envelope: Envelope, body_type: Any) -> DeadLetter[Any]:
    """As it was sent, if it was sent as one; else from what the store knows of it. `body_type` is the mailbox's."""
    item = history.item
    body = _body(item, envelope, inner(body_type))
    sent = born.sent_letter(item, envelope)
    if sent is not None:
        return replace(sent, body=body)
    attributes = MappingProxyType(envelope.attributes)
    return dead_letter_of(at_death(history)[0], body, reply_to=envelope.reply_to or None, attributes=attributes)


def inner(body_type: Any) -> Any:
    """Of DeadLetter[Order], Order; None where nothing is said."""
    if get_origin(body_type) is DeadLetter:
        return get_args(body_type)[0]
    return None if body_type is DeadLetter else body_type


def _body(item: Item, envelope: Envelope, expected: Any) -> Any:
    """Whoever looks at a letter must see it, also where nothing but its bytes can be had."""
    if item.flaw:
        return item.payload
    data = bytes(envelope.body)
    try:
        return bodies.loaded(data, expected, envelope.type)
    except SerializationError:
        return data
