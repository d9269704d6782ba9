"""New items: judged all together first, so that a put which is refused has changed nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from redrive.core.decide import ToDone
from redrive.core.families import family_of
from redrive.core.item import Instant, NewItem
from redrive.core.terms import dedupe_place
from redrive.core.verbs import Duplicate, PutResult, Settlement, Tombstone
from redrive.errors import EncryptionKeyMissing, QueueFull
from redrive.stores.checks import hopeless_dependency, unknown_dependency
from redrive.stores.memory import _moves
from redrive.stores.memory._bonds import Bonds
from redrive.stores.memory._dedupe import Place
from redrive.stores.memory._table import Table
from redrive.stores.packing import is_sealed


class Putting:
    def __init__(self, table: Table, bonds: Bonds, tombstones: Mapping[str, Tombstone]) -> None:
        self._table = table
        self._bonds = bonds
        self._tombstones = tombstones

    def put(self, items: Sequence[NewItem], now: Instant, *, bounded: bool = True) -> PutResult:
        """`bounded`: no more than the queues have room for."""
        for new in items:
            check_sealed(self._table, new.queue, new.payload)
        accepted, already, duplicates = self._judge(items, now)
        self._check_dependencies(accepted)
        if bounded:
            self._check_capacity(accepted.values())
        entered = [
            self._bonds.enter(_moves.created(new, self._table.next_seq(), now), now) for new in accepted.values()
        ]
        self._bonds.entered(entered, now)
        return PutResult(tuple(accepted), tuple(already), tuple(duplicates))

    def _judge(self, items: Sequence[NewItem], now: Instant) -> tuple[dict[str, NewItem], list[str], list[Duplicate]]:
        accepted: dict[str, NewItem] = {}
        already: list[str] = []
        duplicates: list[Duplicate] = []
        claimed: dict[Place, str] = {}
        for new in items:
            # A pruned id counts as there: the late repeat of an old put must not run the work again.
            if new.id in accepted or new.id in self._table.items or new.id in self._tombstones:
                already.append(new.id)
                continue
            place = None if new.terms is None else dedupe_place(new.queue, new.terms)
            if place is not None:
                holder = claimed.get(place) or self._bonds.keys.holder(place, now)
                if holder is not None:
                    duplicates.append(Duplicate(new.id, holder))
                    continue
                claimed[place] = new.id
            accepted[new.id] = new
        return accepted, already, duplicates

    def _check_dependencies(self, accepted: Mapping[str, NewItem]) -> None:
        for new in accepted.values():
            for awaited in () if new.terms is None else new.terms.after:
                if awaited in accepted:
                    continue
                if not self._bonds.known(awaited):
                    raise unknown_dependency(new.id, awaited)
                if new.terms is not None and new.terms.on_dead == "wait" and self._bonds.hopeless(awaited):
                    raise hopeless_dependency(new.id, awaited)

    def _check_capacity(self, accepted: Iterable[NewItem]) -> None:
        more = Counter(new.queue for new in accepted)
        for queue in sorted(more):
            lane = self._table.lanes.get(queue)
            capacity = None if lane is None else lane.settings.capacity
            if lane is not None and capacity is not None and lane.fill + more[queue] > capacity:
                raise QueueFull(queue, fill=lane.fill, capacity=capacity, more=more[queue])
        for family in sorted({family_of(queue) for queue in more} & self._table.families.keys()):
            lane, capacity = self._table.families[family], self._table.families[family].own.capacity
            members = sorted([queue for queue in more if family_of(queue) == family])
            together = sum([more[queue] for queue in members])
            if capacity is not None and lane.fill + together > capacity:
                raise QueueFull(family, fill=lane.fill, capacity=capacity, more=together, member=members[-1])


def check_sealed(table: Table, queue: str, body: bytes | None) -> None:
    """Before anything is changed: no body in clear for a queue that is encrypted."""
    lane = table.lanes.get(queue)
    if body is not None and lane is not None and lane.settings.encrypt and not is_sealed(body):
        raise EncryptionKeyMissing(queue)


def check_ends(table: Table, settlements: Sequence[Settlement]) -> None:
    """Of results and follow-ups, whatever is decided of them."""
    for one in settlements:
        item = table.items.get(one.id)
        if item is not None and isinstance(one.decision, ToDone):
            check_sealed(table, item.queue, one.decision.result)
        for new in one.follow_ups:
            check_sealed(table, new.queue, new.payload)
