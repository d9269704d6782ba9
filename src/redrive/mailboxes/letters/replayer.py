"""Replay of dead letters of a mailbox: one, or all that match; unchanged or transformed; to their mailbox or another.

    again = Replayer(dead_letters)
    again.matching("error:TimeoutError", reason="the server is back")
    again.matching(lambda letter: letter.delivery_count < 10, limit=100)
    again.one(message, transform=lambda letter: {**letter.body, "model": "small"}, priority="high")

A letter that goes back unchanged to its own store is the same message again, with its history. Any other becomes a new
message, whose `lineage` names the letter and the first message. Letters of one request are replayed once to a mailbox,
unless `dedupe=False`. What is not replayed stays a letter.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from redrive.core.acts import Act, Skipped
from redrive.core.filters import parse
from redrive.core.item import Millis
from redrive.core.quantity import shown
from redrive.core.select import Selection
from redrive.core.validation import check_count, check_function, check_optional
from redrive.engine.ids import new_id
from redrive.engine.letter_source import open_letters
from redrive.errors import InvalidParameterError, MailboxError
from redrive.mailboxes import logs
from redrive.mailboxes.boxes.dead_letter import DeadLetter, error_type
from redrive.mailboxes.boxes.mailbox import Mailbox, StoreMailbox, Urgency
from redrive.mailboxes.boxes.message import Message
from redrive.mailboxes.boxes.resolver import MailboxResolver
from redrive.mailboxes.letters.dead_letter_view import LetterMessage
from redrive.mailboxes.letters.resending import MailboxReplay, Transform
from redrive.mailboxes.metrics import MailboxMetrics, default_metrics
from redrive.mailboxes.validation import as_parameter, check_metrics, check_priority, check_resolver
from redrive.office.bites import ids_of
from redrive.office.replay import claims
from redrive.office.replay.resend import Steps, drive
from redrive.office.said import check_actor, check_reason, default_actor

T = TypeVar("T")

Where = str | Callable[[DeadLetter[Any]], object]
"""A filter, as the command line takes it; or a predicate of the DeadLetter."""
REASON = "replayed"
SWEEP: Millis = 60_000


@dataclass(frozen=True)
class Replayed:
    """Result of a replay. `replayed`: the ids of the messages that are on their way now.

    All others are still letters, each with its reason: `duplicates`, because another letter of the same request was
    replayed; `skipped`, because they are leased, or were replayed meanwhile; `kept`, because they could not be judged,
    transformed or sent.
    """

    replayed: tuple[str, ...] = ()
    duplicates: tuple[Skipped, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    kept: tuple[Skipped, ...] = ()


class Replayer(Generic[T]):
    """`source`: where letters go unless a call says otherwise; without it, back to the mailbox they came from.

    `resolver` finds reply mailboxes whose names alone do not say where they are.
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
        check_optional(source=(source, Mailbox, "use open_mailbox, or leave it out: letters then go back home"))
        check_resolver(resolver, "resolve")
        check_metrics(metrics)
        self.dead_letters: StoreMailbox[Any, Any] = dead_letters
        self._source = source
        self._resolver = resolver
        self._metrics = default_metrics() if metrics is None else metrics
        self._sweep_at: Millis = 0

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
        self.dead_letters.check_open()
        replay = self.prepare(to, transform, priority, dedupe=dedupe, reason=reason, actor=actor)
        if isinstance(which, str):
            return self.run(replay, replay.replay_ids([which]))
        if not isinstance(which, LetterMessage) or which.mailbox_name != self.dead_letters.name:
            hint = "give a message that was received from it, or the id of a letter"
            raise InvalidParameterError(f"{which!r} is no letter of {self.dead_letters.name}", field="which", hint=hint)
        replay.held = True
        which.check_held()
        replayed = self.run(replay, replay.replay([which.history], 1))
        which.is_finalized = bool(replayed.replayed)
        return replayed

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
        self.dead_letters.check_open()
        check_how(where, to, transform)
        if limit is not None:
            check_count(limit, field="limit")
        replay = self.prepare(to, transform, priority, dedupe=dedupe, reason=reason, actor=actor)
        replay.judge = where if callable(where) else None
        ids = self.ids(*([parse(where)] if isinstance(where, str) and where.strip() else []))
        replayed = self.run(replay, replay.replay_ids(ids, limit))
        self.sweep()
        return replayed

    def ids(self, *more: Selection) -> list[str]:
        """Of the open letters, the longest dead first."""
        which = open_letters(self.dead_letters.name, *more)
        return self.dead_letters.call(ids_of, self.dead_letters.shared.store, which, oldest=True)

    def prepare(
        self,
        to: Mailbox[Any, Any] | str | None,
        transform: Transform | None,
        priority: Urgency | None,
        *,
        dedupe: bool,
        reason: str,
        actor: str | None,
    ) -> MailboxReplay:
        """Check the options of one call."""
        check_how(None, to, transform)
        who = default_actor() if actor is None else as_parameter(check_actor, actor)
        act = Act(who, as_parameter(check_reason, reason), new_id())
        replay = MailboxReplay(self.dead_letters, act, dedupe=dedupe)
        replay.to, replay.transform, replay.resolver = self._source if to is None else to, transform, self._resolver
        replay.priority = None if priority is None else check_priority(priority)
        if isinstance(replay.to, Mailbox):
            replay.no_dead_letters(replay.to)
        return replay

    def run(self, replay: MailboxReplay, steps: Steps) -> Replayed:
        drive(steps, self.dead_letters.call)
        return self._result(replay)

    def sweep(self) -> None:
        """Remove expired claims, at most once a minute. The result of a replay does not depend on it."""
        shared, now = self.dead_letters.shared, self.dead_letters.clock.monotonic()
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP
            with suppress(MailboxError):
                self.dead_letters.call(claims.sweep, shared.store, shared.clock.now())

    def _result(self, replay: MailboxReplay) -> Replayed:
        for plan, _ in replay.done:
            letter, died = plan.letter.subject, plan.letter.item.letter
            self._metrics.replayed(letter.source_mailbox, "" if died is None else error_type(died.failure))
            logs.replayed(message_id=letter.message_id, request_id=letter.request_id, to=plan.queue)
        for plan, _ in replay.duplicates:
            letter = plan.letter.subject
            logs.duplicate(message_id=letter.message_id, request_id=letter.request_id, to=plan.queue)
        return Replayed(
            tuple([message_id for _, message_id in replay.done]),
            tuple([Skipped(plan.letter.id, why, "duplicate") for plan, why in replay.duplicates]),
            tuple(replay.skipped),
            tuple(replay.kept),
        )


