"""What is asked of a work on letters in place, checked; and the words for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from redrive.core import durations, rates
from redrive.core.acts import (
    Act,
    Refusal,
    Replay,
    Skipped,
    refusal,
)
from redrive.core.durations import Duration
from redrive.core.item import Instant, Item, Millis, holder
from redrive.core.meters import Rate
from redrive.core.rates import RateText
from redrive.core.select import Ids
from redrive.errors import ConfigError
from redrive.stores.base import PAGE_LIMIT
from redrive.stores.clock import Clock

Function = Callable[[Item], Any]
"""Async, or a plain function for a thread. What it returns is the item's result."""
Progress = Callable[[int, int], None]
"""How many were reached, and of how many."""
SHORTEST: Millis = 1000
PATIENCE = 5
"""Attempts on one letter while the target answers with a rate limit."""
LONGEST_WAIT: Millis = 60_000
PIECE: Millis = 500


class Halt(Exception):
    """Raised by the function: stop early. This letter is let go as it was, and the rest is not touched."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Worked(Struct, frozen=True):
    """What became of each. `kept` are letters still, with one attempt more; `cancelled` with the reason of Cancel;
    `skipped` were held by others or changed meanwhile; `left` were not reached, because of `halted` or a dry run.
    """

    done: tuple[str, ...] = ()
    kept: tuple[Skipped, ...] = ()
    cancelled: tuple[Skipped, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    left: tuple[str, ...] = ()
    halted: str = ""


class Job(Struct, frozen=True):
    """What is asked for, checked. `early`: also what was put off. `frames` and `max_result` are as the app has them."""

    function: Function
    act: Act
    ttl: Millis
    concurrency: int
    early: bool
    pace: Rate | None
    on_progress: Progress | None
    frames: bool
    max_result: int


class WorkRecord(Struct, frozen=True):
    """What the audit says: an AuditRecord, with what became of those in `changed`, or how many stayed letters."""

    change: str
    selection: Ids
    changed: tuple[str, ...]
    settings: dict[str, int]


async def patiently(
    attempt: Callable[[], Awaitable[None]], limited: type[Exception], clock: Clock, check_stop: Callable[[], None]
) -> None:
    """For a function on a letter. A rate limit, an error of the type `limited`, is not an answer to the letter: it is
    waited for, up to a minute at a time, as its `retry_after` says. `check_stop` is called meanwhile, and may raise.
    """
    for failures in range(1, PATIENCE):
        try:
            return await attempt()
        except limited as error:
            after = getattr(error, "retry_after", None)
            wait: Millis = max(1, round((2.0**failures if after is None else after) * 1000))
            if wait > LONGEST_WAIT:
                raise
        while wait > 0:  # in pieces, so that a stop takes effect at once
            await clock.sleep(min(wait, PIECE))
            wait -= PIECE
            check_stop()
    return await attempt()


def job(
    function: object,
    act: Act,
    *,
    ttl: Duration,
    concurrency: object,
    early: bool,
    pace: RateText | None,
    on_progress: Progress | None,
    frames: bool,
    max_result: int,
) -> Job:
    """Raises ConfigError that names the option."""
    if not callable(function):
        raise ConfigError(f"{function!r} cannot be called", field="function", hint="use async def work(item): …")
    lent = durations.parse(ttl, field="ttl")
    if lent < SHORTEST:
        raise ConfigError(f"{ttl!r} is too short to be prolonged in time", field="ttl", hint="use 1s or more")
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or not 1 <= concurrency <= PAGE_LIMIT:
        hint = f"use a whole number from 1 to {PAGE_LIMIT:,}"
        raise ConfigError(f"{concurrency!r} cannot be used", field="concurrency", hint=hint)
    rate = None if pace is None else rates.parse(pace, field="pace")
    return Job(function, act, lent, concurrency, early, rate, on_progress, frames, max_result)


def why_not(item: Item, now: Instant, *, early: bool, reserved: str = "") -> Refusal | None:
    """Why this letter cannot be leased now, or None. `early`: that it was put off is no reason. `reserved`: the replay
    for which it must be reserved.
    """
    disposition, kept = (None, "") if item.letter is None else (item.letter.disposition, item.letter.reserved)
    held = holder(item, now)
    refused = refusal(Replay(reserved=reserved), item.state, disposition, holder=held, reserved=kept)
    if held and refused:
        # Its worker may have died since: until when is all that can be said.
        whole = -(-((item.lease_until or 0) - now) // 1000) * 1000
        words = f"{refused.reason} for another {durations.brief(whole)}; repeat this if it is a letter then"
        return Refusal(words, "leased")
    put_off = not early and item.lease_until is not None and item.lease_until > now
    return refused or (Refusal("it was put off and is not due yet", "put_off") if put_off else None)
