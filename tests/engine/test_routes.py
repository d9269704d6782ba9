"""Letters lie under the route that their policy names; a full route keeps them live, and says so."""

from __future__ import annotations

from redrive import Policy, constant, dead_on, never
from redrive.core.item import Ending
from redrive.core.states import State
from redrive.core.verbs import LeaseRequest, Want
from redrive.events import Finished, RouteFull
from tests.support.lab import Lab, Seen


class Declined(Exception):
    pass


class Stolen(Declined):
    pass


async def test_a_letter_lies_under_its_route(lab: Lab) -> None:
    app = await lab.app()
    errors: dict[str, BaseException] = {
        "stolen": Stolen("no"),
        "late": TimeoutError("no"),
        "odd": RuntimeError("no"),
    }

    @app.handler("q", policy=Policy(never(), routes={Declined: "billing", "timeout": "network"}, route="rest"))
    async def fail(which: str) -> None:
        raise errors[which]

    @app.handler("plain", policy=Policy(never()))
    async def fail_plainly() -> None:
        raise ValueError("no")

    seen = Seen(app)
    ids = {which: str(await app.enqueue("q", {"which": which})) for which in errors}
    broken = str(await app.enqueue("q", {"nothing": "fits"}))
    plain = str(await app.enqueue("plain"))
    await lab.drain(app)
    routes = {}
    for item_id in (*ids.values(), broken, plain):
        letter = (await lab.item(item_id)).letter
        assert letter is not None
        routes[item_id] = letter.route
    assert routes == {ids["stolen"]: "billing", ids["late"]: "network", ids["odd"]: "rest", broken: "rest", plain: ""}
    assert {event.id: event.route for event in seen.of(Finished)} == routes
    tally = {row.route: row.open for row in (await app.tally()).routes}
    assert tally == {"": 1, "billing": 1, "network": 1, "rest": 2}


async def test_a_full_route_keeps_its_items_live_until_there_is_room(lab: Lab) -> None:
    app = await lab.app()

    @app.handler("q", policy=Policy(constant("5s"), 1, route="small"))
    async def fail() -> None:
        raise ValueError("no")

    seen = Seen(app)
    await lab.store.configure_route("small", 2)
    ids = [str(each) for each in await app.enqueue_many("q", [None] * 5)]
    async with lab.working(app):
        await lab.pass_time("130s")
        items = [await lab.item(item_id) for item_id in ids]
        dead = [item for item in items if item.state is State.DEAD]
        kept = [item for item in items if item.state is not State.DEAD]
        assert (len(dead), len(kept)) == (2, 3)
        assert min(item.errors for item in kept) > 1
        found = await lab.history(kept[0].id)
        assert {attempt.ending for attempt in found.attempts} == {Ending.FAILED}
        # Each was told as what it is, the alarm once a minute.
        told = [event for event in seen.of(Finished) if event.reason == "route_full"]
        assert {(event.state, event.route, event.retry_in_ms) for event in told} == {("ready", "small", 5_000)}
        rings = seen.of(RouteFull)
        assert 2 <= len(rings) <= 4
        assert {(ring.route, ring.queue) for ring in rings} == {("small", "q")}
        assert sum(ring.kept for ring in rings) <= len(told)
        assert rings[1].kept > 10
        await lab.store.configure_route("small", 5)
        await lab.pass_time("10s")
        assert {(await lab.item(item_id)).state for item_id in ids} == {State.DEAD}


async def test_a_crash_to_a_full_route_is_kept_too(lab: Lab) -> None:
    app = await lab.app()
    app.handler("q", lease="10s", policy=Policy(constant("10s"), max_crashes=1, route="small"))(nothing)

    @app.handler("other", policy=Policy(rules=[dead_on(ValueError)], route="small"))
    async def fail() -> None:
        raise ValueError("no")

    seen = Seen(app)
    await lab.store.configure_route("small", 1)
    await app.enqueue("other")
    await lab.drain(app)
    item_id = str(await app.enqueue("q"))
    want = Want("q", 1, 10_000, max_crashes=1)
    (item,) = (await lab.store.lease(LeaseRequest("ghost", (want,), "nonce"))).items
    assert item.alone
    await lab.drain(app)
    item = await lab.item(item_id)
    assert (item.state, item.crashes) == (State.DONE, 1)
    assert [event.id for event in seen.of(RouteFull)] == [item_id]


async def nothing() -> None:
    pass
