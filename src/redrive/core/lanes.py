"""In which order the due items of a queue are given: levels, priorities, and the lane of retries and replays.

A ready item stands in one level of its queue, and each level is in due order. A level is one number, so that an index
or a set per level leads straight to what may be given: crashes first (a request draws its own line between plain items
and suspects), then whether it was tried before, then its priority. What nearly every item has is level 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from redrive.core.item import Item, Priority

NUMBERS = {Priority.NORMAL: 0, Priority.HIGH: 1, Priority.LOW: 2}
PRIORITIES = (Priority.NORMAL, Priority.HIGH, Priority.LOW)
"""By number: what most items have is 0."""

CYCLE = 20
"""Of so many leases in a row at least one goes to low and one to normal, if any of them wait."""

_NORMAL, _HIGH, _LOW = 0, 1, 2
_USUAL = (_HIGH, _NORMAL, _LOW)
_TURNS = {CYCLE // 2 - 1: (_NORMAL, _LOW, _HIGH), CYCLE - 1: (_LOW, _NORMAL, _HIGH)}


def level(priority: Priority, *, tried: bool, crashes: int) -> int:
    return crashes * 6 + (3 if tried else 0) + NUMBERS[priority]


def level_of(item: Item) -> int:
    return level(item.priority, tried=item.errors + item.crashes + item.replays > 0, crashes=item.crashes)


def crashes_of(number: int) -> int:
    return number // 6


def is_retry(number: int) -> bool:
    """Whether items of the level failed, crashed or were replayed before."""
    return number // 3 % 2 == 1


def priority_of(number: int) -> int:
    return number % 3


Waiting = Sequence[tuple[int, int]]
"""Due items of one level as (due, seq), in this order."""


def choose(
    waiting: Mapping[int, Waiting], limit: int, *, retries: int | None, most_retries: int, turn: int
) -> list[int]:
    """The levels to take from, one after the other: each time the next of its level.

    The priority whose turn it is goes first; within a priority what was due first. `most_retries` is never passed;
    `retries` is passed only to fill what would be left unused.
    """
    chosen: list[int] = []
    taken = dict.fromkeys(waiting, 0)
    lines = (most_retries, most_retries) if retries is None else (min(retries, most_retries), most_retries)
    given = 0
    for line in lines:
        while len(chosen) < limit:
            best = _next(waiting, taken, turn + len(chosen), retry=given < line)
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
