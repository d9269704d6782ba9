"""Settlements of leased items whose payload cannot be read: they become letters, by the same `decide` as all others.

An item encrypted with a key that this process does not have is released for processes that have it.
"""

from __future__ import annotations

import logging

from redrive.core.backoff import exponential
from redrive.core.classify import fingerprint
from redrive.core.decide import decide
from redrive.core.item import Attempt, Ending, Failure, Instant, Item
from redrive.core.outcome import Dead, Release
from redrive.core.policy import Policy
from redrive.core.verbs import Settlement
from redrive.errors import DecryptionFailed, StoreError, StoreTooNew

MISSING_KEY = "its worker does not have encryption key"
"""Beginning of the note of a delivery that was released for lack of a key."""
PAUSES = exponential("5s", factor=2, cap="1m")
"""Delay before the next lease of an item that was released for lack of a key, by the number of its releases."""

_log = logging.getLogger("redrive.stores")


def laid_aside(item: Item, wrong: StoreError, now: Instant) -> Settlement:
    """The settlement that makes a damaged item a letter: it must neither run nor block its queue."""
    reason = _reason(wrong)
    kind = f"redrive.errors.{type(wrong).__name__}"
    text = str(wrong)
    failure = Failure(kind, text, reason, f"builtin:{reason}", fingerprint(kind, text, ()), action="dead")
    decision = decide(item, Dead(failure, reason), Policy(), roll=0, age=0)
    attempt = Attempt(item.deliveries, item.attempt, item.worker or "", now, 0, Ending.DEAD, failure)
    _log.error("item %s of %s was not run and is a dead letter (%s): %s", item.id, item.queue, reason, text)
    return Settlement(item.id, item.deliveries, decision, attempt)


def given_back(item: Item, key: str, now: Instant, *, pause: bool) -> Settlement:
    """The settlement that releases an item without charging an attempt. `pause`: with a delay, since its worker goes on
    and must not lease it again at once.
    """
    note, number = f"{MISSING_KEY} {key!r}", item.deliveries - item.attempt - item.crashes + 1
    after = PAUSES.delay(number, 0.5) if pause else None
    decision = decide(item, Release(note, after or 0), Policy(), roll=0, age=0)
    attempt = Attempt(item.deliveries, item.attempt, item.worker or "", now, 0, Ending.RELEASED, note=note)
    return Settlement(item.id, item.deliveries, decision, attempt)


def _reason(wrong: StoreError) -> str:
    if isinstance(wrong, StoreTooNew | DecryptionFailed):
        return "unreadable"
    return "damaged"
