"""Retry or dead: decided by `decide` for items and by `decide_letter` for dead letters, and nowhere else.

Worker, reaper and every door turn what happened into an Outcome and obey the Decision. Both functions are pure: the
random number of the jitter and the age of the item are arguments.
"""

from __future__ import annotations

from enum import StrEnum
from typing import assert_never

from msgspec import Struct

from redrive.core import durations
from redrive.core import outcome as o
from redrive.core.backoff import FALLBACK
from redrive.core.item import Ending, Failure, Item, Millis
from redrive.core.policy import PATIENCE, Policy
from redrive.errors import ConfigError


class Charge(StrEnum):
    """Which counter the ended delivery moves. NOTHING gives the attempt back."""

    ERROR = "error"
    CRASH = "crash"
    NOTHING = "nothing"


class ToDone(Struct, frozen=True, tag=True, gc=False):
    result: bytes | None = None


class ToReady(Struct, frozen=True, tag=True, gc=False):
    delay: Millis
    charge: Charge


class ToDead(Struct, frozen=True, tag=True, gc=False):
    """`otherwise` is the delay with which it stays live where its route has no room: nothing is ever evicted for it."""

    reason: str
    charge: Charge
    failure: Failure
    route: str = ""
    otherwise: Millis = 60_000


class ToCancelled(Struct, frozen=True, tag=True, gc=False):
    """Somebody asked for it and the handler stopped, or the handler says that nobody wants it any more."""

    reason: str = ""


Decision = ToDone | ToReady | ToDead | ToCancelled


def decide(item: Item, outcome: o.Outcome, policy: Policy, *, roll: float, age: Millis) -> Decision:
    """`age` is the time since the item was enqueued or last replayed, by the store's clock."""
    match outcome:
        case o.Done(result):
            return ToDone(result)
        case o.Snooze(after):
            return ToReady(_bounded(after), Charge.NOTHING)
        case o.Limited(failure, after):
            return ToReady(_after_limit(item, failure, after, policy, roll), Charge.NOTHING)
        case o.Release(_, after, counted):
            return ToReady(_bounded(after), Charge.ERROR if counted else Charge.NOTHING)
        case o.Cancelled(note):
            return ToCancelled(note)
        case _:
            decision = _charged(item, outcome, policy, roll, age)
            return _routed(item, outcome, decision, policy, roll) if isinstance(decision, ToDead) else decision


def decide_letter(item: Item, outcome: o.Outcome) -> Decision:
    """As `decide`, for a dead letter that is worked on in place: it is done or cancelled, or the letter that it was.

    ToReady gives it back as a letter, to be had again after the delay.
    """
    match outcome:
        case o.Done(result):
            return ToDone(result)
        case o.Cancelled(note):
            return ToCancelled(note)
        case o.Snooze(after) | o.Release(_, after):
            return ToReady(_bounded(after), Charge.NOTHING)
        case o.Fail(_, int(after)) | o.Retry(_, int(after)) | o.Limited(_, int(after)):
            return ToReady(_bounded(after), Charge.NOTHING)
        case _:
            letter = item.letter
            if letter is None:
                raise ConfigError(f"{item.id} is {item.state}, not a dead letter", field="item")
            return ToDead(letter.reason, Charge.NOTHING, letter.failure, letter.route)


Fault = o.Fail | o.Retry | o.Dead | o.LeaseExpired | o.Expired


def _charged(item: Item, outcome: Fault, policy: Policy, roll: float, age: Millis) -> Decision:
    """What can kill. Shutdowns, snoozes and rate limits are above: they have no budget to use up."""
    match outcome:
        case o.Dead(failure, reason):
            return ToDead(reason, Charge.ERROR if outcome.counted else Charge.NOTHING, failure)
        case o.Expired(failure, reason):
            return ToDead(reason, Charge.NOTHING, failure)
        case o.LeaseExpired(failure):
            return _after_crash(item, failure, policy, roll)
        case o.Fail(failure, after):
            delay = policy.delay(item.errors + 1, roll, failure.rule)
            # A hint can move a retry, not make one where the backoff gives none.
            delay = delay if after is None or delay is None else policy.clamp(after)
            return _retry_or_dead(_fatal(item, failure, policy, age), delay, failure)
        case o.Retry(failure, after):
            delay = policy.delay(item.errors + 1, roll, failure.rule) if after is None else _bounded(after)
            return _retry_or_dead(_fatal(item, failure, policy, age), delay or 0, failure)
        case _:
            assert_never(outcome)


def _routed(item: Item, outcome: Fault, dead: ToDead, policy: Policy, roll: float) -> ToDead:
    chosen, after = (outcome.route, outcome.after) if isinstance(outcome, o.Dead) else ("", None)
    route = chosen or policy.route_of(dead.failure)
    if not route:
        return dead
    if after is None:
        # A full route keeps it live: then it waits as it would have done after this error, had it not been the last.
        delay = policy.delay(item.errors + 1, roll, dead.failure.rule)
        after = FALLBACK if delay is None else max(PATIENCE, delay)
    return ToDead(dead.reason, dead.charge, dead.failure, route, _bounded(after))


def _after_crash(item: Item, failure: Failure, policy: Policy, roll: float) -> Decision:
    """Only a lone crash can kill: whoever shared its worker may be innocent and runs again, alone when it matters."""
    crashes = item.crashes + 1
    if item.alone and crashes >= policy.max_crashes:
        return ToDead("max_crashes", Charge.CRASH, failure)
    return ToReady(policy.crash_delay(crashes, roll), Charge.CRASH)


def _after_limit(item: Item, failure: Failure, after: Millis | None, policy: Policy, roll: float) -> Millis:
    if after is not None:
        return policy.clamp(after)
    # Each delivery that was neither an attempt nor a takeover after a crash was given back.
    return policy.limited_delay(item.deliveries - item.attempt - item.crashes, roll, failure.rule)


def _bounded(delay: Millis) -> Millis:
    return max(0, min(delay, durations.MAX))


def _retry_or_dead(reason: str | None, delay: Millis | None, failure: Failure) -> Decision:
    if reason is None and delay is None:
        reason = "no_retry"
    if reason is not None:
        return ToDead(reason, Charge.ERROR, failure)
    return ToReady(delay or 0, Charge.ERROR)


def _fatal(item: Item, failure: Failure, policy: Policy, age: Millis) -> str | None:
    """Why this error is the last one, or None."""
    errors = item.errors + 1
    if failure.action == "dead":
        return "rule"
    if failure.action == "keep":
        # Never dead is a promise about this error, not about eternity: the ceiling ends what can never succeed.
        return "ceiling" if errors >= policy.ceiling(failure.rule) else None
    if item.last_chance:
        return "last_chance"
    if policy.max_attempts is not None and errors >= policy.max_attempts:
        return "max_attempts"
    if policy.max_age is not None and age >= policy.max_age:
        return "max_age"
    return None


def ending(outcome: o.Outcome) -> Ending:
    """The word the history uses for an outcome."""
    match outcome:
        case o.Done():
            return Ending.DONE
        case o.Fail() | o.Retry():
            return Ending.FAILED
        case o.Dead():
            return Ending.DEAD
        case o.Snooze():
            return Ending.SNOOZED
        case o.Limited():
            return Ending.LIMITED
        case o.Cancelled():
            return Ending.CANCELLED
        case o.Release():
            return Ending.RELEASED
        case o.LeaseExpired():
            return Ending.CRASHED
        case o.Expired():
            return Ending.EXPIRED
        case _:
            assert_never(outcome)
