"""Follow-ups are enqueued in the very write that makes their item done, or not at all."""

from __future__ import annotations

import pytest

from redrive import Item, Policy, Redrive, Snooze, constant
from redrive.core.states import State
from redrive.errors import ConfigError, PayloadTooLarge
from redrive.testing.faults import Fault
from tests.support.lab import Lab


async def counts(app: Redrive, queue: str) -> tuple[int, int]:
    row = next(row for row in (await app.tally()).queues if row.queue == queue)
    return row.ready + row.leased, row.done


def parent(app: Redrive, fail_times: int, error: Exception) -> list[int]:
    runs: list[int] = []

    @app.handler("parent", policy=Policy(backoff=constant("1s"), max_attempts=3))
    async def handle(item: Item) -> None:
        runs.append(item.deliveries)
        app.follow_up("child", {"of": item.id})
        app.follow_up("child", {"of": item.id}, delay="5s")
        if len(runs) <= fail_times:
            raise error

    return runs


def child(app: Redrive) -> list[str]:
    parents: list[str] = []

    @app.handler("child")
    async def handle(of: str) -> None:
        parents.append(of)

    return parents


@pytest.mark.parametrize("error", [ValueError("no"), Snooze("1s")], ids=["failed", "snoozed"])
async def test_only_the_run_that_is_done_has_follow_ups(lab: Lab, error: Exception) -> None:
    app = await lab.app()
    runs, parents = parent(app, 2, error), child(app)
    item_id = await app.enqueue("parent")
    await lab.drain(app)
    assert len(runs) == 3
    assert parents == [item_id, item_id]


async def test_a_dead_item_has_none(lab: Lab) -> None:
    app = await lab.app()
    parent(app, 99, ValueError("no"))
    parents = child(app)
    item_id = await app.enqueue("parent")
    await lab.drain(app)
    assert (await lab.item(item_id)).state is State.DEAD
    assert parents == []
    assert await counts(app, "child") == (0, 0)


@pytest.mark.parametrize("fault", list(Fault))
async def test_a_settle_that_is_repeated_does_not_double_them(lab: Lab, fault: Fault) -> None:
    app, faulty = await lab.faulty()
    parent(app, 0, ValueError())
    parents = child(app)
    faulty.next("settle", fault)
    item_id = await app.enqueue("parent")
    await lab.drain(app)
    assert parents == [item_id, item_id]
    assert await counts(app, "child") == (0, 2)


async def test_a_refused_result_has_none(lab: Lab) -> None:
    """The lease was given to somebody else meanwhile: that one's follow-ups count, and only those."""
    slow, quick = await lab.faulty(), await lab.app()
    app, cut = slow
    parents = child(quick)
    app.queue("child")
    seen: list[int] = []

    async def handle(item: Item) -> None:
        seen.append(item.deliveries)
        made = quick if item.deliveries > 1 else app
        made.follow_up("child", {"of": f"delivery {item.deliveries}"})
        if item.deliveries == 1:
            await lab.clock.sleep(40_000)

    for each in (app, quick):
        each.handler("parent", lease="10s", policy=Policy(backoff=constant("1s")))(handle)
    await app.enqueue("parent")
    async with lab.working(app):
        await lab.until(lambda: bool(seen))
        for verb in ("extend", "reclaim", "lease"):
            cut.fail(verb)
        async with lab.working(quick):
            await lab.until(lambda: bool(parents))
            await lab.pass_time("45s")
        cut.heal()
    assert parents == ["delivery 3"]
    assert await counts(quick, "child") == (0, 1)


async def test_from_a_thread(lab: Lab) -> None:
    app = await lab.app()
    parents = child(app)

    @app.handler("parent")
    def handle(item: Item) -> str:
        return str(app.follow_up("child", {"of": item.id}))

    item_id = await app.enqueue("parent")
    await lab.drain(app)
    assert parents == [item_id]
    follow_up = await app.wait(item_id)
    assert (await lab.item(follow_up)).state is State.DONE


async def test_outside_of_a_handler_it_is_refused(memory_lab: Lab) -> None:
    app = await memory_lab.app()
    app.queue("child")
    with pytest.raises(ConfigError, match="handler"):
        app.follow_up("child")


@pytest.mark.parametrize(
    ("queue", "payload", "error"), [("nowhere", None, "ConfigError"), ("child", "x" * 2_000, PayloadTooLarge.__name__)]
)
async def test_a_follow_up_that_cannot_be_fails_its_handler(
    memory_lab: Lab, queue: str, payload: object, error: str
) -> None:
    app = await memory_lab.app(max_payload=1_000)
    child(app)

    @app.handler("parent", policy=Policy(max_attempts=1))
    async def handle() -> None:
        app.follow_up(queue, payload)

    item_id = await app.enqueue("parent")
    await memory_lab.drain(app)
    letter = (await memory_lab.item(item_id)).letter
    assert letter is not None
    assert letter.failure.type == f"redrive.errors.{error}"
