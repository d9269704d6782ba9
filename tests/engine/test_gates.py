"""What workers tell the gates, how often, and what comes of it; and gates in the hands of people."""

from __future__ import annotations

import asyncio

import pytest

from redrive import Dead, Item, Policy, Retry, Snooze, constant, dead_on
from redrive.core.gate import GateConfig, gate_config
from redrive.core.states import State
from redrive.core.verbs import GateWrite, QueueChange
from redrive.events import GateClosed, GateOpened, StoreFailed
from redrive.office.gates import close_gate
from redrive.testing.faults import Fault
from tests.engine.gated import BY, Handle, behind, broken, fine, handle, view
from tests.support.lab import Lab, Seen


class Unreachable(Exception):
    code = 503
    retry_after = 240


# -- what counts ---------------------------------------------------------------------------------------------------


async def timed_out() -> None:
    await asyncio.Event().wait()


async def asks_again() -> None:
    raise Retry("busy") from ConnectionError("no answer")


async def rejected() -> None:
    raise ValueError("no such address")


async def hopeless() -> None:
    raise Dead("no such address")


async def not_now() -> None:
    raise Snooze("1s")


async def limited() -> None:
    error = ConnectionError("slow down")
    error.code = 429  # type: ignore[attr-defined]
    raise error


async def ruled_out() -> None:
    raise ConnectionError("mailbox is gone")


@pytest.mark.parametrize(
    ("what", "counts"),
    [
        (broken, True),
        (timed_out, True),
        (asks_again, True),
        (rejected, False),
        (hopeless, False),
        (not_now, False),
        (limited, False),
        (ruled_out, False),
    ],
)
async def test_only_what_speaks_of_the_dependency_counts(memory_lab: Lab, what: Handle, counts: bool) -> None:
    lab = memory_lab
    await behind(lab, gate_config(retry_share=None))
    app = await lab.app()
    rules = [dead_on("mailbox is gone")]
    handle(app, what, policy=Policy(backoff=constant("1s"), max_attempts=None, rules=rules), timeout="1s")
    await app.enqueue_many("q", [None] * 20)
    async with lab.working(app):
        await lab.pass_time("20s")
        assert (await view(lab)).state == ("open" if counts else "closed")


async def test_categories_to_be_ignored_can_be_chosen(memory_lab: Lab) -> None:
    lab = memory_lab
    await behind(lab, gate_config(ignore=["connection"]))
    app = await lab.app()
    handle(app, broken)
    await app.enqueue_many("q", [None] * 20)
    async with lab.working(app):
        await lab.pass_time("20s")
        gate = await view(lab)
    assert (gate.state, gate.outcomes) == ("closed", 0)


async def test_a_retry_after_holds_the_gate(memory_lab: Lab) -> None:
    lab = memory_lab
    await behind(lab)
    app = await lab.app()

    async def unreachable() -> None:
        raise Unreachable("in maintenance")

    handle(app, unreachable)
    await app.enqueue_many("q", [None] * 20)
    async with lab.working(app):
        await lab.pass_time("1s")
        gate = await view(lab)
    assert gate.since is not None
    assert gate.next_probe_at is not None
    assert 240_000 <= gate.next_probe_at - gate.since <= 241_000


async def test_two_queues_behind_one_gate_share_it(lab: Lab) -> None:
    await behind(lab, None, "q", "other")
    app = await lab.app()
    handle(app, broken)
    ran: list[str] = []

    @app.handler("other")
    async def other(item: Item) -> None:
        ran.append(item.id)

    seen = Seen(app)
    await app.enqueue_many("q", [None] * 20)
    async with lab.working(app):
        await lab.pass_time("1s")
        assert [event.gate for event in seen.of(GateOpened)] == ["smtp"]
        item_id = await app.enqueue("other")
        await lab.pass_time("10s")
        assert ran == []
        await close_gate(lab.store, "smtp", BY)
        await lab.until(lambda: ran == [item_id], limit="5s")


# -- how it is told ------------------------------------------------------------------------------------------------


async def test_without_a_gate_nothing_is_asked_or_told(memory_lab: Lab) -> None:
    app, faulty = await memory_lab.faulty()
    handle(app, fine)
    await app.enqueue_many("q", [None] * 100)
    await memory_lab.drain(app)
    assert faulty.calls_of("gate") == faulty.calls_of("gates") == faulty.calls_of("set_gate") == []


async def test_while_all_is_well_little_is_written(memory_lab: Lab) -> None:
    """A read a second, and a write in ten, however much is done."""
    lab = memory_lab
    await behind(lab)
    app, faulty = await lab.faulty()
    handle(app, fine)
    async with lab.working(app):
        for second in range(50):
            await app.enqueue_many("q", [None] * 50)
            await lab.pass_time("1s")
            if second == 19:
                faulty.calls.clear()
        assert len(faulty.calls_of("gate")) <= 31
        assert 2 <= len(faulty.calls_of("set_gate")) <= 4
        gate = await view(lab)
    assert (gate.failures, gate.retries) == (0, None)
    assert 500 <= gate.outcomes <= 1500


