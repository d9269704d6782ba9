"""Planted bugs about kinds and what describes an item: each the memory store with one thing bent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import structs

from redrive.core.acts import Act
from redrive.core.item import History, Millis
from redrive.core.verbs import (
    LeaseRequest,
    Leases,
    PutResult,
    Settled,
    Settlement,
)
from tests.stores.broken import Bent


class LeasesEveryKind(Bent):
    """A worker gets items that it has no handler for."""

    async def lease(self, request: LeaseRequest) -> Leases:
        wants = tuple(structs.replace(want, kinds=None) for want in request.wants)
        return await super().lease(structs.replace(request, wants=wants))


class LeasesKindByKind(Bent):
    """In the order of their names: the kind that comes first starves the others."""

    async def lease(self, request: LeaseRequest) -> Leases:
        leases = await super().lease(request)
        return structs.replace(leases, items=tuple(sorted(leases.items, key=lambda item: (item.kind, item.due_at))))


class SpinsForOtherKinds(Bent):
    """The wait returns at once for items that the worker does not take, and the worker asks again and again."""

    async def wait(
        self,
        queues: Sequence[str],
        timeout: Millis,
        kinds: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        await super().wait(queues, timeout)


class SleepsThroughItsKinds(Bent):
    """Whoever names kinds is told of nothing."""

    async def wait(
        self, queues: Sequence[str], timeout: Millis, kinds: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        await super().wait(() if kinds else queues, timeout)


class LosesTheReleaseOfAttempts(Bent):
    async def settle(self, settlements: Sequence[Settlement], then: LeaseRequest | None = None) -> Settled:
        bare = [
            one if one.attempt is None else structs.replace(one, attempt=structs.replace(one.attempt, release=""))
            for one in settlements
        ]
        return await super().settle(bare, then)


class LosesHeadersInImports(Bent):
    async def take_in(self, histories: Sequence[History], by: Act) -> PutResult:
        return await super().take_in([_without_headers(history) for history in histories], by)


def _without_headers(history: History) -> History:
    item = history.item
    terms = None if item.terms is None else structs.replace(item.terms, headers=())
    return structs.replace(history, item=structs.replace(item, terms=terms))


class CountsHeldKinds(Bent):
    """Kinds that only wait for others are told as due."""

    async def kinds(self, queue: str) -> tuple[str, ...]:
        return tuple(sorted({item.kind for item in self._table.items.values() if item.queue == queue}))
