"""Translation of dead letters into replay plans: target mailbox, body, envelope, id and reply address."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec import Raw, structs

from redrive.core import typed_codec
from redrive.core.acts import Act, Refusal, Replay, SkipCode, refusal, unreadable
from redrive.core.item import History, Item, NewItem, Priority
from redrive.core.states import Disposition
from redrive.engine.forks import parent_only
from redrive.engine.store_retry import retry_unknown
from redrive.errors import (
    InvalidParameterError,
    MailboxConnectionError,
    MailboxResolutionError,
    NotFound,
)
from redrive.mailboxes.boxes.dead_letter import DeadLetter
from redrive.mailboxes.boxes.envelope import NOTHING, Lineage, lineage_of, opened, sealed
from redrive.mailboxes.boxes.mailbox import Mailbox, StoreMailbox
from redrive.mailboxes.boxes.resolver import MailboxResolver
from redrive.mailboxes.boxes.store import MailboxStore
from redrive.mailboxes.letters import store_dead_letter
from redrive.mailboxes.letters.dead_letter_view import dead_letter_from
from redrive.office.replay.move import origin_of
from redrive.office.replay.resend import Candidate, LetterReplay, Plan

Transform = Callable[[DeadLetter[Any]], object]


class LetterToReplay(Candidate):
    """A letter of a mailbox. Its dedupe key is the id of the request, its subject the DeadLetter."""

    def __init__(self, history: History, dead_letters: StoreMailbox[Any, Any]) -> None:
        self.envelope = opened(history.item.payload)
        subject = dead_letter_from(history, self.envelope, dead_letters.body_type)
        key = None if subject.request_id is None else str(subject.request_id)
        super().__init__(history, key, _replays_of(history.item), subject)

    @property
    def is_bare(self) -> bool:
        """Not sent through a mailbox: its receiver expects no envelope."""
        return bytes(self.envelope.body) == self.item.payload


@dataclass(frozen=True)
class MailboxPlan(Plan):
    target: Any = None
    body: object = None


class MailboxReplay(LetterReplay):
    """`to`: the target of all letters, or its name. `judge` is true for letters that are meant."""

    same, anyway = "of the same request", "with dedupe=False"
    missing = "no such message"
    fatal_in_send = (MailboxConnectionError,)

    def __init__(self, dead_letters: StoreMailbox[Any, Any], act: Act, *, dedupe: bool) -> None:
        shared = dead_letters.shared
        super().__init__(shared.store, shared.clock, shared.worker, act, dedupe=dedupe, change=Replay())
        self._dead_letters = dead_letters
        self.to: Mailbox[Any, Any] | str | None = None
        self.judge: Callable[[DeadLetter[Any]], object] | None = None
        self.transform: Transform | None = None
        self.priority: Priority | None = None
        self.resolver: MailboxResolver | None = None

    def refused(self, item: Item) -> Refusal | None:
        return not_in(self._dead_letters.name, item)

    def replays_of(self, item: Item) -> int:
        return _replays_of(item)

    def plan(self, history: History) -> Plan | Refusal | None:
        letter = LetterToReplay(history, self._dead_letters)
        if self.judge is not None:
            try:
                with parent_only():
                    if not self.judge(letter.subject):
                        return None
            except Exception as error:  # noqa: BLE001 - of the user's function
                self.keep(letter.id, "it could not be judged", error)
                return None
        if letter.item.flaw:
            return unreadable(letter.item.flaw, letter.item.sealed)
        target = self._target(letter)
        make = partial(MailboxPlan, letter, target.name, destination(target), target=target)
        if not isinstance(target, StoreMailbox):
            return make(away=True, body=self._body(letter))
        away = target.shared is not self._dead_letters.shared
        changed = self.transform is not None or self.priority is not None
        if not (changed or away or self.held or origin_of(letter.item)):
            return make()
        # To another store the id is the same with `dedupe` and without: the repetition after a crash may differ. A
        # payload without an envelope does not name its letter; under the id of the request it could be another's.
        by_request = (self.dedupe or away) and not letter.is_bare
        key = (letter.claim_on(target.name) if by_request else None) or letter.own_id(target.name)
        priority = self.priority or letter.item.priority
        return make(NewItem(key, target.name, self._payload(letter, target), priority=priority), away)

    def send(self, plan: Plan) -> tuple[str, str]:
        assert isinstance(plan, MailboxPlan) and isinstance(plan.letter, LetterToReplay)  # noqa: S101, PT018 - see plan
        if plan.item is None:
            return plan.target.send(plan.body, self._reply_to(plan.letter)), ""
        other = plan.target.call(_put, plan.target, plan.item, plan.letter.id)
        if not other or self.dedupe:
            return plan.item.id, other
        own = structs.replace(plan.item, id=plan.letter.own_id(plan.queue))
        return own.id, plan.target.call(_put, plan.target, own, plan.letter.id)

    def _target(self, letter: LetterToReplay) -> Mailbox[Any, Any]:
        if isinstance(self.to, Mailbox):
            return self.to
        if self.to is not None and self.resolver is not None:
            return self.resolver.resolve(self.to)
        origin = "" if self.to is not None else origin_of(letter.item)
        shared = MailboxStore.find(origin) if origin else self._dead_letters.shared
        name = letter.subject.source_mailbox if self.to is None else self.to
        if shared is None:
            hint = "it came from another store, which is not open here: pass source= or to="
            raise MailboxResolutionError(name, hint=hint)
        return self.no_dead_letters(StoreMailbox.of(name, shared))

    def no_dead_letters(self, target: Mailbox[Any, Any]) -> Mailbox[Any, Any]:
        """Its receivers would take a replayed message for a letter."""
        own = self._dead_letters
        if isinstance(target, StoreMailbox) and (
            target.holds_letters or (target.name == own.name and target.shared is own.shared)
        ):
            hint = "name the mailbox that is to work on it: to="
            raise InvalidParameterError(f"{target.name} is a mailbox of dead letters", field="to", hint=hint)
        return target

    def _body(self, letter: LetterToReplay) -> object:
        if self.transform is None:
            return letter.subject.body
        with parent_only():
            return self.transform(letter.subject)

    def _payload(self, letter: LetterToReplay, target: StoreMailbox[Any, Any]) -> bytes:
        envelope = letter.envelope
        data, kind = bytes(envelope.body), envelope.type
        if self.transform is not None:
            data, kind = typed_codec.dump(self._body(letter), expected=target.body_type, to=target.name)
        if letter.is_bare:
            return data
        before = envelope.lineage
        name, at = self._reply_address(letter)
        if name and self.resolver is not None and (found := self.resolver.resolve_optional(name)) is not None:
            name, at = found.name, found.reply_address()
        changed = structs.replace(
            envelope,
            body=Raw(data),
            type=kind,
            reply_to=name,
            reply_at="" if not name or at == target.reply_address() else at,
            dead_letter=NOTHING,
            lineage=Lineage(letter.id if before is None else before.original, letter.id, letter.replays + 1),
        )
        return sealed(changed)

    def _reply_to(self, letter: LetterToReplay) -> Mailbox[Any, Any] | None:
        """For a mailbox of another library, which takes no names."""
        name, at = self._reply_address(letter)
        if name and self.resolver is not None:
            return self.resolver.resolve_optional(name)
        return self._dead_letters.resolve(name, at) if name else None

    def _reply_address(self, letter: LetterToReplay) -> tuple[str, str]:
        """The name of the reply mailbox and its store; "" where only the receiver of the message can know it."""
        sent = store_dead_letter.sent_letter(letter.item, letter.envelope)
        if sent is not None:
            return sent.reply_to or "", ""
        home = origin_of(letter.item) or self._dead_letters.reply_address()
        return letter.envelope.reply_to, letter.envelope.reply_at or home


def not_in(name: str, item: Item) -> Refusal | None:
    """Why an item is not an open letter of the mailbox, or None."""
    letter = item.letter
    if letter is None:
        return refusal(Replay(), item.state, None)
    if letter.route != name:
        return Refusal(f"it is not in {name}, but in {letter.route or 'no mailbox'}", "moved")
    if letter.disposition is Disposition.OPEN:
        return None
    code: SkipCode = "archived" if letter.disposition is Disposition.ARCHIVED else "trash"
    return Refusal(f"it is not in {name}, but in the {letter.disposition}", code)


def destination(target: Mailbox[Any, Any]) -> str:
    """The same in each process. A store in memory has no name that another process would know it by."""
    info = target.shared.store.info() if isinstance(target, StoreMailbox) else None
    return target.name if info is None or info.engine == "memory" else f"{target.name} on {info.location}"


def _replays_of(item: Item) -> int:
    before = lineage_of(item, opened(item.payload))
    return 0 if before is None else before.replays


async def _put(target: StoreMailbox[Any, Any], item: NewItem, letter_id: str) -> str:
    """The other letter that a message of this id came from already, if there is one."""
    store = target.shared.store
    await target.prepare()
    result, _ = await retry_unknown(lambda: store.put([item]))
    if not result.already:
        return ""
    try:
        there = opened((await store.get(item.id)).item.payload).lineage
    except NotFound:
        return ""  # put by an earlier try of this letter, which has the claim; processed and removed since
    return there.letter if there is not None and there.letter != letter_id else ""
