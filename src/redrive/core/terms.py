"""What stores agree on about items that are bound to others: numbers they keep and words they write.

The rules are in the docstrings of stores.base; here is what must be the same, byte for byte, in every engine.
"""

from __future__ import annotations

from msgspec.structs import replace

from redrive.core import codec
from redrive.core.item import Failure, Instant, NewItem, Terms

HOLDS = ("", "after", "order", "limit", "parked")
"""By number, as the engines keep them. A hold that is derived (`parked:order`) is kept as the one it comes from; the
label of an item that an operator parked is kept beside its terms.
"""

ORDERED = 1
DEDUPED = 2
WAITS = 4
AWAITED = 8
LIMITED = 16
CANCEL = 32
TAGGED = 128
PARKED = 256
"""What `ties` of an item is the sum of: where to look when it ends. Most items have 0, and nothing is looked up."""

DEPENDENCY = "dependency"
DEPENDENCY_FAILURE = Failure(
    type="redrive.DependencyFailed",
    text="an item that it waits for is dead or was cancelled",
    category=DEPENDENCY,
    rule="after",
    cause=DEPENDENCY,
    action="dead",
)
DEPENDENCY_BYTES = codec.encode(DEPENDENCY_FAILURE)

EXPIRED = "expired"
EXPIRED_FAILURE = Failure(
    type="redrive.Expired",
    text="its time was over before it was done",
    category=EXPIRED,
    rule="expire",
    cause=EXPIRED,
    action="dead",
)

STORE_SCOPE = ""
"""The scope under which keys for the whole store are kept; no queue has this name."""


def ties(terms: Terms | None) -> int:
    """Of a new item; AWAITED, CANCEL, TAGGED and PARKED come later."""
    if terms is None:
        return 0
    return (
        (ORDERED if terms.order_key else 0)
        | (DEDUPED if terms.dedupe is not None else 0)
        | (WAITS if terms.after else 0)
        | (LIMITED if terms.limit_key else 0)
    )


def with_policy(terms: Terms | None, policy: str) -> Terms | None:
    """The terms with another policy; None where that leaves the default."""
    changed = replace(terms or Terms(), policy=policy)
    return None if changed == Terms() else changed


def edited(terms: Terms | None) -> Terms:
    """The terms of an item whose payload has one more revision."""
    terms = terms or Terms()
    return replace(terms, revision=terms.revision + 1)


def parked_hold(label: str) -> str:
    """The hold of an item that an operator parked under this label."""
    return f"parked:{label}"


def is_parked(hold: str) -> bool:
    """Whether an operator parked it; `parked:order` is derived from a dead head."""
    return hold.startswith("parked:") and hold != "parked:order"


def due(new: NewItem, now: Instant) -> Instant:
    return now + new.delay if new.at is None else max(now + new.delay, new.at)


def dedupe_place(queue: str, terms: Terms) -> tuple[str, str] | None:
    """(scope, key) under which the dedupe key is held, or None."""
    dedupe = terms.dedupe
    if dedupe is None:
        return None
    return (queue if dedupe.scope == "queue" else STORE_SCOPE), dedupe.key
