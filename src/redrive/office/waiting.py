"""Acts on waiting items: replace their policy, run them now, let them expire, park and unpark them."""

from __future__ import annotations

from redrive.core import select
from redrive.core.acts import (
    Act,
    Amended,
    WaitingChange,
)
from redrive.core.filters import parse as parse_filter
from redrive.core.select import And, Match, Selection
from redrive.errors import ConfigError
from redrive.office.bites import amend_in_bites, bites_of, ids_of
from redrive.office.letters import Which, ids_named, is_filter
from redrive.stores.base import Store


def check_label(label: object) -> str:
    if not isinstance(label, str):
        hint = "a short name for why it is parked, as in 'schema'"
        raise ConfigError(f"must be a text, got {label!r}", field="label", hint=hint)
    return label


def waiting(filter: str) -> Selection:
    """The waiting items that match. If it names ids, also others: an act says why it skips them."""
    if not filter.strip():
        raise ConfigError("filter must not be empty", field="filter", hint="for every waiting item, use state:ready")
    meant = parse_filter(filter)
    return And((Match("state", "=", "ready"), meant)) if select.ids_of(meant) is None else meant


async def amend_waiting(store: Store, which: Which, change: WaitingChange, act: Act) -> Amended:
    """`which` is an id, ids, items, a page, or a filter. Items that run or have ended are skipped, if it
    names them.
    """
    ids = await ids_of(store, waiting(which), oldest=True) if is_filter(which) else ids_named(which)
    return await amend_in_bites(store, bites_of(ids, change), act)
