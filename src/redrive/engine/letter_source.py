"""Letters as a source of deliveries: leases the letters of a selection in place.

They stay letters until the holder of the lease settles them, so that no second copy can be lost or doubled.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from redrive.core.item import Attempt, Ending, History, Instant, Item, Millis, Priority
from redrive.core.select import And, Match, Selection
from redrive.engine.ids import new_id
from redrive.engine.store_retry import retry_unknown
from redrive.stores.base import Store
from redrive.stores.clock import Clock

LOOK = 16
"""Size of the first page that `take` reads; each further page is twice as large, up to MOST."""
MOST = 128
WALK = 80
"""Pages per call: behind ten thousand leased letters, the next call goes on where this one stopped."""
REST: Millis = 5_000
"""After a complete search without a free letter, further calls give nothing for so long, unless a letter has died
since or a lease has ended."""
RANK = {Priority.HIGH: 0, Priority.NORMAL: 1, Priority.LOW: 2}
DEADLY = frozenset({Ending.DEAD, Ending.FAILED, Ending.CRASHED, Ending.EXPIRED})


def open_letters(route: str, *more: Selection) -> Selection:
    """The open letters of a route, restricted by `more`."""
    return And((Match("state", "=", "dead"), Match("disposition", "=", "open"), Match("route", "=", route), *more))


class LetterSource:
    """`worker` is the prefix of the worker names that hold the leases: each call of `take` has its own."""

    def __init__(self, store: Store, clock: Clock, worker: str, which: Selection) -> None:
        self._store = store
        self._clock = clock
        self._worker = worker
        self._which = which
        self._start: str | None = None
        self._quiet: tuple[str | None, Millis] = (None, 0)
        """The newest letter of a search without result, and until when that holds, by the monotonic clock."""
        self._given_back = 0

    def look_again(self) -> None:
        """A letter was given back by this process."""
        self._quiet = (None, 0)
        self._given_back += 1

    async def take(self, count: int, ttl: Millis) -> list[Item]:
        """Lease up to `count` letters, longest dead first; within a page, by priority."""
        newest, until = self._quiet
        if self._clock.monotonic() < until and await self._newest() == newest:
            return []
        # A worker name per call: a store gives a worker again what it already holds.
        worker = f"{self._worker}-{new_id()[:8]}"
        taken: list[Item] = []
        last, rest = "", REST
        # Leases are compared with the store's clock, which may differ from this process's.
        now: Instant | None = None
        # Concurrent calls search independently of each other.
        start, self._start = self._start, None
        cursor, turn, given_back = start, 0, self._given_back
        for turn in range(WALK):
            page = await self._store.find(self._which, min(LOOK << turn, MOST), cursor, oldest=True)
            if now is None and any(item.lease_until is not None for item in page.items):
                now = (await self._store.tally(members=False)).at
            taken += await self._leased(_free(page.items, now or 0), count - len(taken), worker, ttl)
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

    async def _leased(self, free: list[str], count: int, worker: str, ttl: Millis) -> list[Item]:
        taken: list[Item] = []
        while free and len(taken) < count:
            asked, free = free[: count - len(taken)], free[count - len(taken) :]
            lent, _ = await retry_unknown(lambda asked=asked: self._store.lease_letters(asked, worker, ttl))  # type: ignore[misc]
            taken += lent
        return taken

    async def _newest(self) -> str | None:
        return next(iter((await self._store.ids(self._which, 1)).ids), None)


def _free(items: Sequence[Item], now: Instant) -> list[str]:
    free = [item for item in items if item.lease_until is None or item.lease_until <= now]
    return [item.id for item in sorted(free, key=lambda item: RANK[item.priority])]


def at_death(history: History) -> tuple[History, int]:
    """The history up to the letter's death, and its number of deliveries by then."""
    item, dying = history.item, _dying(history)
    if dying is not None:
        attempts = tuple([one for one in history.attempts if one.delivery <= dying.delivery])
        # The reaper's takeover of a lost lease used up a delivery number.
        return structs.replace(history, attempts=attempts), dying.delivery + (dying.ending is Ending.CRASHED)
    died_at = item.ended_at or item.enqueued_at
    attempts = tuple([one for one in history.attempts if one.started_at < died_at])
    deliveries = attempts[-1].delivery if attempts else item.attempt
    return structs.replace(history, attempts=attempts), deliveries


def _dying(history: History) -> Attempt | None:
    """The attempt that ended as the letter. Later attempts, on the letter in place, may have failed alike."""
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
    # An attempt that began before the death was not made in place. Within one instant only the order decides.
    before = [one for one in alike if one.started_at < letter.died_at]
    return before[-1] if before else next(iter(alike), None)
