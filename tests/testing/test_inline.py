from __future__ import annotations

import asyncio
import traceback

import pytest

from redrive import Dead, Policy, Redrive, Retry, Snooze, blocking, constant, immediate, keep_output, never
from redrive.errors import ItemFailed, StoreUnavailable
from redrive.events import Event, Finished, Started
from redrive.testing import (
    FakeClock,
    FaultyStore,
    MemoryStore,
    assert_dead,
    assert_done,
    assert_enqueued,
    drain,
    inline,
    sandbox,
)
from redrive.testing import blocking as kit
from tests.testing.conftest import Shop


async def test_the_handler_has_run_when_enqueue_returns(shop: Shop) -> None:
    ran: list[str] = []

    def send() -> str:
        ran.append("x")
        return "sent"

    shop.handle("emails", send)
    with inline(shop.app):
        item_id = await shop.app.enqueue("emails")
        assert ran == ["x"]
        assert await shop.app.wait(item_id) == "sent"
        assert (await shop.app.history(item_id)).attempts == (), "a first-try success, as with a worker"
        await shop.app.enqueue_many("emails", [{"n": n} for n in range(3)])
        assert len(ran) == 4
    await assert_done(shop.app, "emails", result="sent", count=4)
    await shop.app.enqueue("emails")
    assert len(ran) == 4, "after the block enqueue is what it was"
    await drain(shop.app)


@pytest.mark.parametrize("kind", [ValueError, SystemExit, Retry, Dead])
async def test_what_the_handler_raises_is_raised_by_enqueue_and_recorded(shop: Shop, kind: type[BaseException]) -> None:
    error = kind("user 42")

    def fail() -> None:
        raise error

    shop.handle("emails", fail, Policy(constant("1h"), max_attempts=2))
    with inline(shop.app), pytest.raises(kind) as caught:
        await shop.app.enqueue("emails", id="mail-1")
    assert caught.value is error
    assert error.__notes__ == ["raised by the handler of queue 'emails' for item mail-1"]
    assert "in fail" in "".join(traceback.format_exception(error))
    history = await shop.app.history("mail-1")
    assert [attempt.number for attempt in history.attempts] == [1]
    if kind is Dead:
        await assert_dead(shop.app, "emails", error=Dead, reason="handler")
    else:
        (item,) = await assert_enqueued(shop.app, "emails")
        assert item.errors == 1
        await drain(shop.app)
        await assert_dead(shop.app, "emails", error=kind, reason="max_attempts")


async def test_output_is_kept_as_with_a_worker(shop: Shop) -> None:
    shop.handle("emails", lambda: keep_output("250 OK"))
    with inline(shop.app):
        item_id = await shop.app.enqueue("emails")
    (attempt,) = (await shop.app.history(item_id)).attempts
    assert (attempt.ending, attempt.output) == ("done", b"250 OK")


async def test_signals_that_are_returned(app: Redrive) -> None:
    answers: list[object] = [Snooze("1h"), Dead("no")]

    @app.handler("emails")
    async def send() -> object:
        return answers.pop(0)

    with inline(app):
        snoozed = await app.enqueue("emails")
        with pytest.raises(Dead, match="no"):
            await app.enqueue("emails")
    (item,) = await assert_enqueued(app, "emails")
    assert item.id == snoozed


async def test_a_payload_that_does_not_fit_and_a_result_that_cannot_be_kept(app: Redrive) -> None:
    @app.handler("emails")
    async def send(to: str) -> object:
        return object()

    with inline(app):
        with pytest.raises(ItemFailed, match="misses to") as caught:
            await app.enqueue("emails", {})
        assert (caught.value.state, caught.value.reason) == ("dead", "payload")
        with pytest.raises(ItemFailed, match="result") as caught:
            await app.enqueue("emails", {"to": "ada"})
        assert caught.value.reason == "result"


