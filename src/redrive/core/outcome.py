"""How handling an item ended. Raising, returning, timing out and crashing all become one of these, in one place."""

from __future__ import annotations

from msgspec import Struct

from redrive.core.item import Failure, Millis


class Done(Struct, frozen=True, tag=True, gc=False):
    result: bytes | None = None


class Fail(Struct, frozen=True, tag=True, gc=False):
    """The handler failed. `after` is how long the other side asks to wait (Retry-After), None to use the policy."""

    failure: Failure
    after: Millis | None = None


class Retry(Struct, frozen=True, tag=True, gc=False):
    """The handler failed and asks for another try, also where the backoff would give none. Limits still hold."""

    failure: Failure
    after: Millis | None = None


class Dead(Struct, frozen=True, tag=True, gc=False):
    """The handler, a door's rule or the runner says that trying again is useless.

    `route` is where its letter goes, "" for where the policy sends it; `after` the delay with which it stays live if
    that is full, None to use the policy. `counted`: whether this delivery ran and counts as an error.
    """

    failure: Failure
    reason: str
    route: str = ""
    after: Millis | None = None
    counted: bool = True


class Snooze(Struct, frozen=True, tag=True):
    """Not now; no fault of the item: the attempt is given back."""

    after: Millis
    note: str = ""


class Limited(Struct, frozen=True, tag=True):
    """The other side has had enough for now: no fault of the item. The attempt is given back, the evidence kept.

    `after` is how long it asks to wait, None to use the policy.
    """

    failure: Failure
    after: Millis | None = None
    note: str = ""


class Cancelled(Struct, frozen=True, tag=True):
    """Nobody wants it any more: somebody asked and the handler stopped, or the handler says so itself. `note` says who
    and why, `failure` what it raised when it was asked.
    """

    note: str = ""
    failure: Failure | None = None


class Release(Struct, frozen=True, tag=True):
    """The item goes back without a result: the worker stops, or a receiver gives it back (`after` a delay).

    `counted`: it counts as an attempt, as a receiver's does; a worker's is uncharged.
    """

    note: str = ""
    after: Millis = 0
    counted: bool = False


class LeaseExpired(Struct, frozen=True, tag=True):
    """The worker was never heard of again."""

    failure: Failure


class Expired(Struct, frozen=True, tag=True):
    """The item was older than its policy's max_age, or its own time to live, before it could run."""

    failure: Failure
    reason: str = "max_age"


Outcome = Done | Fail | Retry | Dead | Snooze | Limited | Cancelled | Release | LeaseExpired | Expired
