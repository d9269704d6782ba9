"""Who holds a dedupe key: a live item, or one that is done while its window lasts."""

from __future__ import annotations

from dataclasses import dataclass

from redrive.core.item import Instant, Item
from redrive.core.states import State
from redrive.core.terms import dedupe_place

Place = tuple[str, str]
"""(scope, key)"""


@dataclass(slots=True)
class Holder:
    """`until` counts when it is done; None: the key is free as soon as it is."""

    id: str
    until: Instant | None
    live: bool = True

    def holds(self, now: Instant) -> bool:
        return self.live or (self.until is not None and self.until > now)


class Keys:
    def __init__(self) -> None:
        self.holders: dict[Place, Holder] = {}

    def holder(self, place: Place, now: Instant) -> str | None:
        found = self.holders.get(place)
        return found.id if found is not None and found.holds(now) else None

    def take(self, item: Item, now: Instant) -> None:
        """If it has a key that is free: one that was replayed in spite of its twin runs without."""
        place = place_of(item)
        if place is None or self.holder(place, now) is not None or item.terms is None or item.terms.dedupe is None:
            return
        window = item.terms.dedupe.window
        self.holders[place] = Holder(item.id, None if window is None else item.enqueued_at + window)

    def release(self, item: Item, now: Instant) -> None:
        """It has ended."""
        place = place_of(item)
        found = None if place is None else self.holders.get(place)
        if place is None or found is None or found.id != item.id:
            return
        found.live = False
        if item.state is not State.DONE or not found.holds(now):
            del self.holders[place]

    def forget(self, now: Instant) -> None:
        self.holders = {place: holder for place, holder in self.holders.items() if holder.holds(now)}


def place_of(item: Item) -> Place | None:
    return None if item.terms is None else dedupe_place(item.queue, item.terms)
