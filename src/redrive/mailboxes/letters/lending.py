"""Letters of a route, lent out where they lie: they stay letters until whoever has them ends them.

A dead-letter mailbox is nothing but a look at them, so there is no second copy that could be lost or doubled.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from redrive.core.item import Attempt, Ending, History, Instant, Item, Millis, Priority
from redrive.core.select import And, Match, Selection
from redrive.engine.ids import new_id
from redrive.mailboxes.boxes.place import surely
from redrive.stores.base import Store
from redrive.stores.clock import Clock

LOOK = 16
"""Letters that the first read of a receive looks at; each further one at twice as many, up to MOST."""
MOST = 128
WALK = 80
"""Reads of one receive: behind ten thousand letters that others hold, the next one goes on where this one stopped."""
REST: Millis = 5_000
"""After a long walk for nothing, nobody walks again for so long, unless a letter has come or is due."""
RANK = {Priority.HIGH: 0, Priority.NORMAL: 1, Priority.LOW: 2}
DEADLY = frozenset({Ending.DEAD, Ending.FAILED, Ending.CRASHED, Ending.EXPIRED})


def open_letters(route: str, *more: Selection) -> Selection:
    """The letters that a mailbox of this name shows."""
    return And((Match("state", "=", "dead"), Match("disposition", "=", "open"), Match("route", "=", route), *more))


class Letters:
    """`worker` is the beginning of the names under which letters are held."""

    def __init__(self, store: Store, clock: Clock, worker: str, which: Selection) -> None:
        self._store = store
        self._clock = clock
        self._worker = worker
        self._which = which
        self._start: str | None = None
        self._quiet: tuple[str | None, Millis] = (None, 0)
        """The newest letter of a walk for nothing, and until when that holds, by this process's monotonic time."""
        self._given_back = 0

    def look_again(self) -> None:
        """One of them was given back."""
        self._quiet = (None, 0)
        self._given_back += 1

    async def take(self, count: int, ttl: Millis) -> list[Item]:
        """At most so many, the longest dead first, and of those looked at together the urgent ones before all."""
        newest, until = self._quiet
        if self._clock.monotonic() < until and await self._newest() == newest:
            return []
        # Each call has a name of its own: what the same name holds already would be given to it again.
        worker = f"{self._worker}-{new_id()[:8]}"
        taken: list[Item] = []
        last, rest = "", REST
        # Leases are compared with the store's clock, which need not be this process's.
        now: Instant | None = None
        # Others of this mailbox may be walking, too: each by itself.
        start, self._start = self._start, None
        cursor, turn, given_back = start, 0, self._given_back
        for turn in range(WALK):
            page = await self._store.find(self._which, min(LOOK << turn, MOST), cursor, oldest=True)
            if now is None and any(item.lease_until is not None for item in page.items):
                now = (await self._store.tally()).at
            taken += await self._lent(_free(page.items, now or 0), count - len(taken), worker, ttl)
            if page.items:
                last = page.items[-1].id
                rest = min([rest, *[(item.lease_until or now or 0) - (now or 0) for item in page.items]])
            cursor = page.next
            if len(taken) == count or cursor is None:
                break
        else:
            self._start = cursor
        whole = turn and start is None and cursor is None
        if whole and not taken and given_back == self._given_back:
            self._quiet = (last, self._clock.monotonic() + rest)
        return taken

    async def _lent(self, free: list[str], count: int, worker: str, ttl: Millis) -> list[Item]:
        taken: list[Item] = []
        while free and len(taken) < count:
            asked, free = free[: count - len(taken)], free[count - len(taken) :]
            lent, _ = await surely(lambda asked=asked: self._store.lease_letters(asked, worker, ttl))  # type: ignore[misc]
            taken += lent
        return taken

    async def _newest(self) -> str | None:
        return next(iter((await self._store.ids(self._which, 1)).ids), None)


def _free(items: Sequence[Item], now: Instant) -> list[str]:
    free = [item for item in items if item.lease_until is None or item.lease_until <= now]
    return [item.id for item in sorted(free, key=lambda item: RANK[item.priority])]


def at_death(history: History) -> tuple[History, int]:
    """The history without what happened to the letter since it died, and how many deliveries it had had by then."""
    item, dying = history.item, _dying(history)
    if dying is not None:
        attempts = tuple([one for one in history.attempts if one.delivery <= dying.delivery])
        # Whoever found the lease of a lost worker took a delivery number for it.
        return structs.replace(history, attempts=attempts), dying.delivery + (dying.ending is Ending.CRASHED)
    died_at = item.ended_at or item.enqueued_at
    attempts = tuple([one for one in history.attempts if one.started_at < died_at])
    deliveries = attempts[-1].delivery if attempts else item.attempt
    return structs.replace(history, attempts=attempts), deliveries


def _dying(history: History) -> Attempt | None:
    """The attempt with which it died. Those that were made on the letter may have failed alike, but came later."""
    item, letter = history.item, history.item.letter
    if letter is None:
        return None
    alike = [
        one
        for one in history.attempts
        if one.ending in DEADLY
        and one.failure == letter.failure
        and one.number >= item.attempt
        and one.started_at >= item.renewed_at
    ]
    # What began before its death was not made on the letter. Where all is of one instant, only the order tells.
    before = [one for one in alike if one.started_at < letter.died_at]
    return before[-1] if before else next(iter(alike), None)
