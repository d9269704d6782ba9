"""How a delivery that ended is put on record: for the store as an Attempt, for subscribers as an event."""

from __future__ import annotations

from redrive import events as ev
from redrive.core.decide import ToDead, ToReady, ending
from redrive.core.item import Attempt, Millis
from redrive.core.states import State
from redrive.core.verbs import Answer, Settlement, Verdict
from redrive.engine.runner import Run


def attempt_of(run: Run, worker: str) -> Attempt:
    item, outcome = run.item, run.outcome
    return Attempt(
        delivery=item.deliveries,
        number=item.attempt,
        worker=worker,
        started_at=item.leased_at or 0,
        ran=run.ran,
        ending=ending(outcome),
        failure=getattr(outcome, "failure", None),
        note=getattr(outcome, "note", ""),
    )


def settle_event(worker: str, run: Run, settlement: Settlement, answer: Answer) -> ev.Event:
    item = run.item
    if answer.verdict is Verdict.REFUSED:
        return ev.SettleRefused(worker, item.queue, item.id, item.deliveries, answer.reason)
    return finished_event(worker, item.queue, settlement, ran=run.ran)


def finished_event(worker: str, queue: str, settlement: Settlement, *, ran: Millis) -> ev.Finished:
    decision, attempt = settlement.decision, settlement.attempt
    failure = None if attempt is None else attempt.failure
    state = State.DONE
    if isinstance(decision, ToReady):
        state = State.READY
    elif isinstance(decision, ToDead):
        state = State.DEAD
    return ev.Finished(
        worker=worker,
        queue=queue,
        id=settlement.id,
        delivery=settlement.delivery,
        ending=str(attempt.ending) if attempt is not None else "done",
        state=str(state),
        ran_ms=ran,
        reason=decision.reason if isinstance(decision, ToDead) else "",
        error=failure.type if failure else "",
        text=failure.text if failure else "",
        cause=failure.cause if failure else "",
        retry_in_ms=decision.delay if isinstance(decision, ToReady) else None,
    )
