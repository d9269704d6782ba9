"""Conditions of alert rules: factory functions, and the evaluation of each condition.

An evaluation reads the store through `Reads`, which makes each query at most once in a round, and returns a finding
for each subject (a queue, a cause, a breaker) for which the condition holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from redrive.core.durations import Duration, brief
from redrive.core.families import family_of, is_family, member_settings
from redrive.core.item import Instant, Item, Millis
from redrive.core.select import And, Match, Not, Or, Selection
from redrive.core.verbs import CauseTally, QueueTally, Tally
from redrive.engine.caller import is_async
from redrive.engine.registry import OUTBOX
from redrive.observe.alerts.model import Condition, Rule, State
from redrive.observe.alerts.options import checked
from redrive.office.gates import GateView, list_gates
from redrive.office.health import Health, health
from redrive.stores.aside import aside
from redrive.stores.base import PAGE_LIMIT, Store

T = TypeVar("T")
MINUTE: Millis = 60_000
CUSTOM_LIMIT = 30.0
"""Timeout in seconds for the function of a custom condition."""
LOOKS = 100
"""Letters, and causes, that a round reads one by one, if there are more causes than one read returns."""


def new_cause(within: Duration = "1d") -> Condition:
    """Open letters have a cause whose first letter died less than `within` ago. Ends when none of them is open."""
    return Condition("new_cause", checked(within=within))


def oldest_letter(than: Duration) -> Condition:
    """A queue's oldest open letter died longer than `than` ago."""
    return Condition("oldest_letter", checked(than=than))


def letters(more_than: int, within: Duration | None = None) -> Condition:
    """A queue has more than `more_than` open letters, in all or counting those that died `within` this time."""
    return Condition("letters", checked(more_than=more_than, **({} if within is None else {"within": within})))


def success_rate(below: float, within: Duration = "15m", least: int = 20) -> Condition:
    """Of a queue's attempts that ended `within` this time, the share that succeeded is below `below`. It takes at
    least `least` attempts.
    """
    return Condition("success_rate", checked(below=below, within=within, least=least))


def utilisation(above: float = 0.8) -> Condition:
    """Waiting and running items are more than this share of the queue's capacity."""
    return Condition("utilisation", checked(above=above))


def disabled(longer_than: Duration = "10m") -> Condition:
    """A queue is paused, or its breaker is open, for longer than this."""
    options = checked(longer_than=longer_than)
    return Condition("disabled", options, options["longer_than"])


def no_worker(longer_than: Duration = "1m") -> Condition:
    """A queue has work and no live worker that serves it, for longer than this."""
    options = checked(longer_than=longer_than)
    return Condition("no_worker", options, options["longer_than"])


def finding(kinds: str | Iterable[str]) -> Condition:
    """`app.health()` finds a problem of these kinds, such as `queue_full`, `worker_lost` or `outbox_stuck`."""
    return Condition("finding", checked(kinds=kinds))


def store_down(longer_than: Duration = "1m") -> Condition:
    """A worker process cannot reach its store for longer than this. Each process sends this alert by itself."""
    options = checked(longer_than=longer_than)
    return Condition("store_down", options, options["longer_than"])


def custom(function: Callable[[], object]) -> Condition:
    """Your own function, async or not: it returns a text, a mapping of subjects to texts, or nothing if all is well."""
    return Condition("custom", checked(function=function))


class Finding(Struct, frozen=True):
    """A condition holds for this subject. `since`: as far as is known. `begins` False: it keeps an alert firing, but
    does not begin one.
    """

    subject: str
    text: str
    queues: tuple[str, ...] = ()
    since: Instant | None = None
    begins: bool = True


Counts = Mapping[str, Mapping[int, tuple[int, int]]]
"""Numbers of succeeded and failed attempts by queue and minute."""


