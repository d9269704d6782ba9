"""Stores with one planted bug each. A suite that passes one of these has no teeth.

Most are the memory store with one verb bent, so that the bug is all that differs. Peers that have the bug are named.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import structs

from redrive.core.acts import (
    Act,
    Amended,
    Change,
    Replay,
)
from redrive.core.item import Item, Millis
from redrive.core.select import Selection
from redrive.core.states import State
from redrive.core.verbs import (
    Extended,
    Held,
    LeaseRequest,
    Leases,
    Settled,
    Settlement,
)
from redrive.errors import LeaseLost
from redrive.stores.memory import MemoryStore


async def breath() -> None:
    """A place where another caller can come in between, or the process can die."""
    await asyncio.sleep(0)  # noqa: TID251 - not a wait for time: it only lets the others run


class Bent(MemoryStore):
    """Ways past the verbs, for those who do it wrong."""

    def peek(self, item_id: str) -> Item | None:
        return self._table.items.get(item_id)

    def force(self, item: Item) -> None:
        self._table.save(item)

    def drop(self, item: Item) -> None:
        self._table.drop(item)

    def now(self) -> int:
        return self._clock.now()


# --- fencing ---


class SettlesByState(Bent):
    """River: whoever comes with the id ends the lease, if only somebody holds it."""

    async def settle(self, settlements: Sequence[Settlement], then: LeaseRequest | None = None) -> Settled:
        return await super().settle([self._current(settlement) for settlement in settlements], then)

    def _current(self, settlement: Settlement) -> Settlement:
        item = self.peek(settlement.id)
        return settlement if item is None else structs.replace(settlement, delivery=item.deliveries)


class SettlesById(SettlesByState):
    """Oban: not even the state is asked."""

    async def settle(self, settlements: Sequence[Settlement], then: LeaseRequest | None = None) -> Settled:
        for settlement in settlements:
            item = self.peek(settlement.id)
            if item is not None and item.state is not State.LEASED:
                until = self.now() + 1
                self.force(structs.replace(item, state=State.LEASED, lease_until=until, letter=None, ended_at=None))
        return await super().settle(settlements, then)


class ExtendsById(Bent):
    """Faktory, asynq: a heartbeat names the item, not the delivery."""

    async def extend(self, held: Sequence[Held], ttl: Millis) -> Extended:
        current = [(self.peek(one.id), one) for one in held]
        return await super().extend([Held(one.id, item.deliveries if item else 0) for item, one in current], ttl)


class ExtendRevives(Bent):
    async def extend(self, held: Sequence[Held], ttl: Millis) -> Extended:
        for one in held:
            item = self.peek(one.id)
            if item is not None and item.lease_until is not None and item.lease_until <= self.now():
                self.force(structs.replace(item, lease_until=self.now() + 1))
        return await super().extend(held, ttl)


class ExtendShortens(Bent):
    async def extend(self, held: Sequence[Held], ttl: Millis) -> Extended:
        extended = await super().extend(held, ttl)
        for one in held:
            item = self.peek(one.id)
            if item is not None and item.state is State.LEASED and one.id not in extended.lost:
                self.force(structs.replace(item, lease_until=self.now() + ttl))
        return extended


class ReplayResetsTheFence(Bent):
    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        amended = await super().amend(selection, change, by, expect)
        for item_id in amended.changed if isinstance(change, Replay) else ():
            item = self.peek(item_id)
            assert item is not None
            self.force(structs.replace(item, deliveries=0))
        return amended


class RefusalFailsTheBatch(Bent):
    async def settle(self, settlements: Sequence[Settlement], then: LeaseRequest | None = None) -> Settled:
        for settlement in settlements:
            item = self.peek(settlement.id)
            if item is None or item.deliveries != settlement.delivery:
                raise LeaseLost(f"{settlement.id} was given away")
        return await super().settle(settlements, then)


class FollowsUpAlthoughRefused(Bent):
    async def settle(self, settlements: Sequence[Settlement], then: LeaseRequest | None = None) -> Settled:
        await self.put([child for settlement in settlements for child in settlement.follow_ups])
        return await super().settle(settlements, then)


class RefusesWhatExpired(Bent):
    """The holder was late, nobody had taken over, and its good result is thrown away."""

    async def settle(self, settlements: Sequence[Settlement], then: LeaseRequest | None = None) -> Settled:
        for settlement in settlements:
            item = self.peek(settlement.id)
            if item is not None and item.lease_until is not None and item.lease_until <= self.now():
                self.force(structs.replace(item, deliveries=item.deliveries + 1))
        return await super().settle(settlements, then)


# --- leasing ---


class LeasesWithoutExclusion(Bent):
    """Gives the item and leaves it ready: the next worker gets it too."""

    async def lease(self, request: LeaseRequest) -> Leases:
        leases = await super().lease(request)
        for item in leases.items:
            self.force(structs.replace(item, state=State.READY, lease_until=None))
        return leases


class PopsThenStores(Bent):
    """BRPOP and then remember: whoever dies in between takes the item along."""

    async def lease(self, request: LeaseRequest) -> Leases:
        leases = await super().lease(request)
        for item in leases.items:
            self.drop(item)
        await breath()
        for item in leases.items:
            self.force(item)
        return leases


class CountsOnFailureOnly(Bent):
    """Dramatiq: the attempt is counted by the code that the crash took along."""

    async def lease(self, request: LeaseRequest) -> Leases:
        leases = await super().lease(request)
        items = [structs.replace(item, attempt=item.attempt - 1) for item in leases.items]
        for item in items:
            self.force(item)
        return structs.replace(leases, items=tuple(items))


class LeasesByTheWorkersClock(Bent):
    """The worker's clock is half a second fast."""

    async def lease(self, request: LeaseRequest) -> Leases:
        for item in tuple(self._table.items.values()):
            if item.state is State.READY and self.now() < item.due_at <= self.now() + 500:
                self.force(structs.replace(item, due_at=self.now()))
        return await super().lease(request)


