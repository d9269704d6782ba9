"""Policies as operators use them: the names that apps declared, and the policy of waiting items.

The rules of a named policy are in code; its name is also in the store, so that a typing error is found.
"""

from __future__ import annotations

from collections.abc import Iterable

from redrive.core.filters import parse as parse_filter
from redrive.core.item import History, Item
from redrive.core.policy_data import PolicyLike
from redrive.core.select import And, Match, Selection
from redrive.core.verbs import Act, Amended, DocumentWrite, SetPolicy
from redrive.errors import ConfigError
from redrive.office.bites import amend_in_bites, bites_of, ids_of
from redrive.office.letters import BARE_ID, Which, check_several
from redrive.office.settings import policy_value
from redrive.stores.base import Store

KIND = "policy"


async def declare_policies(store: Store, names: Iterable[str]) -> None:
    """May be said again by everybody who opens the store: only the first one writes. Names are never taken back."""
    wanted = frozenset(names)
    missing = wanted.difference(await declared_policies(store)) if wanted else frozenset()
    if missing:
        await store.write_documents([DocumentWrite(KIND, name, b"{}") for name in sorted(missing)])


async def declared_policies(store: Store) -> tuple[str, ...]:
    return tuple([document.key for document in await store.documents(KIND)])


async def set_policy(store: Store, which: Which, policy: PolicyLike | None, act: Act) -> Amended:
    """Replace the policy of waiting items; None removes it."""
    change = SetPolicy(policy_value(policy, "policy"))
    return await amend_in_bites(store, bites_of(await _ids(store, which), change), act)


def waiting(filter: str) -> Selection:
    """The waiting items that match."""
    if not filter.strip():
        raise ConfigError("filter must not be empty", field="filter", hint="for every waiting item, use state:ready")
    return And((Match("state", "=", "ready"), parse_filter(filter)))


async def _ids(store: Store, which: Which) -> list[str]:
    if isinstance(which, str) and not BARE_ID.fullmatch(which):
        return await ids_of(store, waiting(which))
    if isinstance(which, History):
        which = which.item
    several = [which] if isinstance(which, Item) else check_several(which, "which")
    return [str(each) if isinstance(each, str) else each.id for each in several]
