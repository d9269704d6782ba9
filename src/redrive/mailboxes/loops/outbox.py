"""Replies to mailboxes of other stores: committed with the end of the message that they answer, and delivered after it.

A reply to the same store is simply put there by the write that ends the message. Any other lies in the outbox of the
message's own mailbox until it arrived, under an id that follows from its own: so it arrives once, whoever dies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct

from redrive.core import outcome as o
from redrive.core.item import Item, Millis, NewItem
from redrive.core.policy import Policy
from redrive.core.verbs import LeaseRequest, QueueChange, Settlement, Want
from redrive.engine.evidence import failure_of
from redrive.engine.ids import new_id
from redrive.engine.report import settlement_of
from redrive.errors import (
    MailboxConnectionError,
    MailboxError,
    MailboxResolutionError,
    RedriveError,
    SerializationError,
)
from redrive.mailboxes import logs
from redrive.mailboxes.boxes import bodies
from redrive.mailboxes.boxes.envelope import FORM, Envelope, opened, sealed
from redrive.mailboxes.boxes.mailbox import Mailbox, StoreMailbox
from redrive.mailboxes.boxes.place import surely
from redrive.mailboxes.letters.claims import name_of
from redrive.office import doors

if TYPE_CHECKING:
    from redrive.mailboxes.boxes.place import Place
    from redrive.mailboxes.loops.settling import Outgoing

BITE = 20
TTL: Millis = 60_000
TRIES = 20
"""With these pauses, somewhat more than an hour. Then it is a letter, for people to look at."""
LONGEST: Millis = 300_000
KEPT: Millis = 3_600_000
ALONE_NEVER = 1_000_000_000
_POLICY = Policy()


class Parcel(Struct, frozen=True, omit_defaults=True):
    """To whom, where that is, and the message as it is to arrive."""

    to: str
    message: Raw
    at: str = ""


_decoder = msgspec.json.Decoder(Parcel)


def queue_of(source: str) -> str:
    """One for each mailbox: those who work for it know how to resolve the names that its messages bring."""
    return f"{source}.outbox"


def outgoing_item(place: Place, outgoing: Outgoing, *, source: str) -> NewItem:
    """What is to be put by the end of a message of `source`: the reply itself, or a parcel for it."""
    to = outgoing.mailbox
    name = to if isinstance(to, str) else to.name
    data, kind = bodies.dumped(outgoing.body, mailbox=name)
    message = sealed(Envelope(FORM, Raw(data), type=kind, attributes=dict(outgoing.attributes)))
    if isinstance(to, StoreMailbox) and to._shares(place):
        return NewItem(new_id(), name, message)
    parcel = Parcel(outgoing.name or name, Raw(message), outgoing.reply_at)
    return NewItem(new_id(), queue_of(source), msgspec.json.encode(parcel))


def forward(mailbox: StoreMailbox[Any, Any], *, reply_type: Any = None) -> int:
    """Deliver what lies in the mailbox's outbox, as far as it can be delivered now; how many arrived.

    `reply_type`: what replies are, for mailboxes of somebody else that take objects and do not say which.
    """
    queue, courier, arrived = queue_of(mailbox.name), _Courier(mailbox, reply_type), 0
    while True:
        items = mailbox._place.call(_lent, mailbox._place, queue)
        if items and not arrived:
            mailbox._place.call(_prepare, mailbox._place, queue)
        arrived += sum([courier.deliver(item) for item in items])
        if len(items) < BITE:
            return arrived


async def _lent(place: Place, queue: str) -> tuple[Item, ...]:
    request = LeaseRequest(place.worker, (Want(queue, BITE, TTL, ALONE_NEVER),), new_id())
    leases, _ = await surely(lambda: place.store.lease(request))
    # What somebody lost who died while he delivered: the id sees to it that it does not arrive twice.
    lost, _ = await surely(lambda: place.store.reclaim(place.worker, (queue,), TTL, BITE))
    return leases.items + lost


async def _prepare(place: Place, queue: str) -> None:
    """What arrived is not kept for ever; and whoever asks about this queue is told whose it is."""
    if (await place.store.settings(queue)).keep is None:
        await place.store.configure(queue, QueueChange(keep=KEPT))
        await doors.mark(place.store, queue, "mailboxes")


class _Courier:
    """Delivers what it can. Where nobody answers, it does not knock again for each parcel."""

    def __init__(self, mailbox: StoreMailbox[Any, Any], reply_type: Any) -> None:
        self._mailbox = mailbox
        self._reply_type = reply_type
        self._away: set[tuple[str, str]] = set()

    def deliver(self, item: Item) -> bool:
        began = self._mailbox.clock.monotonic()
        outcome: o.Outcome = o.Done()
        try:
            parcel = _opened(item)
            if (parcel.to, parcel.at) in self._away:
                outcome = o.Release(after=_pause(item))
            else:
                self._hand_over(item, parcel)
        except RedriveError as error:
            failure = failure_of(error, _POLICY)
            given_up = item.attempt >= TRIES or item.flaw
            outcome = o.Dead(failure, "undeliverable") if given_up else o.Retry(failure, _pause(item))
        place, ran = self._mailbox._place, max(0, self._mailbox.clock.monotonic() - began)
        place.call(_settle, place, item, settlement_of(item, outcome, worker=place.worker, ran=ran))
        return isinstance(outcome, o.Done)

    def _hand_over(self, item: Item, parcel: Parcel) -> None:
        target = self._mailbox._resolve(parcel.to, parcel.at)
        if target is None:
            raise MailboxResolutionError(parcel.to, hint="open the mailbox with a resolver that knows it")
        message = bytes(parcel.message)
        try:
            if isinstance(target, StoreMailbox):
                # Not under the parcel's own id: the mailbox may turn out to be on this very store.
                target._call(target._put, NewItem(name_of("reply", item.id), target.name, message), False)
            else:
                _send(target, opened(message), self._reply_type)
        except MailboxConnectionError:
            self._away.add((parcel.to, parcel.at))
            raise


def _opened(item: Item) -> Parcel:
    try:
        return _decoder.decode(item.payload)
    except (msgspec.MsgspecError, ValueError) as error:
        raise SerializationError(f"this is no parcel: {error}") from error


def _pause(item: Item) -> Millis:
    return min(LONGEST, 1000 << max(0, item.attempt - 1))


async def _settle(place: Place, item: Item, settlement: Settlement) -> None:
    settled, _ = await surely(lambda: place.store.settle([settlement]))
    place.report([item], [settlement], settled.answers)


def _send(target: Mailbox[Any, Any], envelope: Envelope, reply_type: Any) -> None:
    """To somebody else's mailbox, which knows nothing of ids: here it may arrive twice, after a crash."""
    body = _loaded(envelope, target.body_type or reply_type)
    try:
        target.send(body)
    except RedriveError:
        raise
    except Exception as error:
        raise MailboxError(f"{target.name} did not take it: {logs.type_of(error)}: {logs.said(error)}") from error


def _loaded(envelope: Envelope, expected: Any) -> Any:
    data = bytes(envelope.body)
    try:
        return bodies.loaded(data, expected, envelope.type)
    except SerializationError:
        return bodies.loaded(data, None, envelope.type)
