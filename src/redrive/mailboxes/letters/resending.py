"""A letter as the message that it is sent again as: which body, under which id, to whom its answer goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from msgspec import Raw, structs

from redrive.core.item import History, Item, NewItem, Priority
from redrive.engine.forks import parent_only
from redrive.errors import SerializationError
from redrive.mailboxes.boxes import bodies
from redrive.mailboxes.boxes.dead_letter import DeadLetter, error_type
from redrive.mailboxes.boxes.envelope import NOTHING, Lineage, lineage_of, opened, sealed
from redrive.mailboxes.boxes.mailbox import Mailbox, StoreMailbox
from redrive.mailboxes.letters import born
from redrive.mailboxes.letters.claims import name_of
from redrive.mailboxes.letters.lending import at_death
from redrive.mailboxes.letters.lens import dead_letter_from
from redrive.mailboxes.letters.transfer import origin_of

if TYPE_CHECKING:
    from redrive.mailboxes.boxes.resolver import MailboxResolver

Transform = Callable[[DeadLetter[Any]], object]


class Candidate:
    """A letter that is to be replayed, and what is known of it."""

    def __init__(self, history: History, dead_letters: StoreMailbox[Any, Any]) -> None:
        self.history = history
        self.item: Item = history.item
        self.envelope = opened(history.item.payload)
        self.told: DeadLetter[Any] = dead_letter_from(history, self.envelope, dead_letters.body_type)

    @property
    def id(self) -> str:
        return self.item.id

    @property
    def request_id(self) -> UUID | None:
        return self.told.request_id

    @property
    def labels(self) -> tuple[str, str]:
        letter = self.item.letter
        return self.told.source_mailbox, "" if letter is None else error_type(letter.failure)

    @property
    def replays(self) -> int:
        """How often it was replayed before, as itself or as what it was."""
        before = lineage_of(self.item, self.envelope)
        return 0 if before is None else before.replays

    @property
    def came_from_elsewhere(self) -> bool:
        return bool(origin_of(self.item))

    @property
    def was_in_hand(self) -> bool:
        """Since it died: nobody can have begun to send it elsewhere without that."""
        return self.item.deliveries > at_death(self.history)[1]

    @property
    def way(self) -> str:
        """Of this death: it leaves the store by one way only."""
        return name_of("way", self.id, self.item.replays)

    def claim_on(self, target: str) -> str | None:
        """What no other letter of the same request may have, too."""
        return None if self.request_id is None else name_of(target, self.request_id, self.replays + 1)

    def new_id(self, target: str, *, by_request: bool) -> str:
        """The same whenever it is made for this death of the letter: whatever is repeated adds nothing."""
        # A bare payload does not say which letter it was; under the id of the request it might pass for another.
        claim = self.claim_on(target) if by_request and not self.is_bare else None
        return claim or name_of(target, self.id, self.item.replays)

    @property
    def is_bare(self) -> bool:
        """Not sent through a mailbox, so that nobody expects an envelope."""
        return bytes(self.envelope.body) == self.item.payload


class Resending:
    """How letters are sent again: changed or not, urgent or not, with their answers to the same mailbox as before."""

    def __init__(
        self,
        dead_letters: StoreMailbox[Any, Any],
        *,
        transform: Transform | None,
        priority: Priority | None,
        resolver: MailboxResolver | None,
    ) -> None:
        self._dead_letters = dead_letters
        self._transform = transform
        self._priority = priority
        self._resolver = resolver

    def item(self, letter: Candidate, target: StoreMailbox[Any, Any], new_id: str) -> NewItem:
        """Raises what the transformation raises, and SerializationError for what it gives."""
        payload = self._payload(letter, target)
        return NewItem(new_id, target.name, payload, priority=self._priority or letter.item.priority)

    def body(self, letter: Candidate) -> object:
        return letter.told.body if self._transform is None else self._changed(letter, self._transform)

    def reply_to(self, letter: Candidate) -> Mailbox[Any, Any] | None:
        """For somebody else's mailbox, which takes no names."""
        name, at = self._asked_by(letter)
        if not name:
            return None
        if self._resolver is not None:
            return self._resolver.resolve_optional(name)
        return self._dead_letters._resolve(name, at)

    def _payload(self, letter: Candidate, target: StoreMailbox[Any, Any]) -> bytes:
        envelope = letter.envelope
        data, kind = bytes(envelope.body), envelope.type
        if self._transform is not None:
            body = self._changed(letter, self._transform)
            wrong = bodies.refusal(body, target.body_type)
            if wrong is not None:
                raise SerializationError(wrong, hint=f"give what {target.name} was opened for")
            data, kind = bodies.dumped(body, mailbox=target.name)
        if letter.is_bare:
            return data
        before = envelope.lineage
        name, at = self._answers(letter, target)
        changed = structs.replace(
            envelope,
            body=Raw(data),
            type=kind,
            reply_to=name,
            reply_at=at,
            born=NOTHING,
            lineage=Lineage(letter.id if before is None else before.original, letter.id, letter.replays + 1),
        )
        return sealed(changed)

    @staticmethod
    def _changed(letter: Candidate, transform: Transform) -> object:
        with parent_only():
            return transform(letter.told)

    def _answers(self, letter: Candidate, target: StoreMailbox[Any, Any]) -> tuple[str, str]:
        """The name, and where that is unless it is with the target."""
        name, at = self._asked_by(letter)
        if name and self._resolver is not None:
            found = self._resolver.resolve_optional(name)
            name, at = (name, at) if found is None else (found.name, found._address())
        return name, "" if not name or at == target._address() else at

    def _asked_by(self, letter: Candidate) -> tuple[str, str]:
        """Who waits for an answer, and on which store; "" where only whoever gets the message can know."""
        sent = born.sent_letter(letter.item, letter.envelope)
        if sent is not None:
            return sent.reply_to or "", ""
        home = origin_of(letter.item) or self._dead_letters._address()
        return letter.envelope.reply_to, letter.envelope.reply_at or home