class KnowsOneLane(Bent):
    """A second request of a worker makes it forget the first, whose leases nobody holds then."""

    async def lease(self, request: LeaseRequest) -> Leases:
        return await super().lease(structs.replace(request, lane=0))


class IgnoresTheNonce(Bent):
    _calls = 0

    async def lease(self, request: LeaseRequest) -> Leases:
        return await super().lease(self._other(request))

    async def settle(self, settlements: Sequence[Settlement], then: LeaseRequest | None = None) -> Settled:
        return await super().settle(settlements, None if then is None else self._other(then))

    def _other(self, request: LeaseRequest) -> LeaseRequest:
        self._calls += 1
        return structs.replace(request, nonce=f"{request.nonce}/{self._calls}")


class GivesSuspectsInCompany(Bent):
    """RabbitMQ with a prefetch: who shares a worker with a poison item is charged with it."""

    async def lease(self, request: LeaseRequest) -> Leases:
        wants = tuple(structs.replace(want, max_crashes=1_000_000) for want in request.wants)
        return await super().lease(structs.replace(request, wants=wants))


class LeasesTheNewestFirst(Bent):
    async def lease(self, request: LeaseRequest) -> Leases:
        wants = tuple(structs.replace(want, limit=1_000) for want in request.wants)
        leases = await super().lease(structs.replace(request, wants=wants))
        limit = sum(want.limit for want in request.wants)
        chosen = leases.items[::-1][:limit]
        for item in leases.items[::-1][limit:]:
            self.force(
                structs.replace(item, state=State.READY, lease_until=None, deliveries=item.deliveries - 1, attempt=0)
            )
        return structs.replace(leases, items=chosen)


# --- reclaiming ---


class ReclaimsWithoutLookingAgain(Bent):
    """River #1302: what was expired at the scan is taken, whatever happened since."""

    async def reclaim(
        self,
        worker: str,
        queues: Sequence[str],
        ttl: Millis,
        limit: int,
        ids: Sequence[str] | None = None,
        *,
        force: bool = False,
    ) -> tuple[Item, ...]:
        scanned = await super().reclaim(worker, queues, ttl, limit, ids, force=force)
        for item in scanned:
            self.force(structs.replace(item, deliveries=item.deliveries - 1, lease_until=item.leased_at))
        await breath()
        for item in scanned:
            self.force(item)
        return scanned


class ReclaimsUnknownQueues(Bent):
    """River #1105: a reaper that does not know the queue judges its items all the same."""

    async def reclaim(
        self,
        worker: str,
        queues: Sequence[str],
        ttl: Millis,
        limit: int,
        ids: Sequence[str] | None = None,
        *,
        force: bool = False,
    ) -> tuple[Item, ...]:
        return await super().reclaim(worker, list(self._table.lanes), ttl, limit, ids, force=force)


class ReclaimStarves(Bent):
    """River #1318: a full batch of leases it may not take hides those it may."""

    async def reclaim(
        self,
        worker: str,
        queues: Sequence[str],
        ttl: Millis,
        limit: int,
        ids: Sequence[str] | None = None,
        *,
        force: bool = False,
    ) -> tuple[Item, ...]:
        expired = sorted(
            (item for item in self._table.items.values() if item.lease_until is not None),
            key=lambda item: (item.lease_until, item.seq),
        )
        batch = [item.id for item in expired[:limit]]
        chosen = batch if ids is None else [item_id for item_id in ids if item_id in batch]
        return await super().reclaim(worker, queues, ttl, limit, chosen, force=force)


class ReclaimKeepsTheDelivery(Bent):
    """The new holder has the old one's number: the zombie's writes count."""

    async def reclaim(
        self,
        worker: str,
        queues: Sequence[str],
        ttl: Millis,
        limit: int,
        ids: Sequence[str] | None = None,
        *,
        force: bool = False,
    ) -> tuple[Item, ...]:
        taken = await super().reclaim(worker, queues, ttl, limit, ids, force=force)
        same = tuple(structs.replace(item, deliveries=item.deliveries - 1) for item in taken)
        for item in same:
            self.force(item)
        return same
