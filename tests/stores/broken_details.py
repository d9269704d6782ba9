"""More bugs about what describes an item, its policy, and the lanes of a worker: what they are, and how each comes into
every store.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from msgspec import structs

from redrive.core.acts import (
    Act,
    Amended,
    Change,
    SetPolicy,
)
from redrive.core.item import Attempt, Instant, Terms
from redrive.core.select import Selection
from redrive.core.terms import with_policy
from redrive.core.verbs import LeaseRequest, Leases
from redrive.stores.memory._leasing import Leasing
from redrive.stores.postgres import amend as postgres_amend
from redrive.stores.postgres import settle as postgres_settle
from redrive.stores.redis import settle as redis_settle
from redrive.stores.sqlite import amend as sqlite_amend
from redrive.stores.sqlite import settle as sqlite_settle
from tests.stores.broken import Bent
from tests.stores.broken_lanes import BentLeasing
from tests.stores.broken_servers import Bug
from tests.stores.planting import Edit, Patch, Plant

BUGS: dict[str, Bug] = {
    "LosesTheOtherTerms": Bug(
        "with another policy an item has nothing else that it was put with",
        ("test_fields_stay_when_tags_and_policy_change",),
    ),
    "LosesTheReleaseOfAttempts": Bug(
        "nobody can tell which release an attempt ran with", ("test_fields_release_of_an_attempt",)
    ),
}


class LosesTheOtherTerms(Bent):
    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        amended = await super().amend(selection, change, by, expect)
        if isinstance(change, SetPolicy):
            for item_id in amended.changed:
                self.force(structs.replace(self._table.items[item_id], terms=with_policy(None, change.policy)))
        return amended


class AnswersAnyLane(BentLeasing):
    """A request is taken for the repeat of one of another lane."""

    class kind(Leasing):  # noqa: N801
        def lease(self, request: LeaseRequest, now: Instant) -> Leases:
            for (worker, lane), last in self._given.items():
                if (worker, last.nonce) == (request.worker, request.nonce):
                    return super().lease(structs.replace(request, lane=lane), now)
            return super().lease(request, now)


def _loses_the_other_terms(module: ModuleType) -> Patch:
    def bare(_: Terms | None, policy: str) -> Terms | None:
        return with_policy(None, policy)

    return lambda monkeypatch: monkeypatch.setattr(module, "with_policy", bare)


def _loses_the_release(module: ModuleType) -> Patch:
    right = vars(module)["codec"]

    def encode(value: Any) -> bytes:
        body: bytes = right.encode(structs.replace(value, release="") if isinstance(value, Attempt) else value)
        return body

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        bent = ModuleType("codec")
        vars(bent).update(vars(right) | {"encode": encode})
        monkeypatch.setattr(module, "codec", bent)

    return plant


PLANTS: dict[str, dict[str, Plant]] = {
    "sqlite": {
        "LosesTheOtherTerms": Plant(patches=(_loses_the_other_terms(sqlite_amend),)),
        "LosesTheReleaseOfAttempts": Plant(patches=(_loses_the_release(sqlite_settle),)),
    },
    "postgres": {
        "LosesTheOtherTerms": Plant(patches=(_loses_the_other_terms(postgres_amend),)),
        "LosesTheReleaseOfAttempts": Plant(patches=(_loses_the_release(postgres_settle),)),
    },
    "redis": {
        "LosesTheOtherTerms": Plant(
            (
                Edit(
                    "amend",
                    "terms[POLICY] = how.policy",
                    "acts_on.described(m) terms[POLICY], terms[DESCRIBED] = how.policy, {0, '', {}, 0}",
                ),
            )
        ),
        "LosesTheReleaseOfAttempts": Plant(patches=(_loses_the_release(redis_settle),)),
    },
}
