"""What an operator's code may do while everything runs: settings, pause, cancel, gates, schedules, on the record."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from redrive import Item, Policy, Rate, never
from redrive.core import codec
from redrive.core.states import State
from redrive.core.verbs import Entry
from redrive.errors import ConfigError, Conflict, NotFound, UnknownQueue
from redrive.stores.audit import AuditRecord
from tests.support.lab import Lab


async def _nothing() -> None:
    return


def record(entry: Entry) -> tuple[str, str, str, tuple[str, ...]]:
    """Every entry of the audit can be read as the same thing."""
    told = codec.decode(entry.body, AuditRecord)
    return told.change, entry.actor, entry.reason, told.changed


async def test_settings_change_at_once_and_are_on_the_record(lab: Lab) -> None:
    app = await lab.app()
    app.queue("q")
    await app.configure("q", reason="slow day", max_running=3, rate="10/s")
    settings = await lab.store.settings("q")
    assert (settings.max_running, settings.rate) == (3, Rate(10))
    await app.configure("q", reason="over", rate=None)
    assert (await lab.store.settings("q")).rate is None
    entries = await app.letters.audit()
    assert [record(each) for each in entries] == [
        ("configure", "lab", "slow day", ("q",)),
        ("configure", "lab", "over", ("q",)),
    ]
    said = codec.decode(entries[0].body, dict[str, Any])["settings"]
    assert said == {"max_running": 3, "rate": {"count": 10, "per": 1000, "burst": None}}


@pytest.mark.parametrize(
    ("settings", "field"),
    [({}, "settings"), ({"max_running": 0}, "max_running"), ({"speed": 3}, "speed"), ({"order": "x"}, "order")],
)
async def test_bad_settings_change_nothing(memory_lab: Lab, settings: dict[str, Any], field: str) -> None:
    app = await memory_lab.app()
    app.queue("q")
    with pytest.raises(ConfigError) as raised:
        await app.configure("q", reason="r", **settings)
    assert raised.value.field == field
    with pytest.raises(ConfigError, match="a reason is needed"):
        await app.configure("q", reason=" ", max_running=1)
    with pytest.raises(UnknownQueue, match="did you mean 'q'"):
        await app.configure("q2", reason="r", max_running=1)
    assert await app.letters.audit() == ()


async def test_a_gate_that_a_queue_is_put_behind_is_there(lab: Lab) -> None:
    app = await lab.app()
    app.queue("q")
    await app.configure("q", reason="it is down", gate="smtp")
    assert [(gate.name, gate.state) for gate in await app.gates()] == [("smtp", "closed")]
    await app.open_gate("smtp", reason="it is down")
    await app.enqueue("q")
    assert await lab.ghost("q") == ()
    await app.configure("q", reason="it is up", gate=None)
    assert len(await lab.ghost("q", worker="another")) == 1


async def test_a_capacity_below_the_fill_is_refused(lab: Lab) -> None:
    app = await lab.app()
    app.queue("q")
    await app.enqueue_many("q", range(3))
    with pytest.raises(ConfigError, match="below what 'q' holds now") as raised:
        await app.configure("q", reason="r", capacity=2)
    assert raised.value.field == "capacity"
    assert await app.letters.audit() == ()


async def test_pause_and_resume_are_on_the_record(lab: Lab) -> None:
    app = await lab.app()
    app.queue("q")
    await app.pause("q", reason="on fire")
    (row,) = (await app.tally()).queues
    assert (row.paused, row.paused_by, row.paused_reason) == (True, "lab", "on fire")
    await app.resume("q", reason="it is out")
    (row,) = (await app.tally()).queues
    assert not row.paused
    assert [record(each) for each in await app.letters.audit()] == [
        ("pause", "lab", "on fire", ("q",)),
        ("resume", "lab", "it is out", ("q",)),
    ]


async def test_a_running_item_is_asked_to_stop(lab: Lab) -> None:
    app = await lab.app()
    app.queue("q")
    running, waiting = await app.enqueue_many("q", [1, 2])
    (held,) = await lab.ghost("q", limit=1)
    assert held.id == running
    done = await app.cancel([running, waiting], reason="ordered twice")
    assert set(done.changed) == {running, waiting}
    assert (await app.get(waiting)).state is State.CANCELLED
    item = await app.get(running)
    assert (item.state, item.cancel) == (State.LEASED, "lab: ordered twice")


async def test_force_takes_it_from_its_worker_whose_result_no_longer_counts(lab: Lab) -> None:
    app = await lab.app()
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.handler("q", lease="1h")
    async def stubborn() -> str:
        begun.set()
        while not go_on.is_set():
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                continue
        return "done all the same"

    item_id = await app.enqueue("q")
    other = await app.enqueue("q", delay="1d")
    async with lab.working(app):
        await begun.wait()
        done = await app.cancel([item_id, other, item_id], reason="it hangs", force=True)
        assert done.changed == (item_id, other)
        assert (await app.get(item_id)).state is State.CANCELLED
        assert (await app.get(other)).state is State.CANCELLED
        go_on.set()
        await lab.quiet()
    history = await app.history(item_id)
    assert history.item.state is State.CANCELLED
    assert history.item.result is None
    assert [(deed.change, deed.reason) for deed in history.deeds] == [("cancel", "it hangs")]


async def test_the_policy_of_what_waits_is_replaced(lab: Lab) -> None:
    app = await lab.app()
    app.queue("q")
    app.policy("gentle", Policy())
    running, first, second = await app.enqueue_many("q", [1, 2, 3])
    await lab.ghost("q", limit=1)
    done = await app.set_policy("queue:q", {"max_attempts": 7, "backoff": never()}, reason="INC-88")
    assert (set(done.changed), done.skipped) == ({first, second}, ())
    terms = (await app.get(first)).terms
    assert terms is not None
    assert codec.decode(terms.policy.encode(), dict[str, Any]) == {"max_attempts": 7, "backoff": {"kind": "never"}}
    assert (await app.set_policy([await app.get(first)], None, reason="over")).changed == (first,)
    assert (await app.get(first)).terms is None
    assert (await app.set_policy(running, "gentle", reason="r")).skipped[0].id == running
    assert [record(each)[0] for each in await app.letters.audit()] == ["set_policy"] * 2
    with pytest.raises(ConfigError, match="filter must not be empty"):
        await app.set_policy(" ", None, reason="r")


async def test_an_unknown_policy_is_refused_as_enqueue_does(lab: Lab) -> None:
    """A name of this app, or of one that opened the store before, is known."""
    other = await lab.app()
    other.policy("patient", Policy())
    other.queue("q")
    item_id = await other.enqueue("q")
    app = await lab.app()
    app.policy("gentle", Policy())
    app.queue("q")
    asked: list[Callable[[str], Awaitable[object]]] = [
        lambda policy: app.enqueue("q", policy=policy),
        lambda policy: app.configure("q", policy=policy, reason="r"),
        lambda policy: app.set_policy(item_id, policy, reason="r"),
    ]
    for ask in asked:
        with pytest.raises(ConfigError, match=r"policy: no policy 'gentl' here \(did you mean 'gentle'\?"):
            await ask("gentl")
        with pytest.raises(ConfigError, match=r"policy: a policy must not be empty \(use None for no policy\)"):
            await ask("")
    assert await app.letters.audit() == ()
    with pytest.raises(ConfigError, match="did you mean 'patient'"):
        await app.set_policy(item_id, "pateint", reason="r")
    for name in ("gentle", "patient"):
        await app.configure("q", policy=name, reason="r")
        assert (await app.set_policy(item_id, name, reason="r")).changed == (item_id,)
    assert (await lab.store.settings("q")).policy == "patient"


async def test_the_overview_and_the_health_are_values(lab: Lab) -> None:
    app = await lab.app()
    app.queue("q", max_running=1)

    @app.handler("letters", policy=Policy(never()))
    async def fail() -> None:
        raise ValueError("password=hunter2")

    await app.enqueue("letters", order_key="k")
    behind = await app.enqueue("letters", order_key="k")
    await app.enqueue("q")
    await lab.drain(app)
    await lab.ghost("q", limit=1)
    view = await app.overview()
    letters, queue = view.queues
    assert (queue.name, queue.tally.leased, queue.unattended, queue.reached) == ("q", 1, True, ("AT MAX RUNNING",))
    assert queue.start == "redrive worker run MODULE:APP --queues q"
    assert letters.stuck is not None
    assert (letters.stuck.count, letters.unattended, letters.fill) == (1, False, 1)
    assert "hunter2" not in view.causes[0].text
    found = await app.health(max_letters=0)
    assert (found.queues, found.at, found.healthy) == (2, view.at, False)
    assert [(each.kind, each.what) for each in found.problems] == [
        ("held", "letters"),
        ("no_worker", "q"),
        ("letters", ""),
    ]
    assert (await app.get(behind)).hold == "order"
    with pytest.raises(ConfigError, match="max_letters: -1 is not a number of letters"):
        await app.health(max_letters=-1)


async def test_what_is_over_cannot_be_cancelled(lab: Lab) -> None:
    app = await lab.app()
    app.handler("q")(_nothing)
    item_id = await app.enqueue("q")
    await lab.drain(app)
    for force in (False, True):
        done = await app.cancel([item_id, "no-such"], reason="r", force=force)
        assert done.changed == ()
        assert {each.id for each in done.skipped} == {item_id, "no-such"}


async def test_a_letter_that_blocks_its_key_can_be_passed(lab: Lab) -> None:
    app = await lab.app()
    ran: list[int] = []

    @app.handler("q", policy=Policy(never()))
    async def handle(number: int, item: Item) -> None:
        ran.append(number)
        if number == 0 and not item.replays:
            raise ValueError("first")

    ids = await app.enqueue_many("q", range(3), order_key="k")
    await lab.drain(app)
    assert ran == [0]
    assert (await app.letters.skip(ids[1], reason="r")).skipped[0].id == ids[1]
    done = await app.letters.skip("queue:q", reason="customer waits")
    assert done.changed == (ids[0],)
    await lab.drain(app)
    assert ran == [0, 1, 2]
    assert [(await app.get(each)).gap for each in ids] == ["", ids[0], ids[0]]
    assert (await app.letters.replay(ids[0], reason="fixed")).changed == (ids[0],)
    await lab.drain(app)
    assert ran == [0, 1, 2, 0]


async def test_a_replay_whose_key_a_twin_holds_needs_force(lab: Lab) -> None:
    app = await lab.app()

    @app.handler("q", policy=Policy(never()))
    async def fail() -> None:
        raise ValueError("no")

    letter = await app.enqueue("q", dedupe_key="k")
    await lab.drain(app)
    twin = await app.enqueue("q", dedupe_key="k", delay="1d")
    assert not twin.duplicate
    (left,) = (await app.letters.replay(letter, reason="r")).skipped
    assert twin in left.reason
    assert (await app.letters.replay(letter, reason="r", force=True)).changed == (letter,)


async def test_gates_are_opened_and_closed_by_hand(lab: Lab) -> None:
    app = await lab.app()
    app.handler("q", gate="smtp")(_nothing)
    item_id = await app.enqueue("q")
    view = await app.open_gate("smtp", reason="they asked us to stop")
    assert (view.state, view.by) == ("open", "lab")
    assert await lab.ghost("q") == ()
    assert (await app.close_gate("smtp", reason="they are back")).state == "closed"
    assert [gate.state for gate in await app.gates()] == ["closed"]
    assert [each.id for each in await lab.ghost("q", worker="another")] == [item_id]
    with pytest.raises(NotFound, match="did you mean 'smtp'"):
        await app.open_gate("smpt", reason="r")
    with pytest.raises(ConfigError, match="a reason is needed"):
        await app.close_gate("smtp", reason="")
    told = [record(each)[1:] for each in await app.letters.audit()]
    assert told == [("lab", "they asked us to stop", ("smtp",)), ("lab", "they are back", ("smtp",))]


async def test_schedules_are_managed_through_the_app(lab: Lab) -> None:
    app = await lab.app()
    app.queue("reports")
    app.schedule("hourly", "reports", {"kind": "short"}, every="1h", priority="high")
    await app.enqueue("reports")
    view = await app.schedules.pause("hourly", reason="audit")
    assert (view.paused, view.paused_by, view.paused_reason) == (True, "lab", "audit")
    item = await app.get(await app.schedules.run("hourly", reason="just once"))
    assert (item.queue, item.payload, item.priority) == ("reports", b'{"kind":"short"}', "high")
    await app.schedules.remove("hourly", reason="gone")
    with pytest.raises(NotFound):
        await app.schedules.get("hourly")


async def test_a_route_has_room_for_so_many(lab: Lab) -> None:
    app = await lab.app()
    await app.configure_route("network", capacity=5, reason="enough")
    (row,) = (await app.tally()).routes
    assert (row.route, row.open, row.capacity) == ("network", 0, 5)
    for capacity, route, field in ((0, "network", "capacity"), (3, "", "route"), (True, "network", "capacity")):
        with pytest.raises(ConfigError) as raised:
            await app.configure_route(route, capacity=capacity, reason="r")
        assert raised.value.field == field
    assert [record(each) for each in await app.letters.audit()] == [("configure_route", "lab", "enough", ("network",))]


async def test_an_id_of_other_work_is_a_conflict_also_with_keys(lab: Lab) -> None:
    app = await lab.app()
    app.queue("q")
    await app.enqueue("q", 1, id="mine")
    with pytest.raises(Conflict):
        await app.enqueue("q", 2, id="mine", dedupe_key="k")
    assert not (await app.enqueue("q", 3, dedupe_key="k")).duplicate
