from __future__ import annotations

import asyncio
import threading
import traceback

import pytest

from redrive import Dead, Policy, Redrive, Retry, Snooze, constant, immediate, never
from redrive.app.internals import store_of
from redrive.core.verbs import LeaseRequest, Want
from redrive.errors import ItemFailed
from redrive.events import Event, LeaseLost
from redrive.testing import (
    Drained,
    FakeClock,
    FaultyStore,
    assert_dead,
    assert_done,
    assert_enqueued,
    drain,
)
from tests.support.cli import PATIENCE
from tests.testing.conftest import HOUR, Shop, boom


class Script:
    """Does one thing after the other, and the last one for ever."""

    def __init__(self, *answers: object) -> None:
        self._answers = list(answers)

    def __call__(self) -> object:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer


# -- what it does ------------------------------------------------------------------------------------------------------


async def test_it_works_until_nothing_is_left_and_says_what_happened(shop: Shop) -> None:
    shop.handle("good", lambda: "well")
    shop.handle("bad", boom, Policy(constant("1m"), max_attempts=3))
    shop.handle("later", Script(Snooze("1h"), None))
    good = await shop.app.enqueue_many("good", [{"n": 1}, {"n": 2}])
    bad = await shop.app.enqueue("bad")
    later = await shop.app.enqueue("later")

    drained = await drain(shop.app)

    assert sorted(drained.done) == sorted([*good, later])
    assert drained.retried == (bad, bad)
    assert drained.dead == (bad,)
    assert drained.snoozed == (later,)
    assert await drain(shop.app) == Drained()


async def test_days_of_retries_pass_at_their_exact_times(shop: Shop) -> None:
    """Were time to pass while a handler or a write is under way, attempts would take time and begin late."""
    shop.handle("bad", boom, Policy(constant("1h"), max_attempts=30))
    item_id = await shop.app.enqueue("bad", delay="2d")
    started = shop.clock.now()

    assert (await drain(shop.app)).dead == (item_id,)

    attempts = (await shop.app.history(item_id)).attempts
    assert [attempt.started_at - started for attempt in attempts] == [(48 + n) * HOUR for n in range(30)]
    assert {attempt.ran for attempt in attempts} == {0}
    assert shop.clock.now() - started == 77 * HOUR


async def test_the_time_between_retries_costs_nothing(faulty: tuple[Redrive, FaultyStore], clock: FakeClock) -> None:
    """A worker has chores every few seconds; in 20 weeks that would be millions of calls."""
    app, store = faulty
    app.handler("bad", policy=Policy(constant("1w"), max_attempts=20))(boom)
    await app.enqueue("bad")
    assert len((await drain(app)).retried) == 19
    assert clock.monotonic() == 19 * 7 * 24 * HOUR
    assert len(store.calls) < 20 * 20


async def test_time_stands_still_while_a_handler_works(shop: Shop) -> None:
    gate, entered = threading.Event(), threading.Event()

    async def in_the_loop() -> None:
        entered.set()
        await asyncio.to_thread(gate.wait, PATIENCE)

    def in_a_thread() -> None:
        entered.set()
        gate.wait(PATIENCE)

    shop.app.handler("slow")(in_the_loop if shop.colour == "async" else in_a_thread)
    shop.handle("other", lambda: None)
    slow = await shop.app.enqueue("slow")
    await shop.app.enqueue("other", delay="1h")
    draining = asyncio.create_task(drain(shop.app))
    await asyncio.to_thread(entered.wait, PATIENCE)
    for _ in range(200):
        await asyncio.to_thread(lambda: None)  # turns of the loop, and real time for whoever would move the clock
    assert shop.clock.monotonic() == 0
    gate.set()
    assert (await draining).done[0] == slow
    assert shop.clock.monotonic() == HOUR
    assert (await shop.app.history(slow)).item.attempt == 1


@pytest.mark.slow
async def test_a_handler_may_sleep_on_the_clock_and_keeps_its_lease(app: Redrive, clock: FakeClock) -> None:
    lost: list[Event] = []
    app.events.subscribe(lambda event: lost.append(event) if isinstance(event, LeaseLost) else None)

    @app.handler("naps", lease="30s")
    async def nap() -> int:
        begun = clock.monotonic()
        await clock.sleep(120_000)
        return clock.monotonic() - begun

    await app.enqueue("naps")
    drained = await drain(app)
    (item,) = await assert_done(app, "naps", result=120_000)
    assert (drained.done, drained.retried, lost) == ((item.id,), (), [])
    assert item.deliveries == 1


async def test_a_handler_that_sleeps_too_long_meets_its_timeout(app: Redrive, clock: FakeClock) -> None:
    @app.handler("naps", timeout="10s", policy=Policy(never()))
    async def nap() -> None:
        await clock.sleep(HOUR)

    await app.enqueue("naps")
    await drain(app)
    await assert_dead(app, "naps", error=TimeoutError)
    assert 10_000 <= clock.monotonic() < 12_000


async def test_handlers_may_wait_for_each_other(app: Redrive) -> None:
    @app.handler("parts")
    async def part(n: int) -> int:
        return n * n

    @app.handler("wholes")
    async def whole() -> int:
        ids = await app.enqueue_many("parts", [{"n": 2}, {"n": 3}], delay="1m")
        return sum([await app.wait(each) for each in ids])

    await app.enqueue("wholes")
    await drain(app)
    await assert_done(app, "wholes", result=13)


