from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from redrive import Policy, Redrive, Snooze, constant, exponential
from redrive.app.internals import store_of
from redrive.core.verbs import LeaseRequest, Want
from redrive.errors import ConfigError, StoreUnavailable, UnknownQueue
from redrive.testing import FakeClock, Fault, FaultyStore, MemoryStore, drain
from redrive.testing import clock as clocks
from tests.support.cli import PATIENCE
from tests.testing.conftest import HOUR, Shop, boom

# -- the end of patience -----------------------------------------------------------------------------------------------


async def test_an_endless_loop_of_follow_ups_is_noticed(app: Redrive) -> None:
    @app.handler("rabbits")
    async def breed() -> None:
        app.follow_up("rabbits")

    await app.enqueue("rabbits")
    with pytest.raises(AssertionError, match=r"drain: more than 50 attempts, .* queue 'rabbits'"):
        await drain(app, limit=50)


async def test_a_handler_that_snoozes_for_ever_is_noticed(shop: Shop) -> None:
    shop.handle("lazy", lambda: Snooze("1d"))
    item_id = await shop.app.enqueue("lazy")
    with pytest.raises(AssertionError, match=rf"more than 20 attempts.*21 of them for item {item_id[:8]}"):
        await drain(shop.app, limit=20)


async def test_somebody_else_who_holds_an_item_for_ever_is_noticed(
    app: Redrive, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.testing._drain.STEPS", 20)

    @app.handler("emails")
    async def send() -> None: ...

    await app.enqueue("emails")
    store = store_of(app)  # a worker that is not seen otherwise
    await store.lease(LeaseRequest("other", (Want("emails", 1, 1000 * HOUR, 3),), "nonce"))
    with pytest.raises(AssertionError, match="somebody else holds what is leased"):
        await drain(app)


async def test_it_says_whom_it_waits_for(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "STILL_AFTER", 0.01)
    gate = threading.Event()
    said: list[str] = []

    class Opener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())
            # A verb may be waited for as well, and needs nobody's help.
            if "the handler of slow" in said[-1]:
                gate.set()

    async def in_the_loop() -> None:
        await asyncio.to_thread(gate.wait, PATIENCE)

    def in_a_thread() -> None:
        gate.wait(PATIENCE)

    shop.app.handler("slow")(in_the_loop if shop.colour == "async" else in_a_thread)
    item_id = await shop.app.enqueue("slow")
    opener = Opener()
    clocks.log.addHandler(opener)
    try:
        await drain(shop.app)
    finally:
        clocks.log.removeHandler(opener)
    assert any(f"because of: the handler of slow (item {item_id[:8]})" in text for text in said)


# -- stores that fail --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["lease", "settle", "tally", "wait"])
@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.UNKNOWN])
async def test_a_store_that_fails_for_a_while_is_outlasted(
    faulty: tuple[Redrive, FaultyStore], verb: str, fault: Fault
) -> None:
    app, store = faulty

    @app.handler("emails", policy=Policy(exponential("1s", factor=2)))
    async def send() -> None: ...

    item_id = await app.enqueue("emails")
    await app.enqueue("emails", delay="1h")
    for _ in range(3):
        store.next(verb, fault)
    assert (await drain(app)).done[0] == item_id


async def test_a_store_that_is_gone_for_good_is_an_error(faulty: tuple[Redrive, FaultyStore]) -> None:
    app, store = faulty

    @app.handler("emails")
    async def send() -> None: ...

    await app.enqueue("emails")
    store.fail("tally", times=1000)
    with pytest.raises(StoreUnavailable):
        await drain(app)


# -- misuse and manners ------------------------------------------------------------------------------------------------


async def test_a_real_clock_is_refused() -> None:
    async with Redrive("memory:", log=False) as app:
        app.handler("emails")(boom)
        with pytest.raises(ConfigError, match=r"clock: the app has the system's clock.*FakeClock\(\)"):
            await drain(app)


async def test_a_store_with_another_clock_is_refused(clock: FakeClock) -> None:
    async with Redrive(MemoryStore(), clock=clock, log=False) as app:
        app.handler("emails")(boom)
        await app.enqueue("emails", delay="1h")
        with pytest.raises(ConfigError, match="store: the store does not go by the app's clock"):
            await drain(app)


async def test_a_wall_clock_that_was_set_back_is_no_other_clock(app: Redrive, clock: FakeClock) -> None:
    app.handler("bad", policy=Policy(constant("1h"), max_attempts=3))(boom)
    clock.jump_wall(-HOUR)
    await app.enqueue("bad", delay="1h")
    assert len((await drain(app)).dead) == 1
    assert clock.monotonic() == 3 * HOUR


async def test_queues_without_a_handler_are_refused(app: Redrive) -> None:
    with pytest.raises(ConfigError, match="no handler is registered"):
        await drain(app)
    app.handler("emails")(boom)
    with pytest.raises(UnknownQueue, match="did you mean 'emails'"):
        await drain(app, ["email"])


async def test_two_apps_on_one_clock_do_not_run_away_from_each_other(clock: FakeClock) -> None:
    store = MemoryStore(clock)
    gate = threading.Event()
    async with Redrive(store, clock=clock, log=False) as one, Redrive(store, clock=clock, log=False) as two:

        @one.handler("slow")
        def slow() -> None:
            gate.wait(PATIENCE)

        @two.handler("quick", policy=Policy(constant("1h"), max_attempts=3))
        async def quick() -> None:
            raise ValueError

        await one.enqueue("slow")
        await two.enqueue("quick")
        both = asyncio.gather(drain(one), drain(two))
        for _ in range(50):
            await asyncio.to_thread(lambda: None)
        assert clock.monotonic() == 0
        gate.set()
        first, second = await both
        assert (len(first.done), len(second.dead), clock.monotonic()) == (1, 1, 2 * HOUR)


async def test_nothing_is_left_behind(shop: Shop) -> None:
    shop.handle("bad", boom, Policy(constant("1h"), max_attempts=3))
    await shop.app.enqueue("bad")
    # What a store has as long as it is open, such as an ear at its server, begins with the first wait.
    await store_of(shop.app).wait(["bad"], 0)
    before = asyncio.all_tasks()
    await drain(shop.app)
    assert not shop.app.events
    await shop.clock.rest()
    assert asyncio.all_tasks() == before
    assert shop.clock.sleepers == 0


async def test_a_cancelled_drain_gives_its_items_back(app: Redrive) -> None:
    entered = asyncio.Event()

    @app.handler("naps")
    async def nap() -> None:
        entered.set()
        await asyncio.Event().wait()

    item_id = await app.enqueue("naps")
    draining = asyncio.create_task(drain(app))
    await entered.wait()
    draining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await draining
    assert (await app.get(item_id)).state == "ready"
    assert not app.events


async def test_a_program_that_stops_its_workers_ends_the_drain(app: Redrive) -> None:
    @app.handler("last")
    async def last() -> None:
        stopping.append(asyncio.create_task(app.stop()))

    stopping: list[asyncio.Task[None]] = []
    item_id = await app.enqueue("last")
    await app.enqueue("last", delay="1h")
    assert (await drain(app)).done == (item_id,)
    await asyncio.gather(*stopping)