class Reads:
    """Cached reads of the store for one round. `states`: those of the alerts so far."""

    def __init__(self, store: Store, tally: Tally, counts: Counts, states: Collection[State] = ()) -> None:
        self._store = store
        self._known: dict[str, Any] = {"tally": tally}
        self._states = states
        self.at = tally.at
        self.counts = counts
        self.families = {row.queue: row for row in tally.families}

    async def _once(self, name: str, read: Callable[[], Awaitable[T]]) -> T:
        if name not in self._known:
            self._known[name] = await read()
        found: T = self._known[name]
        return found

    async def rows(self, rule: Rule, *, members: bool = False) -> list[QueueTally]:
        """Rows of the rule's queues: a family has one row, unless the rule has `members` or the argument is set."""
        members = members or rule.members or any(family_of(name) in self.families for name in rule.queues)
        tally: Tally = self._known["tally"]
        if members:
            tally = await self._once("members", self._store.tally)
        return [row for row in tally.queues if rule.concerns(row.queue)]

    async def causes(self, rule: Rule) -> tuple[list[CauseTally], bool]:
        """Rows by cause and queue, and whether these are all: one read returns those with the most letters."""
        every = await self._once("causes", lambda: self._store.causes(None, PAGE_LIMIT))
        return [row for row in every if rule.concerns(row.queue)], len(every) < PAGE_LIMIT

    def firing(self, rule: Rule) -> dict[str, State]:
        """The alerts of the rule so far, by subject."""
        return {state.subject: state for state in self._states if state.rule == rule.name}

    async def oldest_letter(self, rule: Rule, queue: str) -> Instant | None:
        """When the queue's oldest open letter died: from the counters of causes, if one read returned all of them."""
        rows, every = await self.causes(rule)
        if every:
            return min([row.first_at for row in rows if self.label(rule, row.queue) == queue], default=None)
        return await self.first_death(_of_queue(queue))

    async def first_death(self, *which: Selection) -> Instant | None:
        """When the oldest of these open letters died."""
        page = await self._store.find(_open_letters(*which), 1, oldest=True)
        return next((item.letter.died_at for item in page if item.letter is not None), None)

    async def last_letters(self, rule: Rule) -> tuple[Item, ...]:
        """The open letters that died last, at most LOOKS."""
        return (await self._store.find(_open_letters(_of_rule(rule)), LOOKS)).items

    async def letters_within(self, queue: str, within: Millis, most: int) -> int:
        """How many open letters died in this time, counted up to `most`."""
        return len((await self._store.ids(_open_letters(_of_queue(queue), Match("died", "<", within)), most)).ids)

    async def gates(self) -> dict[str, GateView]:
        return {view.name: view for view in await self._once("gates", lambda: list_gates(self._store))}

    async def health(self) -> Health:
        return await self._once("health", lambda: health(self._store))

    def label(self, rule: Rule, queue: str) -> str:
        """The name of a queue as subject: that of its family for a member, unless the rule has `members`."""
        family = family_of(queue)
        return family if family in self.families and not rule.members and queue not in rule.queues else queue

    def gate_of(self, row: QueueTally) -> str:
        family = self.families.get(family_of(row.queue))
        settings = row.settings if family is None else member_settings(row.queue, row.settings, family.settings)
        return settings.gate


def _open_letters(*which: Selection) -> And:
    return And((Match("state", "=", "dead"), Match("disposition", "=", "open"), *which))


def _of_queue(queue: str) -> Match:
    return Match("queue", "glob" if is_family(queue) else "=", queue)


def _of_rule(rule: Rule) -> Selection:
    return Or(tuple(map(_of_queue, rule.queues))) if rule.queues else Not(Match("queue", "glob", f"{OUTBOX}*"))


async def _new_cause(reads: Reads, rule: Rule) -> list[Finding]:
    by_cause: dict[str, list[CauseTally]] = {}
    rows, every = await reads.causes(rule)
    for row in rows:
        by_cause.setdefault(row.cause, []).append(row)
    if every:
        return [_cause(rule, cause, rows, reads.at) for cause, rows in by_cause.items()]
    return await _causes_of_many(reads, rule, by_cause)


async def _causes_of_many(reads: Reads, rule: Rule, by_cause: dict[str, list[CauseTally]]) -> list[Finding]:
    """A new cause may have too few letters to be in `by_cause`; the letters that died last have it then. A cause in
    `by_cause` may have older letters in queues that are not.
    """
    seen, firing, found = frozenset(by_cause), reads.firing(rule), []
    for item in await reads.last_letters(rule):
        if item.letter is not None and item.letter.failure.cause not in seen:
            died_at, failure = item.letter.died_at, item.letter.failure
            row = CauseTally(failure.cause, item.queue, 1, failure.type, failure.text, died_at, died_at)
            by_cause.setdefault(failure.cause, []).append(row)
    for cause, rows in by_cause.items():
        finding = _cause(rule, cause, rows, reads.at)
        if finding.begins and cause not in firing:
            first = await reads.first_death(Match("cause", "=", cause), _of_rule(rule))
            finding = replace(finding, begins=first is not None and first > reads.at - rule.when.options["within"])
        found.append(finding)
    others = sorted(firing.keys() - by_cause.keys())
    turn = reads.at // MINUTE * LOOKS % len(others) if others else 0
    for place, cause in enumerate((*others[turn:], *others[:turn])):
        looked_at = place < LOOKS
        if not looked_at or await reads.first_death(Match("cause", "=", cause), _of_rule(rule)) is not None:
            found.append(Finding(cause, firing[cause].text, firing[cause].queues, begins=False))
    return found


def _cause(rule: Rule, cause: str, rows: Sequence[CauseTally], now: Instant) -> Finding:
    last = max(rows, key=lambda row: row.last_at)
    count, queues = sum(row.count for row in rows), tuple(dict.fromkeys(row.queue for row in rows))
    some = f"{count:,} letter{'s' * (count > 1)} in {', '.join(queues[:3])}{', …' * (len(queues) > 3)}"
    first = min(row.first_at for row in rows)
    text = f"cause {cause}: {last.error}: {last.text} ({some})"
    return Finding(cause, text, queues, first, begins=first > now - rule.when.options["within"])


