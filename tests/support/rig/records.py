"""What the rig writes down: one record a line, in files that live outside the tested store.

Times are CLOCK_MONOTONIC nanoseconds, which all processes of a machine share. `at` is what due times and leases are
compared with: wall time in milliseconds by the clock of the process, which may be an hour ahead; 0 says nothing.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Invoke(Struct, frozen=True, tag="invoke"):
    """A producer is about to enqueue. Written before, so that whatever exists was asked for.

    `payload` None says nothing.
    """

    id: str
    queue: str
    ns: int
    at: int = 0
    delay: int = 0
    payload: bytes | None = None


class Told(Struct, frozen=True, tag="told"):
    """What enqueue said: ok (accepted), fail (nothing was written) or unknown."""

    id: str
    answer: Literal["ok", "fail", "unknown"]
    ns: int


class Follow(Struct, frozen=True, tag="follow"):
    """A handler asked for a follow-up: it exists if, and only if, this delivery of its parent was accepted as done."""

    id: str
    parent: str
    delivery: int
    ns: int


class Start(Struct, frozen=True, tag="start"):
    """`until`: how long the lease lasts at least, as it was given."""

    id: str
    attempt: int
    delivery: int
    pid: int
    ns: int
    at: int = 0
    until: int = 0


class End(Struct, frozen=True, tag="end"):
    """`how`: done, failed, dead, snoozed (what the handler says), or cancelled (it was stopped from outside)."""

    id: str
    attempt: int
    delivery: int
    pid: int
    ns: int
    how: str
    at: int = 0


class Worker(Struct, frozen=True, tag="worker"):
    """Which process goes by which worker name."""

    name: str
    pid: int
    ns: int


class Settled(Struct, frozen=True, tag="settled"):
    """The store accepted the end of a delivery; `retry_in`: the next is due so many milliseconds later."""

    id: str
    delivery: int
    worker: str
    ending: str
    state: str
    ns: int
    retry_in: int = 0


class Refused(Struct, frozen=True, tag="refused"):
    id: str
    delivery: int
    worker: str
    ns: int


class Lost(Struct, frozen=True, tag="lost"):
    """The keeper found that the lease is gone."""

    id: str
    delivery: int
    worker: str
    ns: int


class Reclaimed(Struct, frozen=True, tag="reclaimed"):
    """`delivery` is the new one; `lost_by` held the one before."""

    id: str
    delivery: int
    worker: str
    lost_by: str
    ns: int
    at: int = 0


class Trouble(Struct, frozen=True, tag="trouble"):
    """A store call of this process failed or its outcome is unknown: what it repeats may run twice."""

    pid: int
    part: str
    error: str
    ns: int


class Seen(Struct, frozen=True, tag="seen"):
    """A reader of changes got this one. `lies`: the disposition of a letter; "" of what is none, or was pruned."""

    number: int
    id: str
    lies: str
    ns: int


class Struck(Struct, frozen=True, tag="struck"):
    """The nemesis acts on a process. Written before the signal is sent."""

    pid: int
    signal: Literal["kill", "stop", "cont", "term"]
    ns: int


Record = Invoke | Told | Follow | Start | End | Worker | Settled | Refused | Lost | Reclaimed | Trouble | Seen | Struck