async def test_a_lease_of_a_worker_that_is_gone_is_waited_for(app: Redrive, clock: FakeClock) -> None:
    @app.handler("emails", policy=Policy(immediate()))
    async def send() -> None: ...

    item_id = await app.enqueue("emails")
    store = store_of(app)  # only a crash leaves such a lease
    await store.lease(LeaseRequest("ghost", (Want("emails", 1, 30_000, 3),), "nonce"))

    assert await drain(app) == Drained(done=(item_id,), retried=(item_id,))
    assert clock.monotonic() >= 30_000


async def test_what_is_paused_or_named_out_is_left(shop: Shop) -> None:
    shop.handle("a", lambda: None)
    shop.handle("b", lambda: None)
    shop.handle("c", lambda: None)
    first, *_ = [await shop.app.enqueue(queue) for queue in ("a", "b", "c")]
    await shop.app.pause("b", reason="a test")
    assert (await drain(shop.app, ["a", "b"])).done == (first,)
    assert {item.queue for item in await assert_enqueued(shop.app, count=2)} == {"b", "c"}


# -- within ------------------------------------------------------------------------------------------------------------


async def test_within_zero_is_what_is_due_now(shop: Shop) -> None:
    shop.handle("bad", boom)
    shop.handle("good", lambda: None)
    bad, good = await shop.app.enqueue("bad"), await shop.app.enqueue("good")
    await shop.app.enqueue("good", delay="1ms")
    assert await drain(shop.app, within=0) == Drained(done=(good,), retried=(bad,))
    assert shop.clock.monotonic() == 0
    await assert_enqueued(shop.app, count=2)


async def test_within_a_time_everything_of_that_time_is_done_and_the_clock_shows_it(shop: Shop) -> None:
    shop.handle("bad", boom, Policy(constant("4m")))
    item_id = await shop.app.enqueue("bad")
    assert await drain(shop.app, within="10m") == Drained(retried=(item_id,) * 3)
    assert shop.clock.monotonic() == 600_000
    assert await drain(shop.app, within="2m") == Drained(retried=(item_id,))
    assert shop.clock.monotonic() == 720_000


async def test_autoadvance_does_not_move_a_clock_that_is_driven() -> None:
    clock = FakeClock(autoadvance=True)
    async with Redrive("memory:", clock=clock, log=False) as app:
        app.handler("bad", policy=Policy(constant("1h")))(boom)
        await app.enqueue("bad")
        await drain(app, within="90m")
        assert clock.monotonic() == 90 * 60_000
        await clock.sleep(1000)
        assert clock.monotonic() == 90 * 60_000 + 1000


# -- fail_fast ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [KeyError, SystemExit, Retry, Dead])
async def test_fail_fast_raises_what_the_handler_raised(shop: Shop, kind: type[BaseException]) -> None:
    error = kind("no such user")
    shop.handle("bad", Script(error))
    item_id = await shop.app.enqueue("bad")
    with pytest.raises(kind) as caught:
        await drain(shop.app, fail_fast=True)
    assert caught.value is error
    assert error.__notes__ == [f"raised by the handler of queue 'bad' for item {item_id}"]
    assert "in __call__" in "".join(traceback.format_exception(error)), "the handler's own frames are there"
    assert (await shop.app.history(item_id)).attempts, "and the attempt is recorded all the same"


async def test_fail_fast_raises_signals_that_are_returned_but_no_snooze(shop: Shop) -> None:
    shop.handle("bad", Script(Snooze("1h"), Dead("no such user")))
    await shop.app.enqueue("bad")
    with pytest.raises(Dead, match="no such user"):
        await drain(shop.app, fail_fast=True)


async def test_fail_fast_where_the_handler_was_never_called(shop: Shop) -> None:
    shop.handle("bad", lambda: None)
    item_id = await shop.app.enqueue("bad", {"who": "ada"})
    with pytest.raises(ItemFailed, match="has unknown who") as caught:
        await drain(shop.app, fail_fast=True)
    assert (caught.value.item_id, caught.value.state, caught.value.reason) == (item_id, "dead", "payload")


async def test_fail_fast_gives_back_what_else_is_running(app: Redrive) -> None:
    @app.handler("naps")
    async def nap() -> None:
        await asyncio.Event().wait()

    app.handler("bad")(boom)
    sleeping = await app.enqueue("naps")
    await app.enqueue("bad")
    with pytest.raises(ConnectionError):
        await drain(app, fail_fast=True)
    item = await app.get(sleeping)
    assert (item.state, item.attempt) == ("ready", 0)


class TooManyRequests(Exception):
    code = 429


async def test_a_rate_limit_is_a_retry_and_a_failure_for_who_wants_to_see_the_first(shop: Shop) -> None:
    shop.handle("q", Script(TooManyRequests("slow down"), "fine", TooManyRequests("again")), Policy(never()))
    item_id = await shop.app.enqueue("q")
    drained = await drain(shop.app)
    assert (drained.retried, drained.done) == ((item_id,), (item_id,))
    await shop.app.enqueue("q")
    with pytest.raises(TooManyRequests, match="again"):
        await drain(shop.app, fail_fast=True)
