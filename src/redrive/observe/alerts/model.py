"""Data model of alerts: rules, channels, notices, messages, and the documents that the store keeps of them.

All documents are of one kind, so that a round reads them with one call. The prefix of a key names the type.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, time, timedelta
from hashlib import sha256
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from redrive.core import durations
from redrive.core.families import family_of
from redrive.core.item import Instant, Millis
from redrive.core.quantity import cut
from redrive.core.redact import REDACTED, redact_text
from redrive.core.schedule import zone
from redrive.engine.registry import is_outbox
from redrive.observe.logs import one_line
from redrive.office.records import iso

KIND = "alert"
STATE, HELD, OUTGOING, SILENCE, RULES, COUNTS = ("state.", "held.", "outgoing.", "silence.", "rules.", "counts.")
"""Prefixes of document keys."""
Severity = Literal["info", "warning", "error", "critical"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
SEEN: Millis = 10 * 60_000
"""Interval at which a leader confirms that its rules are still evaluated."""
GONE: Millis = 3 * SEEN
"""Rules that were not confirmed for this long are forgotten, and their alerts end."""
REPEAT: Millis = 4 * 3_600_000
LONGEST: Millis = 60_000
"""Timeout of one attempt to send, for channels of every kind."""
LINES = 20
"""The most alerts that one message lists."""
TEXT_LIMIT = 300
HELD_LIMIT = 500
"""The most notices that a channel holds; beyond it the oldest firing ones are only counted, resolved ones are kept."""
SECRETS = frozenset({"url", "routing_key", "key", "token", "password"})
DURATIONS = frozenset({"than", "within", "longer_than", "timeout"})


class Condition(Struct, frozen=True):
    """When a rule fires: the name of a function of this package, and its arguments. `lasting`: how long it must hold,
    unless the rule has a `for_`.
    """

    kind: str
    options: dict[str, Any] = {}
    lasting: Millis = 0

    def __str__(self) -> str:
        return " ".join([self.kind, *(f"{name}={_option(name, value)}" for name, value in self.options.items())])


def _option(name: str, value: Any) -> str:
    if name in DURATIONS and value is not None:
        return durations.format(value)
    return ",".join(value) if isinstance(value, tuple) else str(getattr(value, "__qualname__", value))


class Rule(Struct, frozen=True):
    """`queues`: names of queues and families, empty for all. `members`: each member of a family is a subject. `for_`:
    how long the condition must hold. `repeat`: interval of notifications while it fires; None for one notification.
    """

    name: str
    when: Condition
    to: tuple[str, ...]
    queues: tuple[str, ...] = ()
    members: bool = False
    for_: Millis = 0
    severity: Severity = "warning"
    repeat: Millis | None = REPEAT

    def concerns(self, queue: str) -> bool:
        """Whether the rule covers a queue. Outbox queues are excluded: alerts about alert delivery would multiply."""
        named = not self.queues or queue in self.queues or family_of(queue) in self.queues
        return named and not is_outbox(queue)

    def __str__(self) -> str:
        return f"{self.when} to {', '.join(self.to)}"

    def note(self) -> RuleNote:
        when = str(self.when)
        return RuleNote(self.name, when, self.to, self.queues, self.severity, self.for_, self.repeat)


class Channel(Struct, frozen=True):
    """A destination of alerts. `quiet`: minutes of the day between which only critical ones are sent. `digest`: alerts
    of this period are one message.
    """

    kind: str
    options: dict[str, Any]
    quiet: tuple[int, int] | None = None
    timezone: str = "UTC"
    digest: Millis = 0

    def __str__(self) -> str:
        shown = {name: value for name, value in self.options.items() if name not in SECRETS and value is not None}
        if "url" in self.options:
            parts = urlsplit(self.options["url"])
            shown = {"url": f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}/…", **shown}
        if "argv" in shown:
            shown["argv"] = shown["argv"][0]  # an argument may be a secret
        if self.quiet is not None:
            begin, end = (f"{minutes // 60:02}:{minutes % 60:02}" for minutes in self.quiet)
            shown["quiet"] = f"{begin}-{end} {self.timezone}"
        return str(Condition(self.kind, shown))

    __repr__ = __str__

    def hide(self, text: str) -> str:
        """The text without the channel's secrets. Everything behind the host of a URL is secret."""
        secrets = [self.options[name] for name in SECRETS & self.options.keys() if self.options[name]]
        parts = urlsplit(self.options.get("url", ""))
        secrets += [parts.path, parts.query, *(each for each in parts.path.split("/") if len(each) > 8)]
        for secret in secrets:
            text = text.replace(secret, REDACTED) if len(secret) > 1 else text
        return redact_text(text)

    def quiet_until(self, now: Instant) -> Instant:
        """The end of the quiet hours that `now` is in; `now` if it is in none."""
        if self.quiet is None:
            return now
        begin, end = self.quiet
        local = datetime.fromtimestamp(now / 1000, zone(self.timezone))
        minute = local.hour * 60 + local.minute
        if not (begin <= minute < end if begin < end else minute >= begin or minute < end):
            return now
        day = local.date() + timedelta(days=begin > end and minute >= begin)
        return int(datetime.combine(day, time(end // 60, end % 60), local.tzinfo).timestamp() * 1000)


_STATE = re.compile(r"^((?:queue|gate) \S+) is ")
"""How the text of a firing notice says what is over when it is resolved."""


class Notice(Struct, frozen=True):
    """One alert begins, continues (`repeated` notices were sent before) or ends. `key` is that of the firing."""

    status: Literal["firing", "resolved"]
    key: str
    rule: str
    subject: str
    severity: Severity
    text: str
    queues: tuple[str, ...]
    since: Instant
    at: Instant
    repeated: int = 0

    def over(self, at: Instant) -> Notice:
        text = _STATE.sub(r"\1 was ", self.text)
        return replace(self, status="resolved", at=at, repeated=0, text=text)

    def __str__(self) -> str:
        word = "STILL FIRING" if self.repeated and self.status == "firing" else self.status.upper()
        after = f" (after {durations.brief(self.at - self.since)})" if self.status == "resolved" else ""
        return f"{word} {self.severity} {self.rule}: {self.text}{after}"

    def as_object(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return {**fields, "queues": list(self.queues), "since": iso(self.since), "at": iso(self.at)}


class Message(Struct, frozen=True):
    """A message to a channel: notices, and how many `more` were left out. `id` is the same for each attempt."""

    id: str
    at: Instant
    notices: tuple[Notice, ...]
    more: int = 0

    @property
    def title(self) -> str:
        first = self.notices[0]
        return f"{len(self.notices) + self.more} alerts" if len(self.notices) > 1 else str(first)

    def text(self, escape: Callable[[str], str] = str, room: int = 100_000, size: Callable[[str], int] = len) -> str:
        """A line for each notice, as far as there is room; `size` measures a line."""
        lines: list[str] = []
        room -= 30  # for the last line
        for notice in self.notices:
            line = escape(str(notice))
            room -= size(line) + 1
            if room < 0:
                break
            lines.append(line)
        left = len(self.notices) - len(lines) + self.more
        return "\n".join([*lines, *([f"and {left:,} more"] if left else [])])

    def as_object(self) -> dict[str, Any]:
        notices = [notice.as_object() for notice in self.notices]
        return {"id": self.id, "at": iso(self.at), "text": self.text(), "alerts": notices, "more": self.more}


# --- documents ---


class State(Struct, frozen=True):
    """A rule's condition holds for a subject since `since`. `firing`: it has held for the rule's `for_`. `told`: number
    of notices so far, the last one at `told_at`.
    """

    id: str
    rule: str
    subject: str
    text: str
    queues: tuple[str, ...]
    severity: Severity
    to: tuple[str, ...]
    since: Instant
    firing: bool = False
    told_at: Instant | None = None
    told: int = 0

    def notice(self, now: Instant) -> Notice:
        about = (self.id, self.rule, self.subject, self.severity, self.text, self.queues)
        return Notice("firing", *about, self.since, now, self.told)


class Held(Struct, frozen=True):
    """Notices of a channel that wait for more of them, or for the end of quiet hours; `more` were left out."""

    due: Instant
    notices: tuple[Notice, ...] = ()
    more: int = 0

    def with_more(self, due: Instant, notices: list[Notice]) -> Held:
        """Leaves out firing notices only: without its resolved notice an incident would stay open."""
        every = (*self.notices, *notices)
        firing = [place for place, notice in enumerate(every) if notice.status == "firing"]
        left_out = frozenset(firing[: max(0, len(every) - HELD_LIMIT)])
        kept = tuple([notice for place, notice in enumerate(every) if place not in left_out])
        return Held(due, kept, self.more + len(left_out))


class Outgoing(Struct, frozen=True):
    """Messages that are about to be put into the channel's outbox queue, under their ids. `alone`: they are ordered by
    alert, not by channel.
    """

    channel: str
    messages: tuple[Message, ...]
    alone: bool = False


class Silence(Struct, frozen=True):
    """`rule` "*" means every rule, `queue` "" every queue."""

    id: str
    rule: str
    queue: str
    until: Instant
    reason: str
    by: str
    at: Instant

    def covers(self, rule: str, queues: tuple[str, ...], now: Instant) -> bool:
        fits = self.rule in ("*", rule) and (not self.queue or self.queue in queues or self._has_member(queues))
        return fits and now < self.until

    def _has_member(self, queues: tuple[str, ...]) -> bool:
        return any(family_of(queue) == self.queue for queue in queues)


class RuleNote(Struct, frozen=True):
    """A rule as text, for lists."""

    name: str
    when: str
    to: tuple[str, ...]
    queues: tuple[str, ...]
    severity: Severity
    for_: Millis
    repeat: Millis | None


class RuleSet(Struct, frozen=True):
    """The rules of one app, written by the process that evaluates them. `channels`: name and description."""

    seen_at: Instant
    rules: tuple[RuleNote, ...]
    channels: dict[str, str]


def shown_text(text: str) -> str:
    """The text of a notice: redacted, on one line and short, since error texts may contain anything."""
    return cut(one_line(redact_text(text)), TEXT_LIMIT)


def state_key(rule: str, subject: str) -> str:
    return STATE + sha256(f"{rule}\0{subject}".encode()).hexdigest()[:32]
