"""Which members of a family a lease looks at: those that may have something to give now, in turns, and others later.

What stands here may be too early, never too late: every write that may make something of a member leasable puts it
among those to look at now, and only a lease that found nothing more to give takes it away or puts it off.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from redrive.core.families import VISITS
from redrive.core.item import Instant
from redrive.stores.memory._agenda import Agenda


class Turns:
    def __init__(self) -> None:
        self._now: dict[str, None] = {}
        self._later = Agenda()

    def __contains__(self, queue: str) -> bool:
        return queue in self._now or queue in self._later

    def lower(self, queue: str) -> None:
        """Look at it now; one that waits for its turn keeps its place."""
        if queue in self._later:
            self._later.remove(queue)
        self._now.setdefault(queue)

    def lower_all(self) -> None:
        for slot in sorted(self._later.until(None)):
            self.lower(slot.id)

    def due(self, now: Instant) -> list[str]:
        """Those whose turn it is, at most VISITS. They keep their places."""
        for slot in self._later.due(now, VISITS):
            self.lower(slot.id)
        return list(islice(self._now, VISITS))

    def look_at(self, queue: str, when: Instant | None, now: Instant) -> None:
        """After a lease looked at it: again then, behind all others if that is now; None: not before a wake."""
        self._now.pop(queue, None)
        if queue in self._later:
            self._later.remove(queue)
        if when is None:
            return
        if when <= now:
            self._now[queue] = None
        else:
            self._later.add(when, 0, queue)

    def first(self, now: Instant) -> Instant | None:
        """When to look at any of them; None: at none before a wake."""
        if self._now:
            return now
        slot = self._later.first()
        return None if slot is None else slot.when

    def first_of(self, now: Instant, opens: Callable[[str], Instant | None]) -> Instant | None:
        """The same, where of those whose turn it is only what `opens` knows a time for counts."""
        for slot in sorted(self._later.until(now)):
            self.lower(slot.id)
        later = self._later.first()
        times = [*map(opens, self._now), None if later is None else later.when]
        return min([when for when in times if when is not None], default=None)