async def _oldest_letter(reads: Reads, rule: Rule) -> list[Finding]:
    than, found = rule.when.options["than"], []
    for row in await reads.rows(rule):
        died_at = await reads.oldest_letter(rule, row.queue) if row.open else None
        if died_at is not None and reads.at - died_at > than:
            text = f"queue {row.queue}: the oldest open letter died {brief(reads.at - died_at)} ago"
            found.append(Finding(row.queue, text, (row.queue,), died_at + than))
    return found


async def _letters(reads: Reads, rule: Rule) -> list[Finding]:
    most, within = rule.when.options["more_than"], rule.when.options.get("within")
    found = []
    for row in await reads.rows(rule):
        if row.open <= most:
            continue
        count = row.open if within is None else await reads.letters_within(row.queue, within, most + 1)
        if count > most:
            text = f"queue {row.queue} has more than {most:,} open letters"
            text += f": {count:,}" if within is None else f" of the last {brief(within)}"
            found.append(Finding(row.queue, text, (row.queue,)))
    return found


async def _success_rate(reads: Reads, rule: Rule) -> list[Finding]:
    below, within, least = (rule.when.options[name] for name in ("below", "within", "least"))
    found = []
    for queue, minutes in reads.counts.items():
        recent = [counts for minute, counts in minutes.items() if minute * MINUTE > reads.at - within]
        done, failed = sum(each[0] for each in recent), sum(each[1] for each in recent)
        if rule.concerns(queue) and done + failed >= least and done < below * (done + failed):
            rate = f"{done:,} of {done + failed:,} attempts succeeded in {brief(within)}"
            found.append(Finding(queue, f"queue {queue}: {rate}", (queue,)))
    return found


async def _utilisation(reads: Reads, rule: Rule) -> list[Finding]:
    above, found = rule.when.options["above"], []
    for row in await reads.rows(rule):
        capacity = row.settings.capacity
        if capacity is not None and row.live > above * capacity:
            text = f"queue {row.queue} is at {row.live:,} of {capacity:,}"
            found.append(Finding(row.queue, text, (row.queue,)))
    return found


async def _disabled(reads: Reads, rule: Rule) -> list[Finding]:
    found, behind = [], dict[str, dict[str, None]]()
    families = [row for row in reads.families.values() if rule.concerns(row.queue)]
    for row in [*await reads.rows(rule, members=True), *families]:
        if row.paused:
            by_itself = row.paused_reason.startswith(("disabled: ", "muted: "))
            how = "" if by_itself else f"paused by {row.paused_by}: "
            text = f"queue {row.queue} is {how}{row.paused_reason}"
            found.append(Finding(row.queue, text, (row.queue,)))
        if gate := reads.gate_of(row):
            behind.setdefault(gate, {})[row.queue if gate == row.queue else reads.label(rule, row.queue)] = None
    gates = await reads.gates() if behind else {}
    for name, queues in behind.items():
        if name in gates and gates[name].state != "closed":
            text = f"gate {name} is {gates[name].state}: {gates[name].why}"
            found.append(Finding(f"gate {name}", text, tuple(queues), gates[name].since))
    return found


async def _finding(reads: Reads, rule: Rule, kinds: Sequence[str] = ()) -> list[Finding]:
    problems = [each for each in (await reads.health()).problems if each.kind in (kinds or rule.when.options["kinds"])]
    return [
        Finding(f"{each.kind} {each.what}".rstrip(), f"{each.text}; {each.do}", (each.what,))
        for each in problems
        if not rule.queues or each.what in rule.queues
    ]


async def _custom(_reads: Reads, rule: Rule) -> list[Finding]:
    function = rule.when.options["function"]
    async with asyncio.timeout(CUSTOM_LIMIT):
        answer = await (function() if is_async(function) else aside(function))
    if isinstance(answer, Mapping):
        return [Finding(str(subject), f"{subject}: {text}") for subject, text in answer.items()]
    return [Finding("", answer if isinstance(answer, str) else "it holds")] if answer else []


CONDITIONS: dict[str, Callable[..., Condition]] = {
    each.__name__: each
    for each in (
        *(new_cause, oldest_letter, letters, success_rate, utilisation, disabled),
        *(no_worker, finding, store_down, custom),
    )
}
JUDGES: dict[str, Callable[[Reads, Rule], Awaitable[list[Finding]]]] = {
    "new_cause": _new_cause,
    "oldest_letter": _oldest_letter,
    "letters": _letters,
    "success_rate": _success_rate,
    "utilisation": _utilisation,
    "disabled": _disabled,
    "no_worker": partial(_finding, kinds=("no_worker", "no_worker_for_kind")),
    "finding": _finding,
    "custom": _custom,
}
"""All conditions except `store_down`, which a process evaluates without its store."""
