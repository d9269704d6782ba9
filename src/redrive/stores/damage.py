"""What becomes of a leased item whose payload cannot be read: a letter, through the same decision as all others.

In a process without encryption keys every encrypted item is one of them: it is made ready again for those with keys.
"""

from __future__ import annotations

import logging

from redrive.core.classify import fingerprint
from redrive.core.decide import decide
from redrive.core.item import Attempt, Ending, Failure, Instant, Item
from redrive.core.outcome import Dead, Release
from redrive.core.policy import Policy
from redrive.core.verbs import Settlement
from redrive.errors import DecryptionFailed, StoreError, StoreTooNew

NO_KEYS = "it is encrypted, and the process that leased it has no encryption keys"

_log = logging.getLogger("redrive.stores")


def laid_aside(item: Item, wrong: StoreError, now: Instant) -> Settlement:
    """It must neither run nor block its queue. Whoever leased it settles it so, and gives it to nobody."""
    reason = _reason(wrong)
    kind = f"redrive.errors.{type(wrong).__name__}"
    text = str(wrong)
    failure = Failure(kind, text, reason, f"builtin:{reason}", fingerprint(kind, text, ()), action="dead")
    decision = decide(item, Dead(failure, reason), Policy(), roll=0, age=0)
    attempt = Attempt(item.deliveries, item.attempt, item.worker or "", now, 0, Ending.DEAD, failure)
    _log.error("item %s of %s is a letter (%s), and was not run: %s", item.id, item.queue, reason, text)
    return Settlement(item.id, item.deliveries, decision, attempt)


def given_back(item: Item, now: Instant) -> Settlement:
    """It was never in the hands of anybody: it costs no attempt."""
    decision = decide(item, Release(NO_KEYS), Policy(), roll=0, age=0)
    attempt = Attempt(item.deliveries, item.attempt, item.worker or "", now, 0, Ending.RELEASED, note=NO_KEYS)
    return Settlement(item.id, item.deliveries, decision, attempt)


def _reason(wrong: StoreError) -> str:
    if isinstance(wrong, StoreTooNew | DecryptionFailed):
        return "unreadable"
    return "damaged"
