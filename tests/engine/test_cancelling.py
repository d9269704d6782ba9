"""Cancelling what runs: its worker hears of it with the next prolonging and tells the handler; or it is taken away."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from redrive import Dead, Item, Policy, Redrive, Snooze, cancel_requested, constant, never
from redrive.core.acts import Act
from redrive.core.item import Ending
from redrive.core.states import State
from redrive.engine.cancelling import cancel_by_force
from redrive.errors import ItemFailed, StoreUnavailable
from redrive.events import CancelAsked, Cancelled, Finished, LeaseLost, SettleRefused
from redrive.testing import Fault
from tests.support.lab import Lab, Seen
from tests.support.rig.patience import breathe

HOUR = 3_600_000


def hanging(app: Redrive, lab: Lab, *, lease: str = "30s", policy: Policy | None = None) -> list[Item]:
    runs: list[Item] = []

    @app.handler("q", lease=lease, policy=policy)
    async def hang(item: Item) -> None:
        runs.append(item)
        await lab.clock.sleep(HOUR)

    return runs


@pytest.mark.parametrize(("lease", "within"), [("30s", 5_000), ("9s", 3_000), ("1d", 5_000)])
async def test_a_running_handler_is_cancelled_soon(lab: Lab, lease: str, within: int) -> None:
    app = await lab.app()
    runs = hanging(app, lab, lease=lease)
    seen = Seen(app)
    item_id = str(await app.enqueue("q"))
    async with lab.working(app):
        await lab.until(lambda: bool(runs))
        await lab.pass_time("7s")
        amended = await app.cancel(item_id, reason="wrong list")
        assert amended.changed == (item_id,)
        asked_at = lab.clock.monotonic()
        assert (await lab.item(item_id)).state is State.LEASED
        await lab.until(lambda: bool(seen.of(Cancelled)))
        assert lab.clock.monotonic() - asked_at <= within
    found = await lab.history(item_id)
    assert (found.item.state, found.item.cancel) == (State.CANCELLED, "lab: wrong list")
    (attempt,) = found.attempts
    assert (attempt.ending, attempt.note, attempt.failure) == (Ending.CANCELLED, "lab: wrong list", None)
    assert [event.reason for event in seen.of(CancelAsked)] == ["lab: wrong list"]
    assert [(event.id, event.reason) for event in seen.of(Cancelled)] == [(item_id, "lab: wrong list")]
    assert [(event.ending, event.state) for event in seen.of(Finished)] == [("cancelled", "cancelled")]
    with pytest.raises(ItemFailed, match="cancelled"):
        await app.wait(item_id)


async def test_only_the_one_that_was_named_is_cancelled(lab: Lab) -> None:
    app = await lab.app()
    runs = hanging(app, lab)
    ids = [str(each) for each in await app.enqueue_many("q", [None] * 5)]
    async with lab.working(app):
        await lab.until(lambda: len(runs) == 5)
        await app.cancel(ids[2], reason="this one")
        await lab.pass_time("1m")
        states = [(await lab.item(item_id)).state for item_id in ids]
        assert states == [State.LEASED, State.LEASED, State.CANCELLED, State.LEASED, State.LEASED]


async def test_a_handler_that_finishes_anyway_is_done(lab: Lab) -> None:
    app = await lab.app()
    told: list[str] = []

    @app.handler("q")
    async def stubborn(item: Item) -> str:
        try:
            await lab.clock.sleep(HOUR)
        except asyncio.CancelledError:
            told.append(cancel_requested())
        return "all the same"

    item_id = await app.enqueue("q")
    async with lab.working(app):
        await lab.pass_time("1s")
        await app.cancel(item_id, reason="too late")
        await lab.until(lambda: bool(told))
        await lab.quiet()
    assert told == ["lab: too late"]
    assert await app.wait(item_id) == "all the same"
    assert (await lab.item(item_id)).cancel == ""


async def _raises(lab: Lab, make: Callable[[], BaseException], policy: Policy) -> str:
    app = await lab.app()

    @app.handler("q", policy=policy)
    async def untidy() -> None:
        try:
            await lab.clock.sleep(HOUR)
        finally:
            raise make()

    seen = Seen(app)
    item_id = str(await app.enqueue("q"))
    async with lab.working(app):
        await lab.pass_time("1s")
        await app.cancel(item_id, reason="stop")
        await lab.until(lambda: bool(seen.of(Finished)))
    return item_id


@pytest.mark.parametrize("policy", [Policy(never()), Policy(constant("1s"))], ids=["never", "constant"])
async def test_whatever_it_raises_then_it_is_cancelled_and_the_error_kept(lab: Lab, policy: Policy) -> None:
    item_id = await _raises(lab, lambda: OSError("the file is half written"), policy)
    found = await lab.history(item_id)
    assert (found.item.state, found.item.errors) == (State.CANCELLED, 0)
    failure = found.attempts[0].failure
    assert failure is not None
    assert failure.text.startswith("the file is half written")


async def test_a_snooze_then_is_a_cancel_and_a_death_a_death(lab: Lab) -> None:
    snoozed = await _raises(lab, lambda: Snooze("1h"), Policy())
    assert (await lab.item(snoozed)).state is State.CANCELLED
    dead = await _raises(lab, lambda: Dead("the customer is gone"), Policy())
    item = await lab.item(dead)
    assert item.letter is not None
    assert (item.letter.reason, item.cancel) == ("handler", "")


async def test_a_thread_is_told_and_stops_itself(lab: Lab) -> None:
    app = await lab.app()
    running, stop = threading.Event(), threading.Event()
    told: list[str] = []

    @app.handler("q")
    def work() -> None:
        running.set()
        assert stop.wait(20)
        told.append(cancel_requested())
        raise InterruptedError("stopped at row 5")

    seen = Seen(app)
    item_id = str(await app.enqueue("q"))
    async with lab.working(app):
        while not running.is_set():
            await breathe()
        await app.cancel(item_id, reason="wrong table")
        await lab.until(lambda: bool(seen.of(CancelAsked)))
        assert not seen.of(Finished), "a thread cannot be stopped from outside"
        stop.set()
        await lab.until(lambda: bool(seen.of(Finished)))
    assert told == ["lab: wrong table"]
    assert (await lab.item(item_id)).state is State.CANCELLED


async def test_nobody_asked(memory_lab: Lab) -> None:
    app = await memory_lab.app()
    told: list[str] = []

    @app.handler("q")
    async def ask() -> None:
        told.append(cancel_requested())

    await app.enqueue("q")
    await memory_lab.drain(app)
    assert [*told, cancel_requested()] == ["", ""]


async def test_a_handler_that_ignores_it_still_has_its_timeout(memory_lab: Lab) -> None:
    lab, times = memory_lab, 0
    app = await lab.app()

    @app.handler("q", timeout="1m", policy=Policy(never()))
    async def deaf() -> None:
        nonlocal times
        while times < 2:
            try:
                await lab.clock.sleep(HOUR)
            except asyncio.CancelledError:
                times += 1
                if times == 2:
                    raise

    seen = Seen(app)
    item_id = str(await app.enqueue("q"))
    async with lab.working(app):
        await lab.pass_time("1s")
        await app.cancel(item_id, reason="stop")
        await lab.until(lambda: bool(seen.of(Finished)), limit="2m")
    assert times == 2
    assert (await lab.item(item_id)).state is State.CANCELLED


async def test_a_worker_that_stops_meanwhile_does_not_bring_it_back(lab: Lab) -> None:
    """Released, it would be ready again; asked to cancel, it is cancelled instead."""
    app = await lab.app()
    runs = hanging(app, lab)
    seen = Seen(app)
    item_id = str(await app.enqueue("q"))
    async with lab.working(app):
        await lab.until(lambda: bool(runs))
        await app.cancel(item_id, reason="stop")
    item = await lab.item(item_id)
    assert (item.state, item.cancel) == (State.CANCELLED, "lab: stop")
    assert [event.state for event in seen.of(Finished)] == ["cancelled"]
    assert len(seen.of(Cancelled)) == 1


async def test_a_worker_that_crashed_meanwhile_does_not_bring_it_back(lab: Lab) -> None:
    app = await lab.app()
    app.handler("q", lease="10s")(nothing)
    item_id = str(await app.enqueue("q"))
    assert await lab.ghost("q", ttl="10s")
    await app.cancel(item_id, reason="stop")
    await lab.drain(app)
    found = await lab.history(item_id)
    assert found.item.state is State.CANCELLED
    assert [attempt.ending for attempt in found.attempts] == [Ending.CRASHED]


async def test_by_force_it_ends_now_and_a_late_result_is_refused(lab: Lab) -> None:
    app = await lab.app()
    hold, ended = asyncio.Event(), []

    @app.handler("q", lease="1d")
    async def deaf() -> str:
        try:
            await hold.wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return "late"

    seen = Seen(app)
    item_id = str(await app.enqueue("q"))
    async with lab.working(app):
        await lab.quiet()
        amended = await app.cancel(item_id, reason="stuck", force=True)
        assert amended.changed == (item_id,)
        found = await lab.history(item_id)
        assert (found.item.state, found.item.deliveries) == (State.CANCELLED, 2)
        (attempt,) = found.attempts
        assert (attempt.ending, attempt.delivery, attempt.note) == (Ending.CANCELLED, 1, "taken away by lab: stuck")
        hold.set()
        await lab.until(lambda: bool(seen.of(SettleRefused)))
        assert (await lab.item(item_id)).result is None
        assert not ended


async def test_by_force_the_handler_is_stopped_when_its_worker_notices(lab: Lab) -> None:
    app = await lab.app()
    runs = hanging(app, lab)
    seen = Seen(app)
    item_id = str(await app.enqueue("q"))
    async with lab.working(app):
        await lab.until(lambda: bool(runs))
        await app.cancel(item_id, reason="stuck", force=True)
        await lab.until(lambda: bool(seen.of(LeaseLost)), limit="10s")
    assert (await lab.item(item_id)).state is State.CANCELLED


async def test_by_force_what_waits_is_cancelled_as_ever(lab: Lab) -> None:
    app = await lab.app()
    app.handler("q")(nothing)
    waiting, done = str(await app.enqueue("q", delay="1h")), str(await app.enqueue("q"))
    async with lab.working(app):
        await lab.pass_time("1s")
    act = Act("ops", "not needed", "request-1")
    assert (await cancel_by_force(lab.store, waiting, act)).changed == (waiting,)
    assert [each.id for each in (await cancel_by_force(lab.store, done, act)).skipped] == [done]
    assert [each.id for each in (await cancel_by_force(lab.store, "nobody", act)).skipped] == ["nobody"]
    assert (await lab.item(waiting)).state is State.CANCELLED


async def test_by_force_a_repeat_goes_on_where_the_first_was_lost(lab: Lab) -> None:
    app, faulty = await lab.faulty()
    app.queue("q")
    item_id = str(await app.enqueue("q"))
    assert await lab.ghost("q", ttl="1h")
    act = Act("ops", "stuck", "request-1")
    faulty.next("settle", Fault.UNAVAILABLE)
    with pytest.raises(StoreUnavailable):
        await cancel_by_force(faulty, item_id, act)
    assert (await lab.item(item_id)).state is State.LEASED
    assert (await cancel_by_force(faulty, item_id, act)).already == (item_id,)
    assert (await lab.item(item_id)).state is State.CANCELLED


async def nothing() -> None:
    pass
