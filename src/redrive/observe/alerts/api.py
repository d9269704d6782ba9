"""`app.alerts`, the operator API of alerts: channels, rules, firing alerts, silences, test messages."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence
from datetime import tzinfo
from difflib import get_close_matches
from typing import Literal, Protocol

from msgspec import Struct
from msgspec.structs import asdict

from redrive.core import codec
from redrive.core.acts import Act
from redrive.core.durations import Duration, positive
from redrive.core.item import Instant
from redrive.core.verbs import Document, DocumentWrite
from redrive.engine.ids import new_id
from redrive.engine.registry import check_queue_name
from redrive.errors import NotFound
from redrive.events import Events
from redrive.observe.alerts.book import AlertBook
from redrive.observe.alerts.model import (
    GONE,
    KIND,
    RULES,
    SILENCE,
    STATE,
    Channel,
    Condition,
    Message,
    Notice,
    RuleNote,
    RuleSet,
    Silence,
    State,
)
from redrive.office.gates import audit_entry
from redrive.office.said import check_reason
from redrive.office.settings import check_name
from redrive.stores.base import Store
from redrive.stores.clock import Clock


class Firing(Struct, frozen=True):
    """An alert: one subject of a rule (a queue, a cause, …). `pending`: its condition has not held for long enough."""

    subject: str
    text: str
    since: Instant
    pending: bool
    told_at: Instant | None


class RuleView(RuleNote, frozen=True):
    """A rule and its state. `unknown`: no worker evaluates it. `silenced_until`: for all its queues."""

    state: Literal["ok", "pending", "firing", "silenced", "unknown"]
    since: Instant | None = None
    silenced_until: Instant | None = None
    firing: tuple[Firing, ...] = ()
    channels: tuple[str, ...] = ()


class Parts(Protocol):
    """The parts of an app that alerts use."""

    alerts: AlertBook
    store: Store
    clock: Clock
    events: Events
    actor: str

    def check_open(self) -> object: ...

    async def catch_up(self) -> object: ...


class Alerts:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def channel(
        self,
        name: str,
        channel: Channel,
        *,
        quiet: str | None = None,
        timezone: str | tzinfo | None = None,
        digest: Duration = 0,
    ) -> str:
        """Declare a channel, the destination of alerts: `app.alerts.channel("ops", slack("https://…"))`.

        `quiet`: hours such as "22:00-07:00", in a time zone (UTC if none is given), in which only critical alerts are
        sent; the others follow as one message at their end. `digest`: alerts of this period are one message.
        """
        from redrive.observe.alerts.options import channel_of

        check_name(name, "channel")
        self._parts.alerts.add_channel(name, channel_of(channel, quiet, timezone, digest))
        return name

    def rule(
        self,
        name: str,
        when: Condition,
        *,
        to: str | Iterable[str],
        queues: str | Iterable[str] = (),
        members: bool = False,
        for_: Duration | None = None,
        severity: str | None = None,
        repeat: Duration | None = "4h",
    ) -> str:
        """Declare a condition and its channels: `app.alerts.rule("old-letters", oldest_letter("1h"), to="ops")`.

        `queues`: names of queues and families, default all; outbox queues never cause alerts. `members`: each member
        of a family is a subject. `for_`: how long the condition must hold. `severity`: info, warning, error or
        critical. `repeat`: interval of notifications while the alert fires; None for one notification.
        """
        from redrive.observe.alerts.options import rule_of

        made = rule_of(name, when, to=to, queues=queues, members=members, for_=for_, severity=severity, repeat=repeat)
        self._parts.alerts.add_rule(made)
        return name

    def every(self, interval: Duration) -> None:
        """Set the interval at which the elected worker evaluates the rules; the default is 15 seconds."""
        self._parts.alerts.every = positive(interval, field="interval")

    async def evaluate(self) -> None:
        """Evaluate the rules now, in this process, besides the rounds of the workers, which deliver the messages."""
        from redrive.observe.alerts.leader import AlertLeader

        parts = self._parts
        await parts.catch_up()
        parts.alerts.check()
        await AlertLeader(parts.alerts, parts.store, "", events=parts.events, clock=parts.clock).round()

    async def test(self, channel: str) -> str:
        """Send a test message now and return the channel's answer. Raises NotFound and NotificationFailed."""
        from redrive.observe.alerts.channels import ALONE, send

        chosen, now = self._parts.alerts.channel(channel), self._parts.clock.now()
        text = f"a test of the channel {channel}; nothing is wrong"
        notices = [Notice("firing", f"test-{new_id()}", "test", channel, "info", text, (), now, now)]
        if chosen.kind in ALONE:
            notices.append(notices[0].over(now))  # closes the incident of the test
        return await send(chosen, Message(new_id(), now, tuple(notices)))

    async def list(self) -> tuple[RuleView, ...]:
        """The rules of all apps on this store, sorted by name, with their states."""
        documents, now = await self._read()
        sets = [codec.decode(each.body, RuleSet) for each in documents if each.key.startswith(RULES)]
        states = [codec.decode(each.body, State) for each in documents if each.key.startswith(STATE)]
        silences = [each for each in _silences(documents) if each.until > now]
        sets.sort(key=lambda each: each.seen_at)
        judged = {note.name: (note, found) for found in sets for note in found.rules}
        views = [_view(*judged[name], states, silences, now) for name in judged]
        notes = [rule.note() for rule in self._parts.alerts.rules.values() if rule.name not in judged]
        views += [RuleView(**asdict(note), state="unknown") for note in notes]
        return tuple(sorted(views, key=lambda view: view.name))

    async def silence(self, rule: str, duration: Duration, *, reason: str, queue: str | None = None) -> Silence:
        """Send no notices of a rule (`*`: any rule) for this long, for one queue or family or for all. Alerts that
        still fire afterwards are sent then. The end of an alert that was sent before is sent. Raises NotFound.
        """
        why, length = check_reason(reason), positive(duration, field="duration")
        of = "" if queue is None else check_queue_name(queue)
        documents, now = await self._read()
        names = {note.name for each in documents if each.key.startswith(RULES) for note in _rules(each)}
        names |= self._parts.alerts.rules.keys()
        if rule != "*" and rule not in names:
            near = get_close_matches(rule, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(names)) or 'none'}"
            raise NotFound(f"no alert rule {rule!r}", hint=hint)
        made = Silence(new_id(), rule, of, now + length, why, self._parts.actor, now)
        await self._write("alert silence", made, codec.encode(made), why)
        return made

    async def silences(self) -> tuple[Silence, ...]:
        """Active silences, the first to end first."""
        documents, now = await self._read()
        return tuple(sorted([each for each in _silences(documents) if each.until > now], key=lambda each: each.until))

    async def unsilence(self, id: str, *, reason: str) -> Silence:
        """End a silence early, by its id or an unambiguous prefix. Raises NotFound."""
        why = check_reason(reason)
        fitting = [each for each in await self.silences() if id and each.id.startswith(id)]
        if len(fitting) != 1:
            hint = "list them with redrive alert silences"
            raise NotFound(f"{id!r} fits {len(fitting) or 'no'} silence{'s' * (len(fitting) > 1)}", hint=hint)
        await self._write("alert unsilence", fitting[0], None, why)
        return fitting[0]

    async def _read(self) -> tuple[builtins.list[Document], Instant]:
        self._parts.check_open()
        store = self._parts.store
        return builtins.list(await store.documents(KIND)), (await store.tally(members=False)).at

    async def _write(self, word: str, silence: Silence, body: bytes | None, reason: str) -> None:
        about, by = f"{silence.rule} {silence.queue}".rstrip(), Act(self._parts.actor, reason, new_id())
        write = DocumentWrite(KIND, f"{SILENCE}{silence.id}", body)
        await self._parts.store.write_documents([write], audit_entry(word, about, by))


def _silences(documents: Sequence[Document]) -> list[Silence]:
    return [codec.decode(each.body, Silence) for each in documents if each.key.startswith(SILENCE)]


def _rules(document: Document) -> tuple[RuleNote, ...]:
    return codec.decode(document.body, RuleSet).rules


def _view(note: RuleNote, of: RuleSet, states: Sequence[State], silences: Sequence[Silence], now: Instant) -> RuleView:
    mine = sorted(
        [each for each in states if each.rule == note.name],
        key=lambda each: (not each.firing, each.since, each.subject),
    )
    until = max([each.until for each in silences if each.rule in ("*", note.name) and not each.queue], default=None)
    word: Literal["ok", "pending", "firing", "silenced", "unknown"] = "ok"
    if now - of.seen_at >= GONE:
        word = "unknown"
    elif until is not None:
        word = "silenced"
    elif mine:
        word = "firing" if mine[0].firing else "pending"
    return RuleView(
        **asdict(note),
        state=word,
        since=mine[0].since if mine else None,
        silenced_until=until,
        firing=tuple([Firing(each.subject, each.text, each.since, not each.firing, each.told_at) for each in mine]),
        channels=tuple([f"{name}: {of.channels.get(name, '?')}" for name in note.to]),
    )