async def test_the_first_failure_is_told_at_once(memory_lab: Lab) -> None:
    lab = memory_lab
    await behind(lab)
    app = await lab.app()
    handle(app, broken)
    async with lab.working(app):
        await app.enqueue("q")
        await lab.quiet()
        assert (await view(lab)).failures == 1


async def test_a_failure_is_told_at_once_also_when_all_was_well(memory_lab: Lab) -> None:
    lab = memory_lab
    await behind(lab)
    app = await lab.app()
    down = False

    async def asked() -> None:
        if down:
            await broken()

    handle(app, asked)
    async with lab.working(app):
        for _ in range(16):
            await app.enqueue_many("q", [None] * 5)
            await lab.pass_time("1s")
        assert (await view(lab)).retries is None, "no budget is kept"
        down = True
        await app.enqueue("q")
        await lab.quiet()
        assert (await view(lab)).failures == 1


async def test_workers_that_tell_at_the_same_time_lose_nothing(lab: Lab) -> None:
    await behind(lab, gate_config(failure_rate=None, consecutive=None, retry_share=None))
    apps = [await lab.app() for _ in range(4)]
    for app in apps:
        handle(app, broken, policy=Policy(max_attempts=1), concurrency=1)
    await apps[0].enqueue_many("q", [None] * 60)
    await lab.drive(asyncio.gather(*(app.run(until_idle=True) for app in apps)), limit="25s")
    gate = await view(lab)
    assert (gate.failures, gate.outcomes) == (60, 60)


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.UNKNOWN, Fault.UNKNOWN_UNDONE])
@pytest.mark.parametrize("verb", ["gate", "set_gate"])
async def test_a_store_that_fails_is_told_later_and_once(lab: Lab, verb: str, fault: Fault) -> None:
    await behind(lab, gate_config(failure_rate=None, consecutive=None))
    app, faulty = await lab.faulty()
    handle(app, broken, policy=Policy(max_attempts=1))
    faulty.fail(verb, fault, times=5)
    await app.enqueue_many("q", [None] * 7)
    async with lab.working(app):
        await lab.pass_time("10s")
        gate = await view(lab)
    assert (gate.failures, gate.outcomes) == (7, 7)


async def test_settling_does_not_wait_for_it(memory_lab: Lab) -> None:
    lab = memory_lab
    await behind(lab)
    app, faulty = await lab.faulty()
    handle(app, fine)
    hold = faulty.hold("gate")
    async with lab.working(app):
        first = await app.enqueue("q")
        await lab.until(hold.reached.is_set)
        second = await app.enqueue("q")
        await lab.pass_time("1s")
        assert (await lab.item(first)).state is State.DONE
        assert (await lab.item(second)).state is State.DONE
        hold.release()
        await lab.pass_time("2s")
        assert (await view(lab)).outcomes == 2


async def test_what_was_seen_last_is_told_before_the_worker_leaves(lab: Lab) -> None:
    await behind(lab)
    app = await lab.app()
    handle(app, fine)
    await app.enqueue("q")
    await lab.drain(app)
    assert (await view(lab)).outcomes == 1


async def test_a_gate_that_nobody_declared_is_made_when_it_is_needed(lab: Lab) -> None:
    await lab.store.configure("q", QueueChange(gate="smtp"))
    app = await lab.app()
    handle(app, broken)
    await app.enqueue_many("q", [None] * 20)
    async with lab.working(app):
        await lab.pass_time("2s")
    gate = await view(lab)
    assert (gate.state, gate.config) == ("open", GateConfig())


async def test_a_damaged_gate_does_not_end_a_worker(memory_lab: Lab) -> None:
    lab = memory_lab
    await behind(lab)
    await lab.store.set_gate(GateWrite("smtp", 1, body=b"\xff"))
    app = await lab.app()
    seen = Seen(app)
    handle(app, broken)
    await app.enqueue_many("q", [None] * 20)
    async with lab.working(app):
        await lab.pass_time("2s")
        assert (await view(lab)).state == "open"
    assert [event.part for event in seen.of(StoreFailed)] == ["gates"]


async def test_only_one_of_a_fleet_says_that_it_opened_or_closed(lab: Lab) -> None:
    await behind(lab)
    down = True

    async def asked() -> None:
        if down:
            await broken()

    apps = [await lab.app() for _ in range(3)]
    seen = [Seen(app) for app in apps]
    for app in apps:
        handle(app, asked, concurrency=5)
    await apps[0].enqueue_many("q", [None] * 60)
    async with lab.working(apps[0]), lab.working(apps[1]), lab.working(apps[2]):
        await lab.pass_time("5s")
        down = False
        await lab.pass_time("30s")
    opened = [event for each in seen for event in each.of(GateOpened)]
    closed = [event for each in seen for event in each.of(GateClosed)]
    assert [(event.gate, event.probe_in_ms) for event in opened] == [("smtp", 30_000)]
    assert "ConnectionError: no answer" in opened[0].why
    assert [event.why for event in closed] == ["a probe succeeded"]
    assert 30_000 <= closed[0].open_ms <= 31_000
