"""When recurring work is due: the instants of a schedule, their names, and what becomes of those that were missed.

A schedule is a cron text in a time zone, or an interval. Its ticks are a set of instants that follows from the schedule
alone, so that everybody who computes them gets the same ones, and each tick has an id of its own: whoever fires it, and
however often, it becomes one item. Intervals count from the epoch: every 10 minutes is at :00, :10, :20.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, tzinfo
from difflib import get_close_matches
from typing import Any, Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from redrive.core import durations
from redrive.core.durations import Duration
from redrive.core.item import Dedupe, Instant, Millis, NewItem, Priority, Terms
from redrive.core.quantity import shown
from redrive.errors import BadDuration, BadSchedule

CatchUp = Literal["skip", "last", "all"]

MISSED_AFTER: Millis = 60_000
"""A tick that is fired less than this late was on time, whatever the rule says: another process took over, no more."""
CATCH_UP_MOST = 1_000
"""Of missed ticks at most so many are fired, the latest ones."""

KIND = "schedule"
CLOCK = "schedule-clock"
CHANGES = "changes"
PROGRESS = "progress"
"""Documents: one of KIND for each schedule; of CLOCK one whose version moves when any of them changes, so that nobody
has to read them all to know, and one that says how far their ticks have been fired."""

_NAME = re.compile(r"[\w.:/-]{1,64}")
_TICK = re.compile(r"[\w.:/-]{1,64}@(?P<wall>[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8})(?:\.(?P<millis>[0-9]{3}))?Z")
_KEY_LIMIT = 512
_CRON_LIMIT = 200
_SHORTEST: Millis = 1_000
_CRON_FIELDS = 5
_FIRST_SPAN: Millis = 3_600_000
_zones: dict[str, tzinfo] = {}


class Schedule(Struct, frozen=True):
    """What `make_schedule` made; either `cron` or `every` is set. `sealed`: the key that the payload is encrypted
    with, as it is in the store if the queue is encrypted.
    """

    name: str
    queue: str
    payload: bytes
    cron: str = ""
    every: Millis = 0
    timezone: str = "UTC"
    catch_up: CatchUp = "last"
    priority: Priority = Priority.NORMAL
    terms: Terms | None = None
    kind: str = ""
    sealed: str = ""

    @property
    def when(self) -> str:
        """For people."""
        return f"{self.cron} {self.timezone}" if self.cron else f"every {durations.format(self.every)}"


class Kept(Struct, frozen=True):
    """A schedule as the store keeps it. Only ticks after `since` count: it was made, changed or resumed then. `last` is
    the latest one that was dealt with before.
    """

    schedule: Schedule
    since: Instant
    paused_at: Instant | None = None
    paused_by: str = ""
    paused_reason: str = ""
    last: Instant | None = None


class Progress(Struct, frozen=True):
    """All ticks up to `to` are dealt with. Those up to `claimed` were about to be, at that instant; whoever goes on
    does it again: the same ticks by the same rule, under the same ids.
    """

    to: Instant = 0
    claimed: Instant = 0


class Plan(Struct, frozen=True):
    """Which ticks to fire. `missed`: so many were too late (`more`: or more), of which `late` are fired by the rule."""

    fire: tuple[Instant, ...] = ()
    missed: int = 0
    late: int = 0
    more: bool = False


def plan(schedule: Schedule, after: Instant, claimed: Instant, now: Instant) -> Plan:
    """What to fire of the ticks after `after` and up to `now`. Those up to `claimed` are judged as they were then."""
    if claimed <= after:
        return _plan(schedule, after, now)
    first, second = _plan(schedule, after, claimed), _plan(schedule, claimed, now)
    return Plan(
        first.fire + second.fire, first.missed + second.missed, first.late + second.late, first.more or second.more
    )


def _plan(schedule: Schedule, after: Instant, now: Instant) -> Plan:
    edge = max(after, now - MISSED_AFTER)
    first = next_tick(schedule, after)
    if first is None or first > now:
        return Plan()
    on_time = tuple(_ticks(schedule, edge, now))
    missed, more = last_ticks(schedule, after, edge, CATCH_UP_MOST) if first <= edge else ((), False)
    late = missed
    if schedule.catch_up == "skip":
        late = ()
    elif schedule.catch_up == "last":
        # One run makes up for all that were missed, and one that is due now is that run.
        late = () if on_time else missed[-1:]
    return Plan(late + on_time, len(missed), len(late), more)


def next_tick(schedule: Schedule, after: Instant) -> Instant | None:
    return next(_ticks(schedule, after, None), None)


def last_ticks(schedule: Schedule, after: Instant, upto: Instant, most: int) -> tuple[tuple[Instant, ...], bool]:
    """The latest `most` ticks after `after` and up to `upto`, and whether there were more.

    Looked for in longer and longer spans before `upto`: years that nobody was there need not be gone through.
    """
    if schedule.every:
        first = max(after // schedule.every + 1, upto // schedule.every + 1 - most)
        ticks = tuple(range(first * schedule.every, upto + 1, schedule.every))
        return ticks, bool(ticks) and ticks[0] - schedule.every > after
    span = _FIRST_SPAN
    while True:
        start = max(after, upto - span)
        found = tuple(_ticks(schedule, start, upto))
        if len(found) > most or start == after:
            return found[-most:], len(found) > most
        span *= 4


def _ticks(schedule: Schedule, after: Instant, upto: Instant | None) -> Iterator[Instant]:
    if schedule.every:
        tick = (after // schedule.every + 1) * schedule.every
        while upto is None or tick <= upto:
            yield tick
            tick += schedule.every
        return
    begin = datetime.fromtimestamp(after / 1000, zone(schedule.timezone))
    for wall in _simulator(schedule.cron, begin):
        tick = int(wall.timestamp()) * 1000
        if upto is not None and tick > upto:
            return
        # Local time alone does not tell the second of two equal hours from the first.
        if tick > after:
            yield tick


def _simulator(cron: str, begin: datetime) -> Iterator[datetime]:
    import cronsim

    try:
        return cronsim.CronSim(cron, begin)
    except (cronsim.CronSimError, AssertionError, ValueError, TypeError) as error:
        hint = 'use five fields: minute hour day month weekday, as in "*/5 * * * *" or "0 2 * * MON-FRI"'
        raise BadSchedule(f"{shown(cron)} cannot be read: {str(error).lower()}", field="cron", hint=hint) from None


def unprepared(schedules: Iterable[Schedule]) -> frozenset[str]:
    """Time zones that `prepare` has to be called for: reading them takes files, and an event loop may not wait."""
    return frozenset([each.timezone for each in schedules if each.cron and each.timezone not in _zones])


def prepare(zones: Iterable[str]) -> None:
    """In a thread. What cannot be read is told to whoever needs it."""
    import cronsim  # noqa: F401 - loaded for what comes

    for name in zones:
        with suppress(BadSchedule):
            zone(name)


def zone(name: str) -> tzinfo:
    if name not in _zones:
        _zones[name] = UTC if name == "UTC" else _read_zone(name)
    return _zones[name]


def _read_zone(name: str) -> tzinfo:
    import zoneinfo

    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        known = zoneinfo.available_timezones()
    if not known:
        hint = "this system has no time zone data; pip install tzdata"
    else:
        same = [other for other in known if other.lower() == name.lower()]
        near = same or get_close_matches(name, known, n=1) or ["Europe/Berlin"]
        hint = f"use a name such as {near[0]!r}"
    raise BadSchedule(f"{shown(name)} is not a time zone known here", field="timezone", hint=hint)


def tick_id(name: str, tick: Instant) -> str:
    """The id of the item that a tick becomes: readable, and the same for whoever fires it."""
    seconds, millis = divmod(tick, 1000)
    wall = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{name}@{wall}.{millis:03}Z" if millis else f"{name}@{wall}Z"


def tick_of(item_id: str) -> Instant | None:
    """Which tick an item is for, None if it is for none. Its due time is later if it was late or was tried again."""
    found = _TICK.fullmatch(item_id)
    if found is None:
        return None
    try:
        wall = datetime.strptime(f"{found['wall']}+0000", "%Y-%m-%dT%H:%M:%S%z")
    except ValueError:
        return None
    return int(wall.timestamp()) * 1000 + int(found["millis"] or 0)


def tick_item(schedule: Schedule, tick: Instant, release: str = "") -> NewItem:
    """Due at the tick by the store's clock, however early somebody else's clock is."""
    return NewItem(
        tick_id(schedule.name, tick),
        schedule.queue,
        schedule.payload,
        at=tick,
        priority=schedule.priority,
        terms=schedule.terms,
        kind=schedule.kind,
        release=release,
    )


def make_schedule(
    name: str,
    queue: str,
    payload: bytes,
    *,
    cron: str | None = None,
    every: Duration | None = None,
    timezone: str | tzinfo | None = None,
    catch_up: str = "last",
    priority: str = "normal",
    order_key: str | None = None,
    limit_key: str | None = None,
    dedupe_key: str | None = None,
    policy: str | None = None,
    kind: str = "",
    schema: int = 0,
    headers: tuple[tuple[str, str], ...] = (),
) -> Schedule:
    """Checked; raises BadSchedule that names the field."""
    if (cron is None) == (every is None):
        what = "neither is given" if cron is None else "both are given"
        raise BadSchedule(what, field="cron, every", hint='give one of cron="*/5 * * * *" and every="10m"')
    if every is not None and timezone is not None:
        hint = "leave it out, or use cron for times of day"
        raise BadSchedule("an interval has no time zone", field="timezone", hint=hint)
    schedule = Schedule(
        name=_name(name),
        queue=queue,
        payload=payload,
        cron="" if cron is None else _cron(cron),
        every=0 if every is None else _every(every),
        timezone=_zone_name(timezone),
        catch_up=_word(catch_up, get_args(CatchUp), "catch_up"),
        priority=Priority(_word(priority, tuple(each.value for each in Priority), "priority")),
        terms=_described(_terms(order_key, limit_key, dedupe_key, policy), schema, headers),
        kind=kind,
    )
    if next_tick(schedule, 0) is None:
        raise BadSchedule(f"{shown(cron)} never comes", field="cron", hint="no such day is in any of the months")
    return schedule


def _name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        hint = "use 1 to 64 letters, digits and . : / - _"
        raise BadSchedule(f"{shown(name)} is not a name of a schedule", field="name", hint=hint)
    return name


def _cron(cron: object) -> str:
    text = " ".join(cron.split()) if isinstance(cron, str) else ""
    if not text or len(text) > _CRON_LIMIT or len(text.split()) != _CRON_FIELDS:
        hint = "use five fields: minute hour day month weekday; for less than a minute use every"
        raise BadSchedule(f"{shown(cron)} is not a cron text", field="cron", hint=hint)
    return text


def _every(every: Duration) -> Millis:
    try:
        millis = durations.parse(every, field="every")
    except BadDuration as error:
        raise BadSchedule(f"{shown(every)} is not an interval", field="every", hint=error.hint) from None
    if millis < _SHORTEST:
        raise BadSchedule(f"{shown(every)} is too short", field="every", hint="use 1s or more")
    return millis


def _zone_name(timezone: object) -> str:
    if timezone is None or timezone is UTC:
        return "UTC"
    name = timezone if isinstance(timezone, str) else getattr(timezone, "key", None)
    if not isinstance(name, str) or not name:
        hint = "use a name such as 'Europe/Berlin' or a ZoneInfo"
        raise BadSchedule(f"{shown(timezone)} is not the name of a time zone", field="timezone", hint=hint)
    zone(name)
    return name


def _word(value: object, words: tuple[str, ...], field: str) -> Any:
    if value not in words:
        raise BadSchedule(f"{shown(value)} is unknown", field=field, hint=f"use one of {', '.join(words)}")
    return value


def _terms(order_key: str | None, limit_key: str | None, dedupe_key: str | None, policy: str | None) -> Terms | None:
    given = {"order_key": order_key, "limit_key": limit_key, "dedupe_key": dedupe_key, "policy": policy}
    for field, value in given.items():
        text: object = value
        if text is not None and not _usable(text):
            hint = f"use 1 to {_KEY_LIMIT} characters that can be printed, or leave it out"
            raise BadSchedule(f"{shown(text)} cannot be used", field=field, hint=hint)
    if not any(given.values()):
        return None
    dedupe = None if dedupe_key is None else Dedupe(dedupe_key)
    return Terms(order_key=order_key or "", limit_key=limit_key or "", dedupe=dedupe, policy=policy or "")


def _described(terms: Terms | None, schema: int, headers: tuple[tuple[str, str], ...]) -> Terms | None:
    return replace(terms or Terms(), schema=schema, headers=headers) if schema or headers else terms


def _usable(key: object) -> bool:
    """As a key: a tick that its store would refuse is one that never comes."""
    if not isinstance(key, str) or not 1 <= len(key) <= _KEY_LIMIT or "\0" in key:
        return False
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True
