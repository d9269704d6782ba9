"""R14: the dead-letter move is atomic and complete. Never in both places, never in neither, never without evidence."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from redrive import Dead, Item, Policy, Redrive, constant, never
from redrive.core.item import Ending, History
from redrive.core.states import Disposition, State
from redrive.core.verbs import LeaseRequest, Want
from redrive.events import Finished, StoreFailed, StoreRecovered
from redrive.testing.faults import Fault, SimulatedCrash
from tests.support.lab import Lab, Seen
from tests.support.rig.survey import survey

PAYLOAD = b'{"amount": 12345678901234567, "note": "\xc3\xa9 \\u0000"}'


def failing(app: Redrive, error: Callable[[], Exception], policy: Policy) -> list[int]:
    times: list[int] = []

    @app.handler("payments", policy=policy, lease="10s")
    async def charge(item: Item) -> None:
        times.append(item.leased_at or 0)
        raise error()

    return times


def check_complete(found: History, reason: str, endings: list[Ending]) -> None:
    """Everything that an operator needs to understand it and send it again."""
    item, letter = found.item, found.item.letter
    assert item.state is State.DEAD
    assert letter is not None
    assert (letter.reason, letter.disposition) == (reason, Disposition.OPEN)
    assert item.payload == PAYLOAD
    assert item.queue == "payments"
    assert letter.died_at == item.ended_at
    assert letter.failure.type
    assert letter.failure.text
    assert letter.failure.category
    assert letter.failure.rule
    assert len(letter.failure.cause) >= 4
    assert [attempt.ending for attempt in found.attempts] == endings
    for attempt in found.attempts:
        assert attempt.worker
        assert attempt.started_at >= item.enqueued_at
        assert attempt.failure is not None
        assert attempt.failure.type
        assert attempt.failure.cause
    assert [attempt.number for attempt in found.attempts] == list(range(1, len(endings) + 1))
    assert found.attempts[-1].failure == letter.failure
    assert [attempt.started_at for attempt in found.attempts] == sorted(
        attempt.started_at for attempt in found.attempts
    )


async def test_r14_a_letter_has_every_attempt_with_its_time_error_and_worker(lab: Lab) -> None:
    app = await lab.app()
    errors = iter([ConnectionError("refused"), TimeoutError("slow"), ValueError("no such account")])
    times = failing(app, lambda: next(errors), Policy(backoff=constant("30s"), max_attempts=3))
    item_id = await app.enqueue("payments", PAYLOAD)
    await lab.drain(app)
    found = await lab.history(item_id)
    check_complete(found, "max_attempts", [Ending.FAILED] * 3)
    kinds = [attempt.failure.type for attempt in found.attempts if attempt.failure is not None]
    assert kinds == ["ConnectionError", "TimeoutError", "ValueError"]
    assert [attempt.started_at for attempt in found.attempts] == times, "the first one is the time of the first failure"


@pytest.mark.parametrize("how", ["handler", "no_retry", "max_crashes", "max_age"])
async def test_r14_letters_of_every_reason_are_complete(lab: Lab, how: str) -> None:
    app = await lab.app()
    policies = {"no_retry": Policy(backoff=never()), "max_age": Policy(backoff=constant("30s"), max_age="20s")}
    policy = policies.get(how, Policy(backoff=constant("1s"), max_crashes=1))
    failing(app, lambda: Dead("useless") if how == "handler" else ValueError("no"), policy)
    item_id = await app.enqueue("payments", PAYLOAD)
    if how == "max_crashes":
        want = Want("payments", 1, 1_000, max_crashes=1)
        await lab.store.lease(LeaseRequest("ghost", (want,), "nonce"))
    await lab.drain(app)
    last = {"handler": Ending.DEAD, "max_crashes": Ending.CRASHED, "max_age": Ending.EXPIRED}.get(how, Ending.FAILED)
    endings = [Ending.FAILED, last] if how == "max_age" else [last]
    check_complete(await lab.history(item_id), how, endings)


async def test_r14_the_move_is_in_one_write_with_counters_and_causes(lab: Lab) -> None:
    app = await lab.app()
    failing(app, lambda: ValueError("no"), Policy(backoff=never()))
    await app.enqueue_many("payments", [PAYLOAD] * 7)
    await lab.drain(app)
    (row,) = (await app.tally()).queues
    (cause,) = await app.causes()
    assert (row.open, row.ready, row.leased, row.done) == (7, 0, 0, 0)
    assert (cause.queue, cause.count, cause.error) == ("payments", 7, "ValueError")
    assert (await survey(lab.store)).miscounts == {}


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.UNKNOWN_UNDONE], ids=["full or read-only", "nobody knows"])
async def test_r14_a_letter_that_cannot_be_stored_keeps_the_item_live_and_alarms(lab: Lab, fault: Fault) -> None:
    app, faulty = await lab.faulty()
    times = failing(app, lambda: ValueError("no"), Policy(backoff=never()))
    seen = Seen(app)
    item_id = await app.enqueue("payments", PAYLOAD)
    faulty.fail("settle", fault)
    async with lab.working(app) as worker:
        await lab.pass_time("2m")
        item = await lab.item(item_id)
        assert (item.state, item.letter) == (State.LEASED, None)
        assert [event.part for event in seen.of(StoreFailed)] == ["pump"]
        assert seen.of(Finished) == []
        assert not worker.done()
        faulty.heal()
        await lab.until(lambda: bool(seen.of(Finished)))
    assert len(seen.of(StoreRecovered)) == 1
    assert len(times) == 1, "the work was not done again for the sake of its letter"
    check_complete(await lab.history(item_id), "no_retry", [Ending.FAILED])


@pytest.mark.parametrize("when", ["before", "after"])
async def test_r14_a_worker_killed_in_the_move_leaves_a_live_item_or_a_whole_letter(lab: Lab, when: str) -> None:
    """Every statement of the move is a crash point of R3; here the verb as a whole, on every store."""
    (app, dying), heir = await lab.faulty(), await lab.app()
    for each in (app, heir):
        failing(each, lambda: ValueError("no"), Policy(backoff=never(), max_crashes=5))
    item_id = await app.enqueue("payments", PAYLOAD)
    middle = dying.hold("settle", "before" if when == "before" else "after")
    worker = asyncio.create_task(app.run())
    await lab.until(middle.reached.is_set)
    dying.crashed = True
    middle.release()
    with contextlib.suppress(SimulatedCrash):
        await lab.drive(worker)
    found = await lab.history(item_id)
    if when == "before":
        assert (found.item.state, found.item.letter, found.attempts) == (State.LEASED, None, ())
    else:
        check_complete(found, "no_retry", [Ending.FAILED])
    assert (await survey(lab.store)).miscounts == {}
    await lab.drain(heir)
    endings = [Ending.FAILED] if when == "after" else [Ending.CRASHED, Ending.FAILED]
    check_complete(await lab.history(item_id), "no_retry", endings)
    assert (await survey(lab.store)).miscounts == {}


async def test_r14_a_letter_that_dies_twice_keeps_both_histories(lab: Lab) -> None:
    app = await lab.app()
    failing(app, lambda: ValueError("no"), Policy(backoff=never()))
    item_id = await app.enqueue("payments", PAYLOAD)
    await lab.drain(app)
    await app.letters.replay(item_id, reason="try again")
    assert (await lab.item(item_id)).letter is None
    await lab.drain(app)
    found = await lab.history(item_id)
    assert [attempt.ending for attempt in found.attempts] == [Ending.FAILED] * 2
    assert [deed.change for deed in found.deeds] == ["replay"]
    assert found.item.letter is not None
    assert (found.item.replays, found.item.errors, found.item.payload) == (1, 1, PAYLOAD)
