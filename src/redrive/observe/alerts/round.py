"""One evaluation round: applies the findings of the rules to the alert documents and builds the messages to send."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from redrive.core import codec
from redrive.core.item import Instant, Millis, NewItem, Terms
from redrive.core.verbs import Document, DocumentWrite
from redrive.engine.ids import new_id
from redrive.observe.alerts.book import AlertBook, queue_of
from redrive.observe.alerts.channels import ALONE
from redrive.observe.alerts.conditions import MINUTE, Finding
from redrive.observe.alerts.model import (
    COUNTS,
    GONE,
    HELD,
    KIND,
    LINES,
    OUTGOING,
    RULES,
    SEEN,
    SILENCE,
    STATE,
    Held,
    Message,
    Notice,
    Outgoing,
    Rule,
    RuleSet,
    Silence,
    State,
    shown_text,
    state_key,
)
from redrive.observe.logs import log

logger = logging.getLogger("redrive.alerts")


class Round:
    """Changes of one round to the documents. `writes` are to be made in one call."""

    def __init__(self, book: AlertBook, documents: Iterable[Document], now: Instant, window: Millis) -> None:
        self._book = book
        self._documents = {each.key: each for each in documents}
        self._now = now
        self._window = window
        self._states = {key: self._read(key, State) for key in self._of(STATE)}
        self.states: Collection[State] = self._states.values()
        self._silences = [self._read(key, Silence) for key in self._of(SILENCE)]
        self._notices: dict[str, list[Notice]] = defaultdict(list)
        self.outgoing = {key: self._read(key, Outgoing) for key in self._of(OUTGOING)}
        self.writes: list[DocumentWrite] = []
        for silence in self._silences:
            if silence.until <= now:
                self._write(f"{SILENCE}{silence.id}", None)

    def _of(self, beginning: str) -> list[str]:
        return [key for key in self._documents if key.startswith(beginning)]

    def _read(self, key: str, kind: Any) -> Any:
        return codec.decode(self._documents[key].body, kind)

    def _write(self, key: str, value: object | None) -> None:
        version = self._documents[key].version if key in self._documents else 0
        self.writes.append(DocumentWrite(KIND, key, None if value is None else codec.encode(value), version))

    def counts(self) -> dict[str, dict[int, tuple[int, int]]]:
        """Sums over all processes. Counts of processes that no longer end attempts are removed."""
        total: dict[str, dict[int, tuple[int, int]]] = {}
        for key in self._of(COUNTS):
            found = self._read(key, dict[str, dict[int, tuple[int, int]]])
            newest = max([minute for minutes in found.values() for minute in minutes], default=0)
            if self._window and newest * MINUTE < self._now - self._window - MINUTE:
                self._write(key, None)
            for queue, minutes in found.items():
                sums = total.setdefault(queue, {})
                for minute, (done, failed) in minutes.items():
                    before = sums.get(minute, (0, 0))
                    sums[minute] = (before[0] + done, before[1] + failed)
        return total

    def judged(self, rule: Rule, findings: list[Finding] | None) -> None:
        if findings is None:
            return
        found = {state_key(rule.name, finding.subject): finding for finding in findings}
        for key, finding in found.items():
            self._holds(key, rule, finding)
        for key, state in self._states.items():
            if state.rule == rule.name and key not in found:
                self._over(key)

    def _holds(self, key: str, rule: Rule, finding: Finding) -> None:
        was = self._states.get(key)
        if was is None and not finding.begins:
            return
        text = shown_text(finding.text)
        since = self._now if finding.since is None else min(finding.since, self._now)
        state = State(new_id(), rule.name, finding.subject, text, finding.queues, rule.severity, rule.to, since)
        if was is not None:
            kept = {name: getattr(was, name) for name in ("id", "since", "firing", "told_at", "told")}
            state = replace(state, **kept)
        if self._now - state.since >= rule.for_:
            again = state.told_at is not None and rule.repeat is not None and self._now - state.told_at >= rule.repeat
            silent = any(each.covers(rule.name, finding.queues, self._now) for each in self._silences)
            state = replace(state, firing=True)
            if (state.told_at is None or again) and not silent:
                self._notify(state, state.notice(self._now))
                state = replace(state, told_at=self._now, told=state.told + 1)
        if was is None or (was.firing, was.told, was.to) != (state.firing, state.told, state.to):
            self._write(key, state)

    def _over(self, key: str) -> None:
        state = self._states[key]
        if state.told_at is not None:
            self._notify(state, state.notice(self._now).over(self._now))
        self._write(key, None)

    def _notify(self, state: State, notice: Notice) -> None:
        for channel in state.to:
            if channel in self._book.channels:
                self._notices[channel].append(notice)

    def resolve_gone(self) -> None:
        """End alerts whose rule no process has any more, for instance after a release without it."""
        rules, channels = set(self._book.rules), set(self._book.channels)
        for key in self._of(RULES):
            found: RuleSet = self._read(key, RuleSet)
            if self._now - found.seen_at < GONE:
                rules.update([rule.name for rule in found.rules])
                channels.update(found.channels)
            elif key != self._rules_key:
                self._write(key, None)
        for key, state in self._states.items():
            if state.rule not in rules:
                self._over(key)
        for key in self._of(HELD):
            if key.removeprefix(HELD) not in channels:
                self._write(key, None)

    def route(self) -> None:
        """Build messages of the notices that are due; the others are held until they are."""
        held: dict[str, Held] = {key.removeprefix(HELD): self._read(key, Held) for key in self._of(HELD)}
        for name in {*self._notices, *held} & self._book.channels.keys():
            channel, notices = self._book.channels[name], self._notices[name]
            urgent = [each for each in notices if each.severity == "critical"]
            calm = [each for each in notices if each.severity != "critical"]
            before = held.get(name) or Held(self._now + channel.digest)
            due = max(before.due, channel.quiet_until(self._now))
            after, more = before.with_more(due, calm), 0
            if due <= self._now:
                urgent, more, after = [*after.notices, *urgent], after.more, Held(due)
            if after != held.get(name, Held(due)):
                self._write(f"{HELD}{name}", after if after.notices else None)
            if urgent:
                alone = channel.kind in ALONE
                key, messages = f"{OUTGOING}{new_id()}", messages_of(urgent, more, self._now, alone=alone)
                self.outgoing[key] = Outgoing(name, tuple(messages), alone)
                self._write(key, self.outgoing[key])

    @property
    def _rules_key(self) -> str:
        return f"{RULES}{self._book.key}"

    def note_rules(self) -> None:
        """Write the rules down for lists and for the other leaders."""
        rules = tuple([rule.note() for rule in self._book.rules.values()])
        channels = {name: str(channel) for name, channel in self._book.channels.items()}
        known = self._read(self._rules_key, RuleSet) if self._rules_key in self._documents else None
        if known is None or (known.rules, known.channels) != (rules, channels) or self._now - known.seen_at >= SEEN:
            self._write(self._rules_key, RuleSet(self._now, rules, channels))

    def log(self) -> None:
        for text in dict.fromkeys([str(notice) for notices in self._notices.values() for notice in notices]):
            log(logger, logging.INFO if text.startswith("RESOLVED") else logging.WARNING, text)


def messages_of(notices: Sequence[Notice], more: int, now: Instant, *, alone: bool) -> list[Message]:
    if alone:
        return [Message(new_id(), now, (notice,), more) for notice in notices]
    return [Message(new_id(), now, tuple(notices[:LINES]), more + max(0, len(notices) - LINES))]


def items_of(outgoing: Outgoing) -> list[NewItem]:
    """Outbox items, ordered by alert if each alert is a message by itself, else by channel."""
    queue = queue_of(outgoing.channel)
    return [
        NewItem(
            each.id,
            queue,
            codec.encode(each),
            terms=Terms(order_key=each.notices[0].key if outgoing.alone else outgoing.channel),
        )
        for each in outgoing.messages
    ]
