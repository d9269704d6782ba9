"""How a delivery that ended is put on record: for the store as an Attempt, for subscribers as an event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from redrive import events as ev
from redrive.core import outcome as o
from redrive.core.backoff import immediate
from redrive.core.decide import Decision, ToCancelled, ToDead, ToDone, ToReady, decide, decide_letter, ending
from redrive.core.item import Attempt, Item, Millis, NewItem
from redrive.core.policy import Policy
from redrive.core.redact import redact_text
from redrive.core.states import State
from redrive.core.verbs import Answer, Settlement, Verdict
from redrive.errors import NotFound
from redrive.stores.base import Store
from redrive.stores.clock import Clock

if TYPE_CHECKING:  # a command that cancels an item needs no runner
    from redrive.engine.runner import Run
    from redrive.engine.store_retry import StoreRetry

CANCELLED = "cancelled"
ROUTE_ALARM: Millis = 60_000
INTO = "into route"
RECEIVED = Policy(immediate(), max_attempts=None, max_crashes=1_000_000_000)
"""Of what is received, not handled: given again at once after a crash, never leased alone, never dead by policy."""


def attempt_of(run: Run, worker: str, decision: Decision | None = None, *, release: str = "") -> Attempt:
    note = "" if run.choice is None else run.choice.note
    return _attempt(
        run.item, run.outcome, decision, worker=worker, ran=run.ran, note=note, release=release, output=run.output
    )


def settlement_of(
    item: Item,
    outcome: o.Outcome,
    *,
    worker: str,
    ran: Millis = 0,
    note: str = "",
    follow_ups: tuple[NewItem, ...] = (),
    release: str = "",
) -> Settlement:
    """For those who hold an item or a letter without a handler: receivers, and who works on letters in place.

    A first-try success of an item writes no attempt: its facts are on the item.
    """
    decision = decision_on(item, outcome)
    attempt = None
    if type(outcome) is not o.Done or item.deliveries > 1 or item.letter is not None:
        attempt = _attempt(item, outcome, decision, worker=worker, ran=ran, note=note, release=release)
    return Settlement(item.id, item.deliveries, decision, attempt, follow_ups, queue=item.queue)


def takeover_of(item: Item, outcome: o.Outcome, policy: Policy, *, note: str = "", roll: float = 0.0) -> Settlement:
    """For a delivery that was reclaimed: the attempt is that of the worker that lost it, under the number before."""
    attempt = _attempt(item, outcome, None, worker=item.worker or "", ran=0, note=note)
    decision = decide(item, outcome, policy, roll=roll, age=0)
    return Settlement(item.id, item.deliveries, decision, replace(attempt, delivery=item.deliveries - 1))


def decision_on(item: Item, outcome: o.Outcome) -> Decision:
    """A receiver says itself when an item is given up: no policy of the queue counts for it."""
    if item.letter is not None:
        return decide_letter(item, outcome)
    return decide(item, outcome, RECEIVED, roll=0.0, age=0)


def _attempt(
    item: Item,
    outcome: o.Outcome,
    decision: Decision | None,
    *,
    worker: str,
    ran: Millis,
    note: str,
    release: str = "",
    output: bytes = b"",
) -> Attempt:
    notes = (note, getattr(outcome, "note", ""), last_words(decision))
    return Attempt(
        delivery=item.deliveries,
        number=item.attempt,
        worker=worker,
        started_at=item.leased_at or 0,
        ran=ran,
        ending=ending(outcome),
        failure=getattr(outcome, "failure", None),
        note="; ".join(filter(None, notes)),
        release=release,
        output=output,
    )


def last_words(decision: Decision | None) -> str:
    """Where a route may be full, whoever is kept by it shows why it is still there."""
    if not isinstance(decision, ToDead) or not decision.route:
        return ""
    return f"{decision.reason}, {INTO} {decision.route}"


def settle_event(worker: str, run: Run, settlement: Settlement, answer: Answer) -> ev.Event:
    return end_event(worker, run.item.queue, settlement, answer, ran=run.ran)


def end_event(worker: str, queue: str, settlement: Settlement, answer: Answer, *, ran: Millis) -> ev.Event:
    if answer.verdict is Verdict.REFUSED:
        return ev.SettleRefused(worker, queue, settlement.id, settlement.delivery, answer.reason)
    decision, attempt = settlement.decision, settlement.attempt
    failure = None if attempt is None else attempt.failure
    state, reason, delay = _fate(decision, answer)
    return ev.Finished(
        worker=worker,
        queue=queue,
        id=settlement.id,
        delivery=settlement.delivery,
        ending=str(attempt.ending) if attempt is not None else "done",
        state=str(state),
        ran_ms=ran,
        reason=reason,
        error=failure.type if failure else "",
        text=redact_text(failure.text) if failure else "",
        cause=failure.cause if failure else "",
        retry_in_ms=delay,
        route=decision.route if isinstance(decision, ToDead) else "",
    )


def _fate(decision: Decision, answer: Answer) -> tuple[State, str, Millis | None]:
    """Where the item is now, why, and when it comes again; what the store said counts, not what was decided."""
    if answer.reason == CANCELLED or isinstance(decision, ToCancelled):
        return State.CANCELLED, CANCELLED, None
    if isinstance(decision, ToReady):
        return State.READY, "", decision.delay
    if isinstance(decision, ToDead):
        if answer.verdict is Verdict.KEPT:
            return State.READY, "route_full", decision.otherwise
        return State.DEAD, decision.reason, None
    return State.DONE, "", None


def unclear(answers: Sequence[Answer]) -> bool:
    return any(answer.verdict is Verdict.ALREADY for answer in answers)


async def clarified(
    store: Store, retry: StoreRetry, items: Sequence[Item], settlements: Sequence[Settlement], answers: Sequence[Answer]
) -> Sequence[Answer]:
    """A settlement that is repeated after a lost answer is `already` applied; the item says what became of it."""
    told = zip(items, settlements, answers, strict=True)
    return [await _clarified(store, retry, item, settlement, answer) for item, settlement, answer in told]


async def _clarified(store: Store, retry: StoreRetry, item: Item, settlement: Settlement, answer: Answer) -> Answer:
    decision = settlement.decision
    if answer.verdict is not Verdict.ALREADY or isinstance(decision, ToDone | ToCancelled):
        return answer
    try:
        now = (await retry(lambda: store.get(item.id))).item
    except NotFound:
        return answer
    if now.state is State.CANCELLED and now.deliveries == settlement.delivery:
        return replace(answer, reason=CANCELLED)
    # Only a replay brings back what is dead: without one, its route was full.
    lives = now.state is State.READY or now.deliveries > settlement.delivery
    if isinstance(decision, ToDead) and lives and now.replays == item.replays:
        return replace(answer, verdict=Verdict.KEPT)
    return answer


class Reporter:
    """Tells subscribers how deliveries ended. A full route is an alarm, and rings once a minute."""

    def __init__(self, worker: str, events: ev.Events, clock: Clock) -> None:
        self._worker = worker
        self._events = events
        self._clock = clock
        self._kept: Counter[str] = Counter()
        self._rang: dict[str, Millis] = {}

    def ended(self, worker: str, item: Item, settlement: Settlement, answer: Answer, *, ran: Millis = 0) -> None:
        """`worker` is the one that had the delivery."""
        event = end_event(worker, item.queue, settlement, answer, ran=ran)
        self._events.emit(event)
        if answer.verdict is Verdict.KEPT and isinstance(settlement.decision, ToDead):
            self._ring(settlement.decision.route, item)
        if isinstance(event, ev.Finished) and event.state == State.CANCELLED:
            note = settlement.attempt.note if settlement.attempt is not None else ""
            self._events.emit(ev.Cancelled(worker, item.queue, item.id, settlement.delivery, note))

    def reclaimed(self, items: Sequence[Item], settlements: Sequence[Settlement], answers: Sequence[Answer]) -> None:
        """Deliveries whose lease expired, which this worker ended for the lost one."""
        for item, settlement, answer in zip(items, settlements, answers, strict=True):
            if answer.verdict is not Verdict.REFUSED:
                lost_by = item.worker or ""
                self._events.emit(ev.Reclaimed(self._worker, item.queue, item.id, item.deliveries, lost_by))
                self.ended(lost_by, item, settlement, answer)

    def settled(self, items: Sequence[Item], settlements: Sequence[Settlement], answers: Sequence[Answer]) -> None:
        """For a receiver: report deliveries that it settled. A letter that stays one has not ended."""
        if not self._events:
            return
        for item, settlement, answer in zip(items, settlements, answers, strict=True):
            if item.letter is None or isinstance(settlement.decision, ToDone | ToCancelled):
                attempt = settlement.attempt
                worker, ran = (self._worker, 0) if attempt is None else (attempt.worker, attempt.ran)
                self.ended(worker, item, settlement, answer, ran=ran)

    def _ring(self, route: str, item: Item) -> None:
        self._kept[route] += 1
        now = self._clock.monotonic()
        last = self._rang.get(route)
        if last is None or now - last >= ROUTE_ALARM:
            self._rang[route] = now
            self._events.emit(ev.RouteFull(self._worker, route, item.queue, item.id, self._kept.pop(route)))