async def test_several_errors_come_as_a_group_and_nobody_is_kept_from_running(app: Redrive) -> None:
    @app.handler("numbers", policy=Policy(never()))
    async def odd(n: int) -> None:
        if n % 2 == 0:
            raise ValueError(n)

    with inline(app):
        with pytest.raises(ExceptionGroup) as caught:
            await app.enqueue_many("numbers", range(5))
        assert [str(error) for error in caught.value.exceptions] == ["0", "2", "4"]
        with pytest.raises(ValueError, match="6"):
            await app.enqueue_many("numbers", [5, 6, 7])
    await assert_done(app, count=4)
    await assert_dead(app, count=4)


# -- what belongs to it ------------------------------------------------------------------------------------------------


async def test_follow_ups_run_too_and_a_delay_waits(shop: Shop) -> None:
    ran: list[str] = []

    def first() -> None:
        shop.app.follow_up("middle")
        shop.app.follow_up("last", delay="1h")

    def middle() -> None:
        ran.append("middle")
        shop.app.follow_up("last")

    shop.handle("first", first)
    shop.handle("middle", middle)
    shop.handle("last", lambda: ran.append("last"))
    with inline(shop.app):
        await shop.app.enqueue("first")
        assert ran == ["middle", "last"]
        await shop.app.enqueue("last", delay="2h")
        assert ran == ["middle", "last"]
    await assert_enqueued(shop.app, "last", delay="1h", count=1)
    await assert_enqueued(shop.app, "last", delay="2h", count=1)


async def test_a_failed_handler_has_no_follow_ups_and_a_failed_follow_up_is_raised(app: Redrive) -> None:
    @app.handler("second", policy=Policy(never()))
    async def second(n: int) -> None:
        raise KeyError(n)

    @app.handler("first", policy=Policy(never()))
    async def first(*, ok: bool) -> None:
        app.follow_up("second", 1)
        if not ok:
            raise LookupError

    with inline(app):
        with pytest.raises(LookupError):
            await app.enqueue("first", {"ok": False})
        await assert_dead(app, "second", count=0)
        with pytest.raises(KeyError):
            await app.enqueue("first", {"ok": True})
    await assert_done(app, "first", count=1)


async def test_what_a_handler_enqueues_runs_inside_it(app: Redrive) -> None:
    order: list[str] = []

    @app.handler("inner", policy=Policy(never()))
    async def inner(*, fail: bool = False) -> str:
        order.append("inner")
        if fail:
            raise KeyError("inner")
        return "r"

    @app.handler("outer", policy=Policy(never()))
    async def outer(*, fail: bool = False) -> str:
        order.append("outer begins")
        item_id = await app.enqueue("inner", {"fail": fail})
        order.append("outer ends")
        app.follow_up("inner")
        return str(await app.wait(item_id))

    with inline(app):
        item_id = await app.enqueue("outer")
        assert order == ["outer begins", "inner", "outer ends", "inner"]
        assert await app.wait(item_id) == "r"
        with pytest.raises(KeyError):
            await app.enqueue("outer", {"fail": True})
    assert {item.queue for item in await assert_dead(app, error=KeyError)} == {"inner", "outer"}


async def test_a_block_in_a_block(shop: Shop) -> None:
    ran: list[int] = []
    shop.handle("emails", lambda: ran.append(1))
    with inline(shop.app):
        with inline(shop.app):
            await shop.app.enqueue("emails")
            assert ran == [1]
        await shop.app.enqueue("emails")
        assert ran == [1, 1]
    await shop.app.enqueue("emails")
    assert ran == [1, 1]


