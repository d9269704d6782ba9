"""Automatic replay: letters of which a rule says that they are worth another try, after a while and not for ever.

rules = [ReplayRule(errors={TimeoutError, RateLimitError}, after="10m", max_replays=3)]
LoopGroup(loops=[main_loop, AutoReplay(dead_letters, rules)]).run()
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from redrive.blocking.loops.lifecycle import Beating
from redrive.blocking.loops.stop import Stop
from redrive.core import durations
from redrive.core.durations import Duration
from redrive.core.filters import parse
from redrive.core.item import Item, Millis
from redrive.core.quantity import shown
from redrive.core.select import Match, matches
from redrive.core.verbs import Skipped
from redrive.engine.forks import parent_only
from redrive.errors import InvalidParameterError, MailboxClosedError, MailboxConnectionError
from redrive.mailboxes import logs
from redrive.mailboxes.boxes import limits
from redrive.mailboxes.boxes.dead_letter import DeadLetter, error_type
from redrive.mailboxes.boxes.mailbox import Mailbox, StoreMailbox, Urgency
from redrive.mailboxes.boxes.resolver import MailboxResolver
from redrive.mailboxes.letters import replaying
from redrive.mailboxes.letters.replayer import (
    BITE,
    Replayed,
    Replayer,
    Where,
    check_target,
    check_transform,
    check_where,
)
from redrive.mailboxes.letters.resending import Candidate, Transform
from redrive.mailboxes.life.outage import Outage
from redrive.mailboxes.metrics import MailboxMetrics

T = TypeVar("T")

ACTOR = "auto-replay"
REMEMBERED: Millis = 3_600_000


@dataclass(frozen=True)
class ReplayRule:
    """Which letters, how long after their death, and how often at most.

    `where` is a filter or a function of the DeadLetter; `errors` are classes of errors, subclasses among them, or
    their names; a letter must fit both where both are given, and one without either fits all. `max_replays` counts all
    replays of the message, by whomever. The others are those of `Replayer.matching`.
    """

    where: Where | None = None
    errors: Collection[type[BaseException] | str] | None = None
    after: Duration = "10m"
    max_replays: int = 3
    to: Mailbox[Any, Any] | str | None = None
    transform: Transform | None = None
    priority: Urgency | None = None
    dedupe: bool = True
    name: str = ""

    def __post_init__(self) -> None:
        durations.parse(self.after, field="after")
        check_where(self.where)
        check_target(self.to)
        check_transform(self.transform)
        _check_errors(self.errors)
        if self.priority is not None:
            limits.urgency(self.priority)
        limits.kind(self.name, str, field="name", hint="give a text, or leave it out")
        if isinstance(self.where, str):
            parse(self.where)
        most: object = self.max_replays
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise InvalidParameterError(
                f"{shown(most)} is no number of replays", field="max_replays", hint="use 1 or more"
            )


def _check_errors(errors: object) -> None:
    hint = "give exception classes or their names, such as {TimeoutError, 'shop.errors.Busy'}"
    if errors is None:
        return
    # Of something that can be gone through only once, nothing would be left for the letters.
    if isinstance(errors, str) or not isinstance(errors, Collection):
        raise InvalidParameterError(f"{shown(errors)} is no set of errors", field="errors", hint=hint)
    for error in errors:
        if not isinstance(error, str) and not (isinstance(error, type) and issubclass(error, BaseException)):
            raise InvalidParameterError(f"{shown(error)} is no exception class", field="errors", hint=hint)


class _Rule:
    """A rule, made ready to be asked."""

    def __init__(self, rule: ReplayRule, number: int) -> None:
        self.rule = rule
        self.after: Millis = durations.parse(rule.after, field="after")
        self.name = rule.name or f"rule {number}"
        self._selection = parse(rule.where) if isinstance(rule.where, str) and rule.where.strip() else None
        self._function = rule.where if callable(rule.where) else None
        self._errors = None if rule.errors is None else tuple(rule.errors)

    def fits(self, letter: Candidate, now: Millis) -> bool:
        """Raises what the function raises."""
        if self._selection is not None and not matches(self._selection, letter.item, now):
            return False
        if self._errors is not None and not self._is_named(letter.item):
            return False
        return self._function is None or bool(self._function(letter.told))

    def _is_named(self, item: Item) -> bool:
        letter = item.letter
        if letter is None or self._errors is None:
            return False
        whole = error_type(letter.failure)
        return any(whole in _names(each) for each in self._errors)


def _names(error: type[BaseException] | str) -> set[str]:
    """A letter knows its error by name: those of the class and of all subclasses that are known in this process."""
    if isinstance(error, str):
        return {error if "." in error else f"builtins.{error}"}
    names, found = set[str](), [error]
    while found:
        kind = found.pop()
        names.add(f"{kind.__module__}.{kind.__qualname__}")
        found += kind.__subclasses__()
    return names


class AutoReplay(Beating, Generic[T]):
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
        limits.kind(mailbox, Mailbox, field="mailbox", hint="use open_mailbox")
        limits.kind(rules, Sequence, field="rules", hint="give a list of ReplayRule")
        for rule in rules:
            limits.kind(rule, ReplayRule, field="rules", hint="give a list of ReplayRule")
        super().__init__("automatic replay", mailbox.clock)
        self._replayer: Replayer[T] = Replayer(mailbox, source, resolver, metrics)
        self._mailbox = self._replayer.dead_letters
        self._rules = [_Rule(rule, number) for number, rule in enumerate(rules, 1)]
        if not self._rules:
            raise InvalidParameterError("there is none", field="rules", hint="give at least one ReplayRule")
        self._interval = limits.seconds(interval, field="interval") / 1000
        self._settled: set[str] = set()
        self._forget_at: Millis = 0
        self._outage = Outage(mailbox.name)

    @property
    def name(self) -> str:
        return f"{self._mailbox.name} (automatic replay)"

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
        """Until it is told to stop, the mailbox is closed, or it has looked so many times."""
        most, rounds = limits.rounds(max_iterations), 0
        with self._life.running() as stop:
            while not stop.is_set() and not self._mailbox.closed and rounds != most:
                rounds += 1
                self._heartbeat.beat()
                self._try(stop)
                if rounds != most:
                    stop.wait(self._outage.pause or self._interval, self._mailbox.clock)

    def _try(self, stop: Stop) -> None:
        try:
            self.look(stop)
        except MailboxClosedError:
            return
        except MailboxConnectionError as error:
            if not self._mailbox.closed:
                self._outage.goes_on(error)
            return
        self._outage.is_over()

    def look(self, stop: Stop | None = None) -> Replayed:
        """Once, now: replay what is to be replayed."""
        self._mailbox._check_open()
        place = self._mailbox._place
        old_enough = Match("died", ">=", min(rule.after for rule in self._rules))
        ids = self._mailbox._call(replaying.ids, place, self._mailbox.name, (old_enough,))
        # What is decided is not read again for a while; somebody may have replayed it, and it died of other things.
        if self._mailbox.clock.monotonic() >= self._forget_at:
            self._forget_at = self._mailbox.clock.monotonic() + REMEMBERED
            self._settled.clear()
        new = [each for each in ids if each not in self._settled]
        done: list[Replayed] = []
        for start in range(0, len(new), BITE):
            if stop is not None and stop.is_set():
                break
            self._heartbeat.beat()
            done += self._bite(new[start : start + BITE])
        self._replayer._sweep()
        return joined(done)

    def _bite(self, ids: list[str]) -> list[Replayed]:
        place, now = self._mailbox._place, self._mailbox.clock.now()
        due: dict[int, list[Candidate]] = {}
        for each in self._mailbox._call(replaying.read, place, self._mailbox.name, ids):
            if not isinstance(each, Skipped):
                letter = Candidate(each, self._mailbox)
                number = self._rule_for(letter, now)
                if number is not None:
                    due.setdefault(number, []).append(letter)
        return [self._replay(self._rules[number], letters) for number, letters in sorted(due.items())]

    def _replay(self, rule: _Rule, letters: list[Candidate]) -> Replayed:
        replayed = self._replayer._these(letters, rule.rule, f"{rule.name} of automatic replay", ACTOR)
        # They will not be any different the next time.
        self._settled.update(one.id for one in (*replayed.duplicates, *replayed.kept))
        return replayed

    def _rule_for(self, letter: Candidate, now: Millis) -> int | None:
        """The rule by which it is replayed now, by its place."""
        try:
            with parent_only():
                number = next((at for at, rule in enumerate(self._rules) if rule.fits(letter, now)), None)
        except Exception as error:  # noqa: BLE001 - a rule that raises decides nothing
            logs.kept(message_id=letter.id, error=error)
            return None
        if number is None or letter.replays >= self._rules[number].rule.max_replays:
            self._settled.add(letter.id)
            return None
        died = letter.item.letter
        return number if died is not None and now - died.died_at >= self._rules[number].after else None


def joined(parts: Sequence[Replayed]) -> Replayed:
    def every(pick: Callable[[Replayed], tuple[Any, ...]]) -> tuple[Any, ...]:
        return tuple([one for part in parts for one in pick(part)])

    return Replayed(
        every(lambda part: part.replayed),
        every(lambda part: part.duplicates),
        every(lambda part: part.skipped),
        every(lambda part: part.kept),
    )
