"""Which policy judges an item: its own, else its queue's, else its handler's, found by name when the item fails."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from redrive import Item, Policy, Redrive, constant, dead_on, never
from redrive.core import outcome as o
from redrive.core.item import NewItem, Terms
from redrive.core.states import State
from redrive.core.verbs import LeaseRequest, QueueChange, QueueSettings, Want
from redrive.engine.policies import Policies
from redrive.engine.reaper import Reaper
from redrive.engine.registry import Handler, Signature
from redrive.engine.report import Reporter
from redrive.engine.runner import Run, Runner
from redrive.engine.settings import Settings
from redrive.engine.slots import Slots
from redrive.events import Events, Finished
from tests.support.lab import Lab, Seen


def failing(app: Redrive, *, policy: Policy) -> list[Item]:
    runs: list[Item] = []

    @app.handler("q", policy=policy)
    async def fail(item: Item) -> None:
        runs.append(item)
        raise ValueError("no")

    return runs


async def put(lab: Lab, item_id: str, policy: str) -> str:
    await lab.store.put([NewItem(item_id, "q", b"null", terms=Terms(policy=policy))])
    return item_id


@pytest.mark.parametrize(
    ("item_policy", "queue_policy", "attempts"),
    [("", "", 1), ("", "two", 2), ("three", "", 3), ("three", "two", 3)],
)
async def test_the_nearest_policy_judges(lab: Lab, item_policy: str, queue_policy: str, attempts: int) -> None:
    app = await lab.app()
    app.policy("two", Policy(constant("1s"), 2))
    app.policy("three", Policy(constant("1s"), 3))
    failing(app, policy=Policy(never()))
    await lab.store.configure("q", QueueChange(policy=queue_policy))
    item_id = await put(lab, "a", item_policy)
    await lab.drain(app)
    item = await lab.item(item_id)
    assert (item.state, item.errors) == (State.DEAD, attempts)


async def test_a_policy_as_data_stands_over_what_is_below_it(lab: Lab) -> None:
    """By the public API: the item's numbers over the queue's, and what both leave out is the handler's."""
    app = await lab.app()
    failing(app, policy=Policy(constant("1h"), 9, route="late"))
    app.queue("q", policy={"backoff": constant("2s"), "max_attempts": 5})
    own = await app.enqueue("q", None, policy={"max_attempts": 2})
    whole = await app.enqueue("q", None, policy=Policy(never()))
    began = lab.clock.now()
    await lab.drain(app)
    assert lab.clock.now() - began == 2_000
    two, one = await lab.item(own), await lab.item(whole)
    assert (two.errors, one.errors) == (2, 1)
    assert two.letter is not None
    assert one.letter is not None
    assert (two.letter.reason, two.letter.route) == ("max_attempts", "late")
    assert (one.letter.reason, one.letter.route) == ("no_retry", "")
    third = await app.enqueue("q", None)
    slower = '{"max_attempts": 2, "backoff": {"kind": "constant", "base": "1h"}}'
    await app.configure("q", reason="slower", policy=slower)
    waiting = asyncio.create_task(app.run())
    await lab.pass_time("30m")
    told = await app.explain(third)
    judged = "policy constant 1h, 2 attempts of the queue, over the policy of the handler: constant 1h, 2 attempts"
    assert told.policy.startswith(judged)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_the_rules_of_the_nearest_policy_judge_the_error(lab: Lab) -> None:
    app = await lab.app()
    app.policy("strict", Policy(rules=[dead_on(ValueError)], route="strict"))
    failing(app, policy=Policy(constant("1s"), 2))
    plain, strict = str(await app.enqueue("q")), await put(lab, "a", "strict")
    await lab.drain(app)
    letters = [(await lab.item(item_id)).letter for item_id in (plain, strict)]
    assert [(each.reason, each.failure.rule, each.route) for each in letters if each is not None] == [
        ("max_attempts", "default:data", ""),
        ("rule", "error:ValueError", "strict"),
    ]