async def test_an_endless_loop_of_follow_ups_is_noticed(app: Redrive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.testing._inline.LIMIT", 20)

    @app.handler("rabbits")
    async def breed() -> None:
        app.follow_up("rabbits")

    with inline(app), pytest.raises(AssertionError, match="more than 20 follow-ups"):
        await app.enqueue("rabbits")


# -- what does not -----------------------------------------------------------------------------------------------------


async def test_what_waited_before_goes_on_waiting(shop: Shop) -> None:
    ran: list[int] = []
    shop.handle("emails", lambda: ran.append(1))
    before = await shop.app.enqueue_many("emails", [{"n": 1}, {"n": 2}])
    with inline(shop.app):
        await shop.app.enqueue("emails", {"n": 3})
    assert ran == [1]
    waiting = await assert_enqueued(shop.app, "emails", count=2)
    assert [item.id for item in waiting] == before
    assert {(item.attempt, item.errors) for item in waiting} == {(0, 0)}
    # Two threads may end in either order.
    assert sorted((await drain(shop.app)).done) == sorted(before)


async def test_a_retry_that_is_due_at_once_is_left_to_a_worker(shop: Shop) -> None:
    ran: list[int] = []

    def fail() -> None:
        ran.append(1)
        raise LookupError

    shop.handle("emails", fail, Policy(immediate(), max_attempts=5))
    with inline(shop.app):
        for tries in (1, 2):
            with pytest.raises(LookupError):
                await shop.app.enqueue("emails")
            assert len(ran) == tries


async def test_items_that_nobody_here_handles_or_that_are_paused_wait(shop: Shop) -> None:
    shop.app.queue("elsewhere")
    shop.handle("emails", lambda: None)
    await shop.app.pause("emails", reason="a test")
    with inline(shop.app):
        await shop.app.enqueue("elsewhere")
        await shop.app.enqueue("emails")
    await assert_enqueued(shop.app, "elsewhere")
    await assert_enqueued(shop.app, "emails")


async def test_a_duplicate_does_not_run_again(shop: Shop) -> None:
    ran: list[int] = []

    def fail() -> None:
        ran.append(1)
        raise LookupError

    shop.handle("emails", fail, Policy(immediate(), max_attempts=5))
    with inline(shop.app):
        with pytest.raises(LookupError):
            await shop.app.enqueue("emails", id="mail-1")
        again = await shop.app.enqueue("emails", id="mail-1")
    assert (again.duplicate, ran) == (True, [1])


def test_a_block_around_several_loops(clock: FakeClock) -> None:
    app = Redrive("memory:", clock=clock, log=False)

    @app.handler("numbers")
    async def double(n: int) -> int:
        return n * 2

    async def program() -> list[int]:
        ids = await asyncio.gather(*(app.enqueue("numbers", n) for n in range(5)))
        return [await app.wait(each) for each in ids]

    with sandbox(app, clock=clock), inline(app):
        for _ in range(2):
            assert asyncio.run(program()) == [0, 2, 4, 6, 8]


async def test_enqueuers_beside_each_other_get_each_their_own(shop: Shop) -> None:
    def handle(n: int) -> int:
        if n % 3 == 0:
            raise KeyError(n)
        return n

    async def handle_async(n: int) -> int:
        return handle(n)

    shop.app.handler("numbers", policy=Policy(never()))(handle_async if shop.colour == "async" else handle)
    with inline(shop.app):
        answers = await asyncio.gather(*(shop.app.enqueue("numbers", n) for n in range(20)), return_exceptions=True)
    for n, answer in enumerate(answers):
        if n % 3 == 0:
            assert isinstance(answer, KeyError)
            assert answer.args == (n,)
        else:
            assert await shop.app.wait(str(answer)) == n


async def test_a_cancelled_enqueuer_cancels_the_handler_and_the_item_is_given_back(app: Redrive) -> None:
    entered = asyncio.Event()

    @app.handler("naps")
    async def nap() -> None:
        entered.set()
        await asyncio.Event().wait()

    with inline(app):
        enqueuing = asyncio.create_task(app.enqueue("naps", id="nap-1"))
        await entered.wait()
        enqueuing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await enqueuing
    item = await app.get("nap-1")
    assert (item.state, item.attempt) == ("ready", 0)


async def test_subscribers_hear_of_it_as_of_a_workers_doings(shop: Shop) -> None:
    heard: list[Event] = []
    shop.app.events.subscribe(heard.append)
    shop.handle("emails", lambda: None)
    with inline(shop.app):
        await shop.app.enqueue("emails")
    assert [type(event) for event in heard if isinstance(event, Started | Finished)] == [Started, Finished]


async def test_a_drain_in_the_block(app: Redrive, clock: FakeClock) -> None:
    @app.handler("inner")
    async def inner() -> None: ...

    @app.handler("outer")
    async def outer() -> None:
        await app.enqueue("inner")
        await clock.sleep(1000)

    await app.enqueue("outer")
    with inline(app):
        drained = await drain(app)
    assert len(drained.done) == 2
    assert clock.monotonic() == 1000


async def test_a_store_that_fails_is_the_enqueuers_error(clock: FakeClock) -> None:
    store = FaultyStore(MemoryStore(clock))
    async with Redrive(store, clock=clock, log=False) as app:

        @app.handler("emails")
        async def send() -> None: ...

        store.fail("settle", times=1)
        with inline(app), pytest.raises(StoreUnavailable):
            await app.enqueue("emails")


async def test_it_needs_no_fake_clock() -> None:
    async with Redrive("memory:", log=False) as app:

        @app.handler("emails")
        async def send() -> str:
            return "sent"

        with inline(app):
            assert await app.wait(await app.enqueue("emails")) == "sent"


@pytest.mark.parametrize("colour", ["async", "sync"])
def test_a_blocking_app(colour: str) -> None:
    with blocking.Redrive("memory:", log=False) as app:
        ran: list[int] = []

        def handle(n: int) -> None:
            ran.append(n)
            if n == 0:
                raise ZeroDivisionError
            app.enqueue("numbers", n - 1)

        async def handle_async(n: int) -> None:
            ran.append(n)
            if n == 0:
                raise ZeroDivisionError
            app.follow_up("numbers", n - 1)

        app.handler("numbers", policy=Policy(never()))(handle if colour == "sync" else handle_async)
        with inline(app), pytest.raises(ZeroDivisionError) as caught:
            app.enqueue("numbers", 2)
        assert ran == [2, 1, 0]
        assert "raised by the handler of queue 'numbers'" in caught.value.__notes__[0]
        kit.assert_dead(app, "numbers", error=ZeroDivisionError)


async def test_a_handler_that_enqueues_itself_for_ever_is_stopped() -> None:
    app = Redrive("memory:", clock=FakeClock(), log=False)

    @app.handler("q")
    async def again(n: int) -> None:
        await app.enqueue("q", {"n": n + 1})

    async with app:
        with inline(app), pytest.raises(AssertionError, match="100 enqueues inside each other"):
            await app.enqueue("q", {"n": 0})


class TooManyRequests(Exception):
    code = 429


async def test_a_rate_limit_is_raised_too_and_costs_the_item_nothing(shop: Shop) -> None:
    def limited() -> None:
        raise TooManyRequests("slow down")

    shop.handle("emails", limited, Policy(never()))
    with inline(shop.app), pytest.raises(TooManyRequests):
        await shop.app.enqueue("emails", id="mail-1")
    item = await shop.app.get("mail-1")
    assert (item.state, item.attempt, item.errors) == ("ready", 0, 0)


async def test_the_item_is_judged_by_the_policy_it_names(shop: Shop) -> None:
    def fail() -> None:
        raise ValueError("no")

    shop.app.policy("strict", Policy(never()))
    shop.handle("emails", fail, Policy(constant("1h")))
    with inline(shop.app), pytest.raises(ValueError, match="no"):
        await shop.app.enqueue("emails", policy="strict")
    await assert_dead(shop.app, "emails", reason="no_retry")
