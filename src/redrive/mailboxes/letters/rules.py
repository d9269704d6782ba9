"""Automatic replay of dead letters of a mailbox, by rules.

rules = [ReplayRule(errors={TimeoutError, RateLimitError}, after="10m", max_replays=3)]
LoopGroup(loops=[main_loop, AutoReplay(dead_letters, rules)]).run()
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Generic, TypeVar

from redrive.blocking.loops.rounds import RoundLoop
from redrive.blocking.loops.stop import Stop
from redrive.core.item import History, Millis
from redrive.core.select import Match
from redrive.core.validation import check_seconds, check_type
from redrive.engine.forks import parent_only
from redrive.errors import InvalidParameterError
from redrive.mailboxes import logs
from redrive.mailboxes.boxes.dead_letter import DeadLetter
from redrive.mailboxes.boxes.mailbox import Mailbox, StoreMailbox, Urgency
from redrive.mailboxes.boxes.resolver import MailboxResolver
from redrive.mailboxes.letters.replayer import Replayed, Replayer, check_how
from redrive.mailboxes.letters.resending import LetterToReplay, Transform, not_in
from redrive.mailboxes.metrics import MailboxMetrics
from redrive.mailboxes.validation import check_priority, check_rounds
from redrive.office.replay.resend import BATCH, read
from redrive.office.replay.rules import Rule, rule_for

T = TypeVar("T")

ACTOR = "auto-replay"
REMEMBERED: Millis = 3_600_000


@dataclass(frozen=True)
class ReplayRule(Rule):
    """Which letters, how long after their death, and how often at most.

    `where` is a filter or a function of the DeadLetter; `errors` are classes of errors, subclasses among them, or
    their names; a letter must fit both where both are given, and one without either fits all. `max_replays` counts all
    replays of the message. The others are those of `Replayer.matching`.
    """

    to: Mailbox[Any, Any] | str | None = None
    transform: Transform | None = None
    priority: Urgency | None = None
    dedupe: bool = True
    name: str = ""

    def __post_init__(self) -> None:
        check_how(self.where, self.to, self.transform)
        _ = self.delay, self.selection
        self.check()
        if self.priority is not None:
            check_priority(self.priority)
        check_type(self.name, str, field="name", hint="give a text, or leave it out")


class AutoReplay(RoundLoop, Generic[T]):
    """Looks at the letters each `interval` seconds and replays those whose rule says so: the first that fits decides.

    Any number may run at once, in any number of processes: no letter is replayed twice.
    """

    def __init__(
        self,
        mailbox: Mailbox[DeadLetter[T], Any],
        rules: Sequence[ReplayRule],
        *,
        source: Mailbox[T, Any] | None = None,
        resolver: MailboxResolver | None = None,
        metrics: MailboxMetrics | None = None,
        interval: float = 30.0,
    ) -> None:
        check_type(mailbox, Mailbox, field="mailbox", hint="use open_mailbox")
        check_type(rules, Sequence, field="rules", hint="give a list of ReplayRule")
        for rule in rules:
            check_type(rule, ReplayRule, field="rules", hint="give a list of ReplayRule")
        super().__init__("automatic replay", mailbox, interval=check_seconds(interval, field="interval") / 1000)
        self._replayer: Replayer[T] = Replayer(mailbox, source, resolver, metrics)
        self._mailbox = self._replayer.dead_letters
        self._rules = list(rules)
        if not self._rules:
            raise InvalidParameterError("there is none", field="rules", hint="give at least one ReplayRule")
        self._settled: set[str] = set()
        self._forget_at: Millis = 0

    @property
    def name(self) -> str:
        return f"{self._mailbox.name} (automatic replay)"

    def _log_outage(self, error: Exception | None, pause: float) -> None:
        logs.outage(self._mailbox.name, error, pause)

    @property
    def dead_letters(self) -> tuple[StoreMailbox[Any, Any], ...]:
        return (self._mailbox,)

    def run(
        self,
        *,
        max_iterations: int | None = None,
        visibility_timeout: float | None = None,  # noqa: ARG002 - as all runnables of a group
        wait_time_seconds: float | None = None,  # noqa: ARG002
    ) -> None:
        """Runs until it is stopped, the mailbox is closed, or `max_iterations` rounds are over."""
        self._repeat(check_rounds(max_iterations), lambda: self.look(self._stop), self._mailbox.shared)

    def look(self, stop: Stop | None = None) -> Replayed:
        """One round now: replay the letters that are due by a rule."""
        self._mailbox.check_open()
        clock = self._mailbox.clock
        ids = self._replayer.ids(Match("died", ">=", min(rule.delay for rule in self._rules)))
        # Decided letters are not read again for a while; after a replay they may die again, of something else.
        if clock.monotonic() >= self._forget_at:
            self._forget_at = clock.monotonic() + REMEMBERED
            self._settled.clear()
        new = [each for each in ids if each not in self._settled]
        parts: list[tuple[Any, ...]] = []
        for start in range(0, len(new), BATCH):
            if stop is not None and stop.is_set():
                break
            self._heartbeat.beat()
            done = self._batch(new[start : start + BATCH])
            parts += [(each.replayed, each.duplicates, each.skipped, each.kept) for each in done]
        self._replayer.sweep()
        return Replayed(*[tuple(chain(*column)) for column in zip(*parts, strict=True)])

    def _batch(self, ids: list[str]) -> list[Replayed]:
        due: dict[int, list[History]] = {}
        now = self._mailbox.clock.now()
        refused = partial(not_in, self._mailbox.name)
        found = self._mailbox.call(read, self._mailbox.shared.store, ids, refused, "")
        for history in found:
            if isinstance(history, History) and (number := self._rule_for(history, now)) is not None:
                due.setdefault(number, []).append(history)
        return [self._replay(number, letters) for number, letters in sorted(due.items())]

    def _replay(self, number: int, letters: list[History]) -> Replayed:
        rule = self._rules[number]
        reason = f"{rule.name or f'rule {number + 1}'} of automatic replay"
        replay = self._replayer.prepare(
            rule.to, rule.transform, rule.priority, dedupe=rule.dedupe, reason=reason, actor=ACTOR
        )
        replayed = self._replayer.run(replay, replay.replay(letters, len(letters)))
        # The next round would decide the same.
        self._settled.update(one.id for one in (*replayed.duplicates, *replayed.kept))
        return replayed

    def _rule_for(self, history: History, now: Millis) -> int | None:
        """The number of the rule by which it is replayed now."""
        try:
            with parent_only():
                number, is_due = rule_for(self._rules, LetterToReplay(history, self._mailbox), now)
        except Exception as error:  # noqa: BLE001 - a rule that raises decides nothing
            logs.failed("Failed to process dead letter, keeping it", history.item.id, error)
            return None
        if number is None:
            self._settled.add(history.item.id)
        return number if is_due else None
