"""Letters by cause: how many, since when, where, and whether it grows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from redrive.core.item import Instant, Item, Letter, Millis
from redrive.core.select import And, Match, Selection
from redrive.core.verbs import CauseTally
from redrive.errors import NotFound
from redrive.office.facets import LOOKED_AT, walk
from redrive.stores.base import PAGE_LIMIT, Store

HOUR: Millis = 3_600_000
BOUND = 1000
"""Deaths that a trend counts: more of them in an hour say no more."""

Trend = Literal["new", "up", "steady", "down", "quiet"]


class CauseView(Struct, frozen=True):
    """Letters that share a cause. `trend` holds the deaths of the last hour (`last_hour`) against those of the hour
    before: `new` if there were none before them at all, `quiet` if there is none. `sample` is the last to die.
    `whole` is False if only the last letters to die were counted, for there were too many to look at.
    """

    cause: str
    count: int
    trend: Trend
    last_hour: int
    hour_before: int
    error: str
    text: str
    first_at: Instant
    last_at: Instant
    queues: tuple[str, ...]
    sample: str
    whole: bool = True


class _Group:
    """Letters of one cause as they come."""

    def __init__(self, cause: str) -> None:
        self.cause = cause
        self.whole = True
        self.count = 0
        self.error = self.text = ""
        self.first_at: Instant = 2**62
        self.last_at: Instant = -1
        self.queues: dict[str, int] = {}

    def add(self, row: CauseTally) -> None:
        self.count += row.count
        self.first_at = min(self.first_at, row.first_at)
        self.queues[row.queue] = self.queues.get(row.queue, 0) + row.count
        if row.last_at > self.last_at:
            self.last_at, self.error, self.text = row.last_at, row.error, row.text


async def causes_kept(store: Store, queue: str | None) -> list[_Group]:
    """Of open letters, from the counters."""
    return _grouped(await store.causes(queue, PAGE_LIMIT))


async def causes_found(store: Store, selection: Selection) -> list[_Group]:
    """Of what matches, by looking at it; no more than the last LOOKED_AT to die."""
    rows: list[CauseTally] = []
    whole = True
    async for item in walk(store, selection):
        if len(rows) == LOOKED_AT:
            whole = False
            break
        if item.letter is not None:
            rows.append(_alone(item, item.letter))
    groups = _grouped(rows)
    for group in groups:
        group.whole = whole
    return groups


def _alone(item: Item, letter: Letter) -> CauseTally:
    why = letter.failure
    return CauseTally(why.cause, item.queue, 1, why.type, why.text, letter.died_at, letter.died_at)


def _grouped(rows: Iterable[CauseTally]) -> list[_Group]:
    groups: dict[str, _Group] = {}
    for row in rows:
        groups.setdefault(row.cause, _Group(row.cause)).add(row)
    return sorted(groups.values(), key=lambda group: (-group.count, -group.last_at, group.cause))


async def described(store: Store, groups: Iterable[_Group], where: Selection) -> tuple[CauseView, ...]:
    """With trend and sample. `where`: the letters that were grouped."""
    now = (await store.tally(members=False)).at
    return tuple([await _view(store, group, where, now) for group in groups])


async def _view(store: Store, group: _Group, where: Selection, now: Instant) -> CauseView:
    of_it = Match("cause", "=", group.cause)
    # Whoever was replayed or put away since died all the same; only what is a letter still can be counted.
    dead = And((Match("state", "=", "dead"), of_it))
    recent = before = 0
    if group.last_at > now - 2 * HOUR:
        recent = await _count(store, And((dead, Match("died", "<", HOUR))))
        before = await _count(store, And((dead, Match("died", ">=", HOUR), Match("died", "<", 2 * HOUR))))
    sample = await store.find(And((where, of_it)), 1)
    return CauseView(
        cause=group.cause,
        count=group.count,
        trend=trend(recent, before, is_new=group.first_at > now - HOUR),
        last_hour=recent,
        hour_before=before,
        error=group.error,
        text=group.text,
        first_at=group.first_at,
        last_at=group.last_at,
        queues=tuple(sorted(group.queues, key=lambda queue: (-group.queues[queue], queue))),
        sample=sample.items[0].id if sample.items else "",
        whole=group.whole,
    )


def trend(recent: int, before: int, *, is_new: bool) -> Trend:
    """A quarter more or less than before is the usual to and fro."""
    if recent == 0:
        return "quiet"
    if before == 0 and is_new:
        return "new"
    if recent * 4 > before * 5:
        return "up"
    return "down" if recent * 5 < before * 4 else "steady"


async def _count(store: Store, selection: Selection) -> int:
    return len((await store.ids(selection, BOUND)).ids)


async def resolve_cause(store: Store, text: str) -> str:
    """The whole name of a cause of open letters, of which `text` may be the beginning."""
    names = dict.fromkeys([row.cause for row in await store.causes(None, PAGE_LIMIT)])
    if text in names:
        return text
    fitting = [name for name in names if name.startswith(text)] if text else []
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise NotFound(f"{text!r} fits {len(fitting)} causes", hint=f"give more of it: {', '.join(fitting[:5])}")
    # A cause whose letters are all put away, or one of more than the counters give at once.
    if (await store.find(And((Match("state", "=", "dead"), Match("cause", "=", text))), 1)).items:
        return text
    raise NotFound(f"no cause {text!r}", hint="list them with redrive causes list")


def queue_named(selection: Selection) -> str | None:
    """The queue, if the selection is about the open letters of one queue and nothing else."""
    if isinstance(selection, Match) and selection.field == "queue" and selection.op == "=":
        return str(selection.value)
    return None
