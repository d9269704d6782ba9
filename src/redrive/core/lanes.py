"""In which order the due items of a queue are given: levels, priorities, and the lane of retries and replays.

A ready item stands in one level of its queue, and each level is in due order. A level is one number, so that an index
or a set per level leads straight to what may be given: crashes first (a request draws its own line between plain items
and suspects), then whether it was tried before, then its priority. What nearly every item has is level 0.

The kinds of a queue share its levels: an index or a set per kind and level lets a request leave out kinds, and `merged`
puts those of one level together again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeVar

from redrive.core.item import Item, Priority

NUMBERS = {Priority.NORMAL: 0, Priority.HIGH: 1, Priority.LOW: 2}
PRIORITIES = (Priority.NORMAL, Priority.HIGH, Priority.LOW)
"""By number: what most items have is 0."""

CYCLE = 20
"""Of so many leases in a row at least one goes to low and one to normal, if any of them wait."""

WHOLE = 1_000
"""A share of 1: shares are counted in thousandths."""

Rank = tuple[str, int]
"""A kind and a level: what one index range or one set holds."""

_NORMAL, _HIGH, _LOW = 0, 1, 2
_USUAL = (_HIGH, _NORMAL, _LOW)
_TURNS = {CYCLE // 2 - 1: (_NORMAL, _LOW, _HIGH), CYCLE - 1: (_LOW, _NORMAL, _HIGH)}


def level(priority: Priority, *, tried: bool, crashes: int) -> int:
    return crashes * 6 + (3 if tried else 0) + NUMBERS[priority]


def level_of(item: Item) -> int:
    return level(item.priority, tried=item.errors + item.crashes + item.replays > 0, crashes=item.crashes)


def rank_of(item: Item) -> Rank:
    return item.kind, level_of(item)


def crashes_of(number: int) -> int:
    return number // 6


def is_retry(number: int) -> bool:
    """Whether items of the level failed, crashed or were replayed before."""
    return number // 3 % 2 == 1


def priority_of(number: int) -> int:
    return number % 3


def may_retry(turn: int, share: int) -> bool:
    """Whether the lease with this number may go to a retry while first attempts wait: `share` thousandths of all may.

    The turns of each priority are counted for themselves, so each has its share of retries and of first attempts. With
    one count for all, every turn of low would meet that of retries at a share of 0.5.
    """
    cycle, nth = divmod(turn, CYCLE)
    count = cycle if nth in _TURNS else cycle * (CYCLE - len(_TURNS)) + nth - (nth >= CYCLE // 2)
    return count * share % WHOLE + share >= WHOLE


Waiting = Sequence[tuple[int, int]]
"""Due items of one level as (due, seq), in this order."""


Row = TypeVar("Row", bound=tuple[object, ...])

SPARE = 4
"""Rows that are read of each kind beyond its share."""


def by_level(ranks: Iterable[Rank]) -> dict[int, list[Rank]]:
    found: dict[int, list[Rank]] = {}
    for rank in ranks:
        found.setdefault(rank[1], []).append(rank)
    return found


def merged(
    ranks: Sequence[Rank],
    limit: int,
    read: Callable[[Rank, int], Sequence[Row]],
    key: Callable[[Row], Any] = itemgetter(0, 1),
) -> list[Row]:
    """The first `limit` of several kinds, each read in due order; `key` gives (due, seq) of a row.

    A share of each is read first, and more only of those that had no more than that among the first: ten kinds cost
    about what one costs.
    """
    if len(ranks) == 1:
        return list(read(ranks[0], limit))
    share = min(limit, limit // max(1, len(ranks)) + SPARE)
    found = {rank: read(rank, share) for rank in ranks}
    whole = set(ranks) if share == limit else set()
    while True:
        rows = sorted([row for part in found.values() for row in part], key=key)[:limit]
        short = [
            rank
            for rank, part in found.items()
            if rank not in whole and len(part) == share and (len(rows) < limit or key(part[-1]) <= key(rows[-1]))
        ]
        if not short:
            return rows
        found |= {rank: read(rank, limit) for rank in short}
        whole.update(short)


def choose(
    waiting: Mapping[int, Waiting],
    limit: int,
    *,
    retries: int | None,
    most_retries: int,
    turn: int,
    share: int | None = None,
) -> list[int]:
    """The levels to take from, one after the other: each time the next of its level.

    The priority whose turn it is goes first; within a priority what was due first. `most_retries` is never passed;
    `retries` and `share` are passed only to fill what would be left unused.
    """
    chosen: list[int] = []
    taken = dict.fromkeys(waiting, 0)
    least = most_retries if retries is None else min(retries, most_retries)
    given = 0
    for line, part in ((least, share), (most_retries, None)):
        while len(chosen) < limit:
            nth = turn + len(chosen)
            best = _next(waiting, taken, nth, retry=given < line and (part is None or may_retry(nth, part)))
            if best is None:
                break
            chosen.append(best)
            taken[best] += 1
            given += is_retry(best)
    return chosen


def _next(waiting: Mapping[int, Waiting], taken: dict[int, int], turn: int, *, retry: bool) -> int | None:
    for priority in _TURNS.get(turn % CYCLE, _USUAL):
        heads = [
            (rows[taken[number]], number)
            for number, rows in waiting.items()
            if priority_of(number) == priority and taken[number] < len(rows) and (retry or not is_retry(number))
        ]
        if heads:
            return min(heads)[1]
    return None