def check_how(where: object, to: object, transform: object) -> None:
    if where is not None and not isinstance(where, str) and not callable(where):
        hint = "give a filter, as 'error:TimeoutError', or a function of the DeadLetter"
        raise InvalidParameterError(f"{shown(where)} chooses no letters", field="where", hint=hint)
    if to is not None and not isinstance(to, Mailbox | str):
        raise InvalidParameterError(f"{shown(to)} is no mailbox", field="to", hint="give a mailbox, or the name of one")
    if transform is not None:
        check_function(transform, field="transform", hint="give a function of the DeadLetter that gives the new body")


def replay(
    which: Message[DeadLetter[Any], Any] | str, dead_letters: Mailbox[DeadLetter[Any], Any] | None = None, **how: Any
) -> Replayed:
    """One letter: a message that was received from a dead-letter mailbox, or an id of one of `dead_letters`.

    `how` is what `Replayer.one` takes, as to=, transform=, priority=, reason=.
    """
    mailbox = which.mailbox if dead_letters is None and isinstance(which, LetterMessage) else dead_letters
    if mailbox is None:
        hint = "give the mailbox, too: replay(which, dead_letters)"
        raise InvalidParameterError(f"{which!r} does not name its mailbox", field="dead_letters", hint=hint)
    return Replayer(mailbox).one(which, **how)