async def test_a_policy_is_read_when_the_item_fails(lab: Lab) -> None:
    """An operator changes the queue's policy between two failures, and while the handler runs."""
    app = await lab.app()
    app.policy("patient", Policy(constant("1m"), None))
    app.policy("strict", Policy(never()))
    gate = asyncio.Event()

    @app.handler("q", policy=Policy(constant("10s"), None))
    async def fail() -> None:
        await gate.wait()
        raise ValueError("no")

    seen = Seen(app)
    await app.enqueue("q")
    async with lab.working(app):
        gate.set()
        await lab.until(lambda: len(seen.of(Finished)) == 1)
        gate.clear()
        await lab.store.configure("q", QueueChange(policy="patient"))
        await lab.pass_time("15s")
        gate.set()
        await lab.until(lambda: len(seen.of(Finished)) == 2)
        gate.clear()
        await lab.pass_time("61s")  # it runs again, and hangs
        await lab.store.configure("q", QueueChange(policy="strict"))
        await lab.pass_time("1s")
        gate.set()
        await lab.until(lambda: len(seen.of(Finished)) == 3)
    assert [event.retry_in_ms for event in seen.of(Finished)] == [10_000, 60_000, None]
    assert seen.of(Finished)[-1].reason == "no_retry"


async def test_a_name_that_is_not_known_here_is_passed_over_and_said(lab: Lab) -> None:
    app = await lab.app()
    app.policy("known", Policy(never()))
    failing(app, policy=Policy(constant("1s"), 2))
    first = await put(lab, "a", "gone")
    await lab.drain(app)
    await lab.store.configure("q", QueueChange(policy="known"))
    second = await put(lab, "b", "gone")
    await lab.drain(app)
    told = [[attempt.note for attempt in (await lab.history(item_id)).attempts] for item_id in (first, second)]
    note = "no policy named 'gone' here; judged by another"
    assert told == [[note, note], [note]]
    assert (await lab.item(second)).errors == 1


async def test_age_is_judged_by_the_nearest_policy(lab: Lab) -> None:
    app = await lab.app()
    app.policy("fresh", Policy(max_age="1m"))
    runs = failing(app, policy=Policy(never()))
    old = await put(lab, "a", "fresh")
    lab.clock.advance(61_000)
    young = await put(lab, "b", "fresh")
    await lab.drain(app)
    assert old not in {item.id for item in runs}
    letter = (await lab.item(old)).letter
    assert letter is not None
    assert letter.reason == "max_age"
    assert (await lab.item(young)).errors > 1


async def test_crashes_are_judged_by_the_queues_policy(lab: Lab) -> None:
    app = await lab.app()
    app.policy("brittle", Policy(constant("1s"), max_crashes=1))
    app.handler("q", lease="10s", policy=Policy(constant("1s"), max_crashes=3))(nothing)
    await lab.store.configure("q", QueueChange(policy="brittle"))
    poison = str(await app.enqueue("q"))
    seen = Seen(app)
    # A worker that knows the queue's policy asks for each item alone: its first crash may kill.
    want = Want("q", 1, 10_000, max_crashes=1)
    (item,) = (await lab.store.lease(LeaseRequest("ghost", (want,), "nonce"))).items
    assert item.alone
    async with lab.working(app):
        await lab.until(lambda: bool(seen.of(Finished)))
    letter = (await lab.item(poison)).letter
    assert letter is not None
    assert letter.reason == "max_crashes"


async def test_a_worker_asks_under_the_line_of_the_queues_policy(lab: Lab) -> None:
    app = await lab.app()
    app.policy("brittle", Policy(max_crashes=1))
    alone: list[bool] = []

    @app.handler("q", concurrency=5)
    async def note(item: Item) -> None:
        alone.append(item.alone)

    await app.enqueue_many("q", [None] * 3)
    await lab.drain(app)
    await lab.store.configure("q", QueueChange(policy="brittle"))
    await app.enqueue_many("q", [None] * 3)
    await lab.drain(app)
    assert alone == [False] * 3 + [True] * 3


