"""Dead letters are sent back to work: one, or all that match; as they are or changed; home or elsewhere.

    again = Replayer(dead_letters)
    again.matching("error:TimeoutError", reason="the server is back")
    again.matching(lambda letter: letter.delivery_count < 10, limit=100)
    again.one(message, transform=lambda letter: {**letter.body, "model": "small"}, priority="high")

A letter that goes back unchanged to its own store is the same message again, with its history. Any other becomes a new
message, whose `lineage` names the letter and the first message, in one write with the end of the letter. Only across
stores there are two: the message is put under an id that follows from the letter, then the letter ends; whatever is
repeated after a crash adds nothing.

Letters of one request are replayed once to a mailbox, unless `dedupe=False`. What is not replayed stays a letter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from redrive.core.filters import parse
from redrive.core.item import Millis
from redrive.core.quantity import shown
from redrive.core.verbs import Act, Skipped
from redrive.engine.forks import parent_only
from redrive.engine.ids import new_id
from redrive.errors import InvalidParameterError, MailboxError, MailboxResolutionError
from redrive.mailboxes import logs
from redrive.mailboxes.boxes import limits
from redrive.mailboxes.boxes.dead_letter import DeadLetter
from redrive.mailboxes.boxes.mailbox import Mailbox, StoreMailbox, Urgency
from redrive.mailboxes.boxes.message import Message
from redrive.mailboxes.boxes.place import Place
from redrive.mailboxes.boxes.resolver import MailboxResolver
from redrive.mailboxes.letters import claims, replaying
from redrive.mailboxes.letters.lens import LetterMessage
from redrive.mailboxes.letters.plans import Found, Order
from redrive.mailboxes.letters.resending import Candidate, Resending, Transform
from redrive.mailboxes.letters.transfer import origin_of
from redrive.mailboxes.metrics import MailboxMetrics, default_metrics
from redrive.office.said import check_actor, check_limit, check_reason, default_actor

T = TypeVar("T")

Where = str | Callable[[DeadLetter[Any]], object]
"""A filter, as the command line takes it; or a function that is true for those that are meant."""
REASON = "replayed"
BITE = 50
SWEEP: Millis = 60_000


@dataclass(frozen=True)
class Replayed:
    """What became of the letters that were meant.

    `replayed`: the ids of the messages that are on their way now. All others are still letters: `duplicates`, since
    another letter of the same request was replayed; `skipped`, since somebody else has them or had them first; `kept`,
    since they could not be judged, changed or sent. Each with the reason.
    """

    replayed: tuple[str, ...] = ()
    duplicates: tuple[Skipped, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    kept: tuple[Skipped, ...] = ()


class _How(Protocol):
    @property
    def to(self) -> Mailbox[Any, Any] | str | None: ...

    @property
    def transform(self) -> Transform | None: ...

    @property
    def priority(self) -> Urgency | None: ...

    @property
    def dedupe(self) -> bool: ...


class Replayer(Generic[T]):
    """`source`: where letters go unless a call says otherwise; without it, back to the mailbox they came from.

    `resolver` knows where their answers go, where the names alone do not say so.
    """

    def __init__(
        self,
        dead_letters: Mailbox[DeadLetter[T], Any],
        source: Mailbox[T, Any] | None = None,
        resolver: MailboxResolver | None = None,
        metrics: MailboxMetrics | None = None,
    ) -> None:
        if not isinstance(dead_letters, StoreMailbox):
            hint = "use its own receive, send and acknowledge, or replay_handler"
            raise InvalidParameterError(
                f"a {type(dead_letters).__name__} is on no store", field="dead_letters", hint=hint
            )
        limits.options(source=(source, Mailbox, "use open_mailbox, or leave it out: letters then go back home"))
        limits.resolver(resolver, "resolve")
        limits.metrics(metrics)
        self._dead_letters = dead_letters
        self._source = source
        self._resolver = resolver
        self._metrics = default_metrics() if metrics is None else metrics
        self._sweep_at: Millis = 0

    @property
    def dead_letters(self) -> StoreMailbox[Any, Any]:
        return self._dead_letters

    @property
    def _place(self) -> Place:
        return self._dead_letters._place

    def one(
        self,
        which: Message[DeadLetter[T], Any] | str,
        *,
        to: Mailbox[Any, Any] | str | None = None,
        transform: Callable[[DeadLetter[T]], object] | None = None,
        priority: Urgency | None = None,
        dedupe: bool = True,
        reason: str = REASON,
        actor: str | None = None,
    ) -> Replayed:
        """A message that was received from the dead-letter mailbox, or a letter by its id."""
        self._dead_letters._check_open()
        order = self._order(to, transform, priority, dedupe, _act(reason, actor))
        if not isinstance(which, str):
            return self._held(which, order)
        found = Found()
        replaying.replay(order, self._chosen([which], _all, found), found)
        return self._told(found)

    def matching(
        self,
        where: Where | None = None,
        *,
        limit: int | None = None,
        to: Mailbox[Any, Any] | str | None = None,
        transform: Callable[[DeadLetter[T]], object] | None = None,
        priority: Urgency | None = None,
        dedupe: bool = True,
        reason: str = REASON,
        actor: str | None = None,
    ) -> Replayed:
        """All that match now, the longest dead first; at most `limit` of them go. The others are not touched.

        Letters that die while this goes on are not among them, so that none is replayed twice.
        """
        self._dead_letters._check_open()
        check_where(where)
        if limit is not None:
            limits.checked(check_limit, limit)
        order = self._order(to, transform, priority, dedupe, _act(reason, actor))
        more = () if where is None or callable(where) or not where.strip() else (parse(where),)
        judge = where if callable(where) else _all
        ids = self._dead_letters._call(replaying.ids, self._place, self._dead_letters.name, more)
        found = Found()
        for start in range(0, len(ids), BITE):
            if limit is not None and len(found.done) >= limit:
                break
            chosen = self._chosen(ids[start : start + BITE], judge, found)
            replaying.replay(order, chosen if limit is None else chosen[: limit - len(found.done)], found)
        self._sweep()
        return self._told(found)

    def _chosen(self, ids: list[str], judge: Callable[[DeadLetter[Any]], object], found: Found) -> list[Candidate]:
        chosen: list[Candidate] = []
        for each in self._dead_letters._call(replaying.read, self._place, self._dead_letters.name, ids):
            if isinstance(each, Skipped):
                found.skipped.append(each)
                continue
            letter = Candidate(each, self._dead_letters)
            try:
                with parent_only():
                    is_meant = judge(letter.told)
                if is_meant:
                    chosen.append(letter)
            except Exception as error:  # noqa: BLE001 - a letter that cannot be judged is not lost for it
                found.keep(letter, "it could not be judged", error)
        return chosen

    def _these(self, letters: Sequence[Candidate], rule: _How, reason: str, actor: str) -> Replayed:
        """Letters that were read and chosen before, as automatic replay does."""
        order = self._order(rule.to, rule.transform, rule.priority, rule.dedupe, _act(reason, actor))
        found = Found()
        replaying.replay(order, letters, found)
        return self._told(found)

    def _sweep(self) -> None:
        """Claims that are over, at most once a minute. What was replayed is told, also if this cannot be done."""
        place, now = self._place, self._place.clock.monotonic()
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP
            with suppress(MailboxError):
                self._dead_letters._call(claims.sweep, place.store, place.clock.now())

    def _held(self, message: Message[Any, Any], order: Order) -> Replayed:
        if not isinstance(message, LetterMessage) or message._mailbox.name != self._dead_letters.name:
            hint = "give a message that was received from it, or the id of a letter"
            said = f"{message!r} is no letter of {self._dead_letters.name}"
            raise InvalidParameterError(said, field="which", hint=hint)
        message._check_held()
        order.held = True
        found = Found()
        replaying.replay(order, [Candidate(message._history, self._dead_letters)], found)
        message._over = bool(found.done)
        return self._told(found)

    def _order(
        self,
        to: Mailbox[Any, Any] | str | None,
        transform: Transform | None,
        priority: Urgency | None,
        dedupe: bool,  # noqa: FBT001 - as its callers have it
        act: Act,
    ) -> Order:
        urgency = None if priority is None else limits.urgency(priority)
        check_target(to)
        check_transform(transform)
        chosen = self._source if to is None else to
        if isinstance(chosen, Mailbox):
            self._no_grave(chosen)
        resending = Resending(self._dead_letters, transform=transform, priority=urgency, resolver=self._resolver)
        plain = transform is None and urgency is None
        return Order(self._dead_letters, resending, act, lambda letter: self._target(letter, to), dedupe, plain)

    def _target(self, letter: Candidate, to: Mailbox[Any, Any] | str | None) -> Mailbox[Any, Any]:
        chosen = self._source if to is None else to
        if isinstance(chosen, Mailbox):
            return chosen
        if chosen is not None and self._resolver is not None:
            return self._resolver.resolve(chosen)
        origin = "" if chosen is not None else origin_of(letter.item)
        place = Place.open_by(origin) if origin else self._place
        name = letter.told.source_mailbox if chosen is None else chosen
        if place is None:
            hint = "it came from another store, which is not open here: pass source= or to="
            raise MailboxResolutionError(name, hint=hint)
        return self._no_grave(place.mailboxes.get(name) or StoreMailbox._view(name, place))

    def _no_grave(self, target: Mailbox[Any, Any]) -> Mailbox[Any, Any]:
        """Letters are not replayed to where letters lie: whoever receives there would take them for such."""
        own = target.name == self._dead_letters.name and getattr(target, "_place", None) is self._place
        if own or getattr(target, "_dead_letters", False):
            hint = "name the mailbox that is to work on it: to="
            raise InvalidParameterError(f"{target.name} is a mailbox of dead letters", field="to", hint=hint)
        return target

    def _told(self, found: Found) -> Replayed:
        for letter, target, _ in found.done:
            self._metrics.replayed(*letter.labels)
            logs.replayed(message_id=letter.told.message_id, request_id=letter.request_id, to=target)
        for letter, target, _ in found.duplicates:
            logs.duplicate(message_id=letter.told.message_id, request_id=letter.request_id, to=target)
        return Replayed(
            tuple([message_id for _, _, message_id in found.done]),
            tuple([Skipped(letter.id, why) for letter, _, why in found.duplicates]),
            tuple(found.skipped),
            tuple(found.kept),
        )


def _all(_: DeadLetter[Any]) -> bool:
    return True


def _act(reason: str, actor: str | None) -> Act:
    who = default_actor() if actor is None else limits.checked(check_actor, actor)
    return Act(who, limits.checked(check_reason, reason), new_id())


def check_where(where: object) -> None:
    if where is not None and not isinstance(where, str) and not callable(where):
        hint = "give a filter, as 'error:TimeoutError', or a function of the DeadLetter"
        raise InvalidParameterError(f"{shown(where)} chooses no letters", field="where", hint=hint)


def check_target(to: object) -> None:
    if to is not None and not isinstance(to, Mailbox | str):
        hint = "give a mailbox, or the name of one"
        raise InvalidParameterError(f"{shown(to)} is no mailbox", field="to", hint=hint)


def check_transform(transform: object) -> None:
    if transform is not None and not callable(transform):
        hint = "give a function of the DeadLetter that gives the new body"
        raise InvalidParameterError(f"{shown(transform)} changes nothing", field="transform", hint=hint)


def replay(
    which: Message[DeadLetter[Any], Any] | str, dead_letters: Mailbox[DeadLetter[Any], Any] | None = None, **how: Any
) -> Replayed:
    """One letter: a message that was received from a dead-letter mailbox, or an id of one of `dead_letters`.

    `how` is what `Replayer.one` takes, as to=, transform=, priority=, reason=.
    """
    mailbox = which._mailbox if dead_letters is None and isinstance(which, LetterMessage) else dead_letters
    if mailbox is None:
        hint = "give the mailbox, too: replay(which, dead_letters)"
        raise InvalidParameterError(f"{which!r} does not say where it lies", field="dead_letters", hint=hint)
    return Replayer(mailbox).one(which, **how)
