"""A settlement whose answer was lost is repeated, and the store says no more than that it was applied already."""

from __future__ import annotations

from redrive import Item, Policy, Redrive, constant
from redrive.core.states import State
from redrive.core.verbs import LeaseRequest, Want
from redrive.events import Cancelled, Finished, RouteFull
from redrive.stores.clock import Clock
from redrive.testing import Fault
from tests.support.lab import Lab, Seen


def failing(app: Redrive, clock: Clock, *, attempts: int = 1, crashes: int = 3) -> list[str]:
    begun: list[str] = []

    @app.handler("q", policy=Policy(constant("10s"), attempts, max_crashes=crashes, route="small"))
    async def fail(item: Item) -> None:
        begun.append(item.id)
        await clock.sleep(100)
        raise ValueError("no")

    return begun


async def fill_route(lab: Lab, app: Redrive) -> None:
    await lab.store.configure_route("small", 1)
    await app.enqueue("q")
    await lab.drain(app)


async def test_what_a_full_route_kept_is_told_as_kept(memory_lab: Lab) -> None:
    lab = memory_lab
    app, faulty = await lab.faulty()
    failing(app, lab.clock)
    await fill_route(lab, app)
    seen = Seen(app)
    item_id = str(await app.enqueue("q"))
    faulty.next("settle", Fault.UNKNOWN)
    async with lab.working(app):
        await lab.until(lambda: bool(seen.of(Finished)))
        assert (await lab.item(item_id)).state is State.READY
        (told,) = seen.of(Finished)
        assert (told.state, told.reason, told.retry_in_ms) == ("ready", "route_full", 10_000)
        assert [ring.route for ring in seen.of(RouteFull)] == ["small"]


async def test_a_letter_that_was_replayed_meanwhile_is_told_as_dead(memory_lab: Lab) -> None:
    lab = memory_lab
    app, faulty = await lab.faulty()
    failing(app, lab.clock)
    seen = Seen(app)
    item_id = str(await app.enqueue("q"))
    faulty.next("settle", Fault.UNKNOWN, Fault.UNAVAILABLE)
    async with lab.working(app):
        await lab.until(lambda: len(faulty.calls_of("settle")) == 1)
        assert (await app.letters.replay([item_id], reason="again", delay="1h")).changed == (item_id,)
        await lab.until(lambda: bool(seen.of(Finished)))
        (told,) = seen.of(Finished)
        assert told.state == "dead"


async def test_what_was_cancelled_instead_is_told_as_cancelled(memory_lab: Lab) -> None:
    lab = memory_lab
    app, faulty = await lab.faulty()
    begun = failing(app, lab.clock, attempts=2)
    seen = Seen(app)
    item_id = str(await app.enqueue("q"))
    async with lab.working(app):
        await lab.until(lambda: bool(begun))
        await app.cancel(item_id, reason="wrong list")
        faulty.next("settle", Fault.UNKNOWN)
        await lab.until(lambda: bool(seen.of(Finished)))
        assert (await lab.item(item_id)).state is State.CANCELLED
        (told,) = seen.of(Finished)
        assert (told.state, told.reason, told.retry_in_ms) == ("cancelled", "cancelled", None)
        assert [event.id for event in seen.of(Cancelled)] == [item_id]


async def test_a_crash_that_a_full_route_kept_is_told_as_kept(memory_lab: Lab) -> None:
    lab = memory_lab
    app, faulty = await lab.faulty()
    failing(app, lab.clock, crashes=1)
    await fill_route(lab, app)
    seen = Seen(app)
    item_id = str(await app.enqueue("q"))
    await lab.store.lease(LeaseRequest("ghost", (Want("q", 1, 1_000, max_crashes=1),), "its nonce"))
    lab.clock.advance("2s")
    faulty.next("settle", Fault.UNKNOWN)
    async with lab.working(app):
        await lab.until(lambda: bool(seen.of(Finished)))
        assert (await lab.item(item_id)).state is State.READY
        told = seen.of(Finished)[0]
        assert (told.ending, told.state, told.reason) == ("crashed", "ready", "route_full")
