"""The checker's view of runs: was each one needed, alone, and put on record?"""

from __future__ import annotations

from itertools import pairwise

from redrive.core.item import Attempt, Ending, History
from redrive.core.states import State
from tests.support.rig import records as r
from tests.support.rig.facts import ENDED, Facts

BY_HANDLER = {
    Ending.DONE: {"done"},
    Ending.FAILED: {"failed", "cancelled"},
    Ending.DEAD: {"dead", "failed"},
    Ending.SNOOZED: {"snoozed"},
}
"""What a handler must have said for its attempt to be on record like this. A timeout cancels and is a failure."""

CLOCKS = 2
"""Milliseconds by which two clocks of one machine may differ when each is read to the millisecond."""


def unexplained(facts: Facts, item_id: str, replays: int) -> str | None:
    """A second run must have a reason that was logged outside the store, or an operator's replay."""
    for before, after in pairwise(facts.starts.get(item_id, ())):
        if before.delivery == after.delivery:
            return f"delivery {after.delivery} ran twice"
        ended = facts.settled[item_id].get(before.delivery)
        if ended is not None and ended.state in ENDED:
            if replays:
                replays -= 1
                continue
            return f"delivery {after.delivery} ran although delivery {before.delivery} was accepted as {ended.state}"
        if not _explains(facts, before, after):
            return f"delivery {after.delivery} ran, and nothing happened to delivery {before.delivery}"
    return None


def _explains(facts: Facts, before: r.Start, after: r.Start) -> bool:
    key = before.id, before.delivery
    end = facts.ends.get(key)
    if end is not None and end.how in ("failed", "snoozed"):
        return True  # a retry, not a duplicate
    if key in facts.given_up:
        return True
    settled = facts.settled[before.id].get(before.delivery)
    if settled is not None and settled.state == "ready":
        return True  # released by a worker that stops, or timed out
    if any(facts.pids.get(one.lost_by) == before.pid for one in facts.reclaimed.get(before.id, ())):
        return True
    blows = [*facts.struck.get(before.pid, ()), *facts.troubles.get(before.pid, ())]
    return any(before.ns <= blow.ns <= after.ns for blow in blows)


def overlap(facts: Facts, item_id: str) -> str | None:
    """Two runs at the same time, and the store took the word of both."""
    accepted = []
    for start in facts.starts.get(item_id, ()):
        settled = facts.settled[item_id].get(start.delivery)
        end = facts.ends.get((item_id, start.delivery))
        if settled is not None and end is not None and settled.ending in ("done", "failed", "dead", "snoozed"):
            accepted.append((start, end))
    for (first, ended), (second, _) in pairwise(accepted):
        if second.ns < ended.ns and ended.how != "cancelled":
            return f"deliveries {first.delivery} and {second.delivery} ran at once and both were accepted"
    return None


def early(facts: Facts, item_id: str) -> str | None:
    """A run before it was due: at its delay after the enqueue, and at that of its retry after the run before."""
    starts = [start for start in facts.starts.get(item_id, ()) if start.at]
    for start in starts[:1]:
        missing = facts.not_before.get(item_id, 0) - start.at
        if missing > CLOCKS:
            return f"delivery {start.delivery} ran {missing} ms before it was due"
    for before, after in pairwise(starts):
        settled = facts.settled[item_id].get(before.delivery)
        end = facts.ends.get((item_id, before.delivery))
        if settled is None or end is None or not settled.retry_in:
            continue
        missing = end.at + settled.retry_in - after.at
        if missing > CLOCKS:
            return f"delivery {after.delivery} ran {missing} ms before its retry was due"
    return None


def premature(facts: Facts, item_id: str) -> str | None:
    """A lease that was taken over although it had time left, and nobody had struck who held it."""
    for rescue in facts.reclaimed.get(item_id, ()):
        if facts.was_struck(rescue.lost_by):
            continue
        for start in facts.starts.get(item_id, ()):
            left = start.until - rescue.at
            if start.delivery == rescue.delivery - 1 and rescue.at and left > CLOCKS:
                return f"delivery {start.delivery} was taken over {left} ms before its lease was over"
    return None


def wrong_attempts(facts: Facts, final: History) -> str | None:
    if final.omitted or final.item.replays:
        return None
    return _counters(facts, final) or _fabricated(facts, final) or _forgotten(facts, final)


def _counters(facts: Facts, final: History) -> str | None:
    item = final.item
    endings = [attempt.ending for attempt in final.attempts]
    errors = sum(ending in (Ending.FAILED, Ending.DEAD) for ending in endings)
    crashes = endings.count(Ending.CRASHED)
    # A letter that was done where it lies, and never ran, had no attempt.
    done = item.state is State.DONE and item.id in facts.starts
    others = endings.count(Ending.CANCELLED) + done + (item.state is State.LEASED)
    attempts = errors + crashes + others
    kept, counted = (item.errors, item.crashes, item.attempt), (errors, crashes, attempts)
    if kept != counted:
        return f"errors, crashes and attempts are {kept}, the records say {counted}"
    return None


def _fabricated(facts: Facts, final: History) -> str | None:
    """Whatever is on record must have happened."""
    item_id = final.item.id
    for attempt in final.attempts:
        said = BY_HANDLER.get(attempt.ending)
        end = _end_of(facts, item_id, attempt)
        if said is not None and (end is None or end.how not in said):
            ran = "never ended" if end is None else end.how
            return f"delivery {attempt.delivery} is on record as {attempt.ending}, its handler {ran}"
        if attempt.ending is Ending.CRASHED and not _is_known(facts, item_id, attempt):
            return f"a crash of {attempt.worker} is on record, which was neither killed nor stopped nor slow"
    return None


def _is_known(facts: Facts, item_id: str, crash: Attempt) -> bool:
    if facts.was_struck(crash.worker) or facts.lapsed(item_id, crash.worker):
        return True
    # Who found it tells of it once the store has answered: not if it was killed before, or if the answer was lost and
    # the item had gone on when it asked again.
    finder = crash.note.partition(";")[0].removeprefix("found by ")
    troubles = facts.troubles.get(facts.pids.get(finder, -1), ())
    return facts.was_struck(finder) or any(trouble.part == "reaper" for trouble in troubles)


def _forgotten(facts: Facts, final: History) -> str | None:
    """Whatever ran must be on record."""
    item = final.item
    for start in facts.starts.get(item.id, ()):
        if any(is_of(facts, attempt, start) for attempt in final.attempts):
            continue
        if item.state is State.DONE and item.deliveries == 1:
            continue  # a first-try success: its facts are on the item
        return f"delivery {start.delivery} ran and is not on record"
    return None


def _end_of(facts: Facts, item_id: str, attempt: Attempt) -> r.End | None:
    runs = [start.delivery for start in facts.starts.get(item_id, ()) if is_of(facts, attempt, start)]
    return facts.ends.get((item_id, runs[-1])) if runs else None


def is_of(facts: Facts, attempt: Attempt, start: r.Start) -> bool:
    if attempt.delivery == start.delivery:
        return True
    # A crash, or the word of whoever took it away, may be on record under the number of the reclaim that found it. And
    # a worker that took it back under a new number may have been struck before it could tell.
    same = attempt.number == start.attempt and attempt.delivery > start.delivery
    if not same or facts.pids.get(attempt.worker) != start.pid:
        return False
    return attempt.ending in (Ending.CRASHED, Ending.CANCELLED) or facts.was_struck(attempt.worker)