async def test_a_store_that_does_not_tell_leaves_what_was_known(lab: Lab) -> None:
    app, faulty = await lab.faulty()
    app.policy("strict", Policy(never()))
    failing(app, policy=Policy(constant("1s"), 2))
    await lab.store.configure("q", QueueChange(policy="strict"))
    seen = Seen(app)
    async with lab.working(app):
        faulty.fail("settings")
        await lab.pass_time("10s")
        await app.enqueue("q")
        await lab.until(lambda: bool(seen.of(Finished)))
    assert seen.of(Finished)[0].reason == "no_retry"


async def test_what_is_known_is_read_again_before_it_kills(lab: Lab) -> None:
    """Age and crashes: the policy was changed after the worker had last looked."""
    named = {"brittle": Policy(constant("1s"), max_age="1m", max_crashes=1)}
    settings = Settings(lab.store, lab.clock)
    policies = Policies(named, settings)
    handler = Handler("q", nothing, Policy(), 10_000, None, 5, True, Signature(nothing))
    runner = Runner(lab.clock, policies, threads=0, frames=True, max_result=10, thread_freed=lambda: None)
    slots = Slots("w", {"q": handler}, policies, Counter())
    events = Events()
    report = Reporter("w", events, lab.clock)
    reaper = Reaper("w", lab.store, slots, policies=policies, report=report, events=events, clock=lab.clock)
    await lab.store.configure("q", QueueChange(policy="brittle"))
    await lab.store.put([NewItem("old", "q", b"null"), NewItem("lost", "q", b"null")])
    lab.clock.advance(60_000)
    old, lost = [
        (await lab.store.lease(LeaseRequest(f"ghost-{number}", (Want("q", 1, 1_000, max_crashes=1),), "n"))).items[0]
        for number in range(2)
    ]
    assert lost.alone

    async def outdate() -> None:
        await lab.store.configure("q", QueueChange(policy="brittle"))
        lab.clock.advance(1_500)
        await settings.read(["q"])
        assert settings.known("q").policy == "brittle"
        await lab.store.configure("q", QueueChange(policy=""))
        lab.clock.advance(1_500)

    await outdate()
    assert isinstance(await lab.drive(runner.handle(Run(old, handler, lab.clock.monotonic()))), o.Done)
    await outdate()
    assert await lab.drive(reaper.reap()) == 2
    item = await lab.item(lost.id)
    assert (item.state, item.crashes) == (State.READY, 1)


async def test_a_handler_that_ended_is_left_alone_while_it_is_judged(lab: Lab) -> None:
    """Its timeout comes while the store is asked for the policy: the error counts, by the policy as it is now."""
    app, faulty = await lab.faulty()
    app.policy("strict", Policy(never()))

    @app.handler("q", timeout="5s", policy=Policy(constant("1s")))
    async def fail() -> None:
        await lab.clock.sleep(4_500)
        raise ValueError("its own")

    seen = Seen(app)
    async with lab.working(app):
        await lab.quiet()
        await app.enqueue("q")
        await lab.pass_time("4s")
        hold = faulty.hold("settings")
        await lab.store.configure("q", QueueChange(policy="strict"))
        for _ in range(30):
            lab.clock.advance(100)
            for _ in range(20):
                await asyncio.sleep(0)  # noqa: TID251 - turns of the loop, no time
        assert not seen.of(Finished)
        hold.release()
        await lab.until(lambda: bool(seen.of(Finished)))
    (event,) = seen.of(Finished)
    assert (event.error, event.reason) == ("ValueError", "no_retry")


@pytest.mark.slow
async def test_settings_are_read_about_once_a_second_however_many_fail(
    memory_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = await memory_lab.app()
    failing(app, policy=Policy(constant("100ms"), 100))
    asked: list[int] = []
    real = memory_lab.store.settings

    async def settings(queue: str) -> QueueSettings:
        asked.append(memory_lab.clock.monotonic())
        return await real(queue)

    monkeypatch.setattr(memory_lab.store, "settings", settings)
    await app.enqueue_many("q", [None] * 50)
    begun = memory_lab.clock.monotonic()
    await memory_lab.drain(app)
    seconds = (memory_lab.clock.monotonic() - begun) // 1000
    assert seconds >= 9
    assert len(asked) <= seconds + 2


async def nothing() -> None:
    pass
