"""The names of policies that apps declared. Their rules are in code; the names are also in the store, so that a typing
error is found.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from redrive.core.policy_data import is_data
from redrive.core.verbs import DocumentWrite
from redrive.engine.asks import known_policy
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


async def check_policy(store: Store, policy: object, named: Collection[str]) -> str:
    """What is stored. Raises ConfigError for a name that is neither one of `named` nor declared in the store."""
    if isinstance(policy, str) and policy and policy not in named and not is_data(policy):
        named = {*named, *await declared_policies(store)}
    return known_policy(policy, named)
