"""Replies and dead letters for mailboxes of other stores, as outbox items of the engine.

A reply to the same store is put there by the write that ends the message; for any other the write puts an outbox item.
Its target is the source mailbox, whose loops can resolve the names in its messages, and the store that receives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ParamSpec

import msgspec
from msgspec import Raw, Struct

from redrive.core import outcome as o
from redrive.core.acts import Act
from redrive.core.item import Item, Millis, NewItem
from redrive.engine.ids import new_id
from redrive.engine.outbox import POLICY, Undeliverable, destination_id, outbox_item
from redrive.engine.signals import Snooze
from redrive.errors import MailboxConnectionError, MailboxError, MailboxResolutionError, SerializationError
from redrive.mailboxes import logs
from redrive.mailboxes.boxes.envelope import Envelope, enclosed, opened, sealed
from redrive.mailboxes.boxes.mailbox import Mailbox, StoreMailbox
from redrive.mailboxes.boxes.message import Message, StoreMessage

if TYPE_CHECKING:
    from redrive.mailboxes.boxes.store import MailboxStore

P = ParamSpec("P")
AnyMailbox = Mailbox[Any, Any]
EACH: Millis = 60_000
"""From one look for outbox items that other processes left to the next."""
NAME_LIMIT = 80


class Delivery(Struct, frozen=True, omit_defaults=True):
    """The payload of an outbox item: to which mailbox, and the reply itself or the id of the dead letter."""

    to: str
    at: str = ""
    message: Raw = Raw(b"")
    letter: str = ""


_decoder = msgspec.json.Decoder(Delivery)


def target_for(source: str, mailbox: AnyMailbox | str) -> str:
    """The outbox target of what `source` sends to a mailbox; a string is a name that is not resolved yet."""
    if len(source) > NAME_LIMIT or "@" in source:
        source = f"{source.replace('@', '.')[: NAME_LIMIT - 13]}~{sha256(source.encode()).hexdigest()[:12]}"
    return f"mailbox.{source}" + (f"@{mailbox.reply_address()}" if isinstance(mailbox, StoreMailbox) else "")


def shares_store(shared: MailboxStore, mailbox: AnyMailbox | str) -> bool:
    """Whether one write to this store reaches the mailbox, too."""
    return isinstance(mailbox, StoreMailbox) and mailbox.shares(shared)


def reply_item(message: StoreMessage[Any, Any], body: object) -> NewItem:
    """What the write that ends a message puts: its reply, or an outbox item with the reply for another store."""
    name, found = message.reply_to_name or "", message.reply_to
    to = name if found is None else found
    reply = sealed(enclosed(body, name))
    if isinstance(to, StoreMailbox) and shares_store(message.shared, to):
        return NewItem(new_id(), to.name, reply, release=message.shared.release)
    delivery = Delivery(name, message.envelope.reply_at, Raw(reply))
    return outbox_item(target_for(message.mailbox.name, to), msgspec.json.encode(delivery))


def letter_item(letter_id: str, target: AnyMailbox, *, source: str) -> NewItem:
    """The outbox item that moves a dead letter of `source` to a mailbox of another store."""
    delivery = Delivery(target.name, target.reply_address(), letter=letter_id)
    return outbox_item(target_for(source, target), msgspec.json.encode(delivery))


class LoopOutbox:
    """Delivers the outbox items of a loop's mailbox while the loop runs, by the worker that its store's loops share.

    `reply_type` gives the type of replies, for mailboxes that do not name what they take.
    """

    def __init__(
        self, source: StoreMailbox[Any, Any], letters: Sequence[AnyMailbox], reply_type: Callable[[], Any]
    ) -> None:
        self._source = source
        self._letters = letters
        self._reply_type = reply_type
        self._due = False
        self._next: Millis | None = None
        self._away: dict[str, Millis] = {}

    def note(self, message: Message[Any, Any], letters: AnyMailbox | None = None) -> None:
        """After the end of a message: its reply and its dead letter are outbox items if they are for another store."""
        shared, name = self._source.shared, message.reply_to_name
        answers = name if name is None or message.reply_to is None else message.reply_to
        elsewhere = [each for each in (answers, letters) if each is not None and not shares_store(shared, each)]
        served = [shared.tasks.outbox.serves(target_for(self._source.name, each)) for each in elsewhere]
        self._due |= not all(served)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Around a run of the loop: what is there at its start and at its end is tried before it goes on."""
        outbox = self._source.shared.tasks.outbox
        registration = outbox.register(target_for(self._source.name, ""), self._deliver, breaker=False)
        self._next = None
        try:
            yield
            if outbox.in_background:
                self._call(outbox.look, wait=True)
        finally:
            self._call(outbox.release, registration)

    def run(self) -> None:
        """If there is something new, or a minute has passed."""
        now = self._source.clock.monotonic()
        if self._due or self._next is None or now >= self._next:
            first, self._due, self._next = self._next is None, False, now + EACH
            self._call(self._source.shared.tasks.outbox.look, wait=first)

    def _call(self, method: Callable[P, Coroutine[Any, Any, None]], *args: P.args, **kwargs: P.kwargs) -> None:
        source = self._source
        try:
            if not source.closed:
                source.shared.call(method, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - a loop does not end because of another store
            if not (isinstance(error, MailboxError) and source.closed):
                logs.log(logging.WARNING, "Not delivered yet", source_mailbox=source.name, error=error)

    def _deliver(self, item: Item) -> None:
        """In a thread of the worker."""
        source = self._source
        if item.flaw:
            raise Undeliverable(item.flaw)
        delivery = _decoder.decode(item.payload)
        target = self._letters_of(delivery) if delivery.letter else source.resolve(delivery.to, delivery.at)
        if target is None:
            raise MailboxResolutionError(delivery.to, hint="open the mailbox with a resolver that knows it")
        store, now = target.reply_address(), source.clock.monotonic()
        if now < self._away.get(store, 0):
            raise Snooze(timedelta(milliseconds=self._away[store] - now), note=f"{target.name} could not be reached")
        try:
            if delivery.letter:
                move_letter(source, target, delivery.letter)
            elif isinstance(target, StoreMailbox):
                # Under another id than the outbox item's: the mailbox may be on the same store after all.
                body, release = bytes(delivery.message), target.shared.release
                reply = NewItem(destination_id(item), target.name, body, release=release)
                target.call(target.put, reply, False)
            else:
                _send(target, opened(bytes(delivery.message)), target.body_type or self._reply_type())
        except MailboxConnectionError:
            self._away[store] = now + (POLICY.backoff.delay(item.errors + 1, 0.5) or 0)
            raise

    def _letters_of(self, delivery: Delivery) -> AnyMailbox | None:
        """The dead-letter mailbox by its name and store; one of the user's own class has another address each time."""
        named = [each for each in self._letters if each.name == delivery.to]
        ours = [each for each in named if each.reply_address() == delivery.at or not isinstance(each, StoreMailbox)]
        return ours[0] if ours else None


def move_letter(source: StoreMailbox[Any, Any], target: AnyMailbox, letter_id: str) -> bool:
    """False if it is not an open letter of `source` any more, or `target` is on the same store."""
    # Most loops have their dead letters on their own store.
    from redrive.mailboxes.letters.dead_letter_view import dead_letter_from
    from redrive.office.replay import move

    shared = source.shared
    letter = shared.call(move.lease, shared.store, shared.worker, letter_id)
    if letter is None:
        return False
    outcome: o.Outcome = o.Release(f"not moved to {target.name}")
    try:
        if letter.item.flaw:
            raise Undeliverable(f"the letter is damaged: {letter.item.flaw}")
        if not isinstance(target, StoreMailbox):
            target.send(dead_letter_from(letter, opened(letter.item.payload), target.body_type or source.body_type))
            outcome = o.Cancelled(f"moved to {target.name} on another store")
        else:
            target.call(target.prepare)
            act = Act(shared.worker, f"moved to {target.name} from another store", new_id())
            if target.call(move.take_in, target.shared.store, letter, shared.fingerprint, act):
                outcome = o.Cancelled(f"moved to {target.name} on another store ({target.reply_address()})")
            target.shared.notify_from_thread(target.name)
    finally:
        shared.call(move.end, shared.store, shared.worker, letter.item, outcome)
    return isinstance(outcome, o.Cancelled)


def _send(target: AnyMailbox, envelope: Envelope, expected: Any) -> None:
    """To a mailbox of the user's own class, which takes no ids: a reply may arrive twice, after a crash."""
    try:
        body = envelope.load(expected)
    except SerializationError:
        body = envelope.load(None)
    target.send(body)
