"""What operators ask of a worker: it hears it with its beat, obeys, and leaves nothing behind."""

from __future__ import annotations

import asyncio

import pytest

from redrive import Redrive
from redrive.core.states import State
from redrive.core.verbs import DocumentWrite, WorkerFacts
from redrive.engine import orders
from redrive.engine.heartbeat import EVERY
from redrive.errors import ConfigError, Conflict, NotFound
from redrive.events import StoreFailed, WorkerOrdered, WorkerStarted, WorkerStopped
from tests.support.lab import Lab, Seen


class Waiting:
    """A handler that runs until it is let go."""

    def __init__(self, app: Redrive) -> None:
        self.runs: list[str] = []
        self.go = asyncio.Event()
        app.handler("q", concurrency=1)(self.handle)

    async def handle(self, name: str) -> None:
        self.runs.append(name)
        await self.go.wait()


async def begun(lab: Lab) -> tuple[Redrive, Waiting, Seen, asyncio.Task[None], list[str]]:
    app = await lab.app()
    waiting, seen = Waiting(app), Seen(app)
    ids = [str(made) for made in await app.enqueue_many("q", [{"name": "one"}, {"name": "two"}])]
    running = asyncio.create_task(app.run(grace="1h"))
    await lab.until(lambda: waiting.runs == ["one"])
    return app, waiting, seen, running, ids


def name_of(seen: Seen) -> str:
    (started,) = seen.of(WorkerStarted)
    return started.worker


async def test_a_drained_worker_finishes_what_it_has_and_ends(lab: Lab) -> None:
    _, waiting, seen, running, (first, second) = await begun(lab)
    office = await lab.app()
    name = name_of(seen)
    assert await office.stop_worker(name[:-2], reason="new release") == name
    await lab.until(lambda: bool(seen.of(WorkerOrdered)), limit=f"{EVERY}ms")
    assert seen.of(WorkerOrdered) == [WorkerOrdered(name, "drain", "lab", "new release")]
    await lab.quiet()
    (beat,) = await office.workers()
    assert (beat.alive, beat.facts.order, beat.facts.running, beat.facts.slots) == (True, "drain", 1, 1)
    waiting.go.set()
    await lab.drive(running)
    assert [(await lab.item(each)).state for each in (first, second)] == [State.DONE, State.READY]
    (beat,) = await office.workers()
    assert (beat.alive, beat.facts.stopped) == (False, True)
    assert await lab.store.documents(orders.KIND) == ()


async def test_a_stopped_worker_releases_what_it_has_at_once(lab: Lab) -> None:
    _, _, seen, running, (first, _) = await begun(lab)
    office = await lab.app()
    await office.stop_worker(name_of(seen), reason="now", at_once=True)
    await lab.drive(running, limit="20s")
    item = await lab.item(first)
    assert (item.state, item.attempt, item.errors, item.crashes) == (State.READY, 0, 0, 0)
    assert [event.released for event in seen.of(WorkerStopped)] == [1]


async def test_a_worker_that_drains_can_be_stopped(memory_lab: Lab) -> None:
    lab = memory_lab
    _, _, seen, running, _ = await begun(lab)
    office = await lab.app()
    await office.stop_worker(name_of(seen), reason="new release")
    await lab.until(lambda: bool(seen.of(WorkerOrdered)))
    await office.stop_worker(name_of(seen), reason="it takes too long", at_once=True)
    await lab.drive(running, limit="20s")
    assert [event.word for event in seen.of(WorkerOrdered)] == ["drain", "stop"]


async def test_only_the_one_that_was_asked_ends(memory_lab: Lab) -> None:
    lab = memory_lab
    one, other = await lab.app(), await lab.app()
    told = [Seen(one), Seen(other)]
    for app in (one, other):
        Waiting(app)
    async with lab.working(one) as first, lab.working(other) as second:
        await one.stop_worker(name_of(told[0]), reason="this one")
        await lab.until(first.done)
        await lab.pass_time("1m")
        assert not second.done()


async def test_each_order_is_in_the_audit(memory_lab: Lab) -> None:
    lab = memory_lab
    app = await lab.app()
    await lab.store.beat("w-1-abcd", WorkerFacts(("q",)), 1000)
    await app.stop_worker("w-1-abcd", reason="new release")
    await app.stop_worker("abcd", reason="now", at_once=True)
    entries = await lab.store.journal("audit")
    assert [(entry.actor, entry.reason) for entry in entries] == [("lab", "new release"), ("lab", "now")]


async def test_who_cannot_hear_is_not_asked(memory_lab: Lab) -> None:
    lab = memory_lab
    app = await lab.app()
    await lab.store.beat("lost-1-aaaa", WorkerFacts(("q",)), 1000)
    lab.clock.advance(2000)
    await lab.store.beat("ended-1-bbbb", WorkerFacts(("q",), stopped=True), 0)
    await lab.store.beat("twin-1-cccc", WorkerFacts(("q",)), 1000)
    await lab.store.beat("twin-1-cccd", WorkerFacts(("q",)), 1000)
    for name, kind, said in (
        ("lost", Conflict, "it is lost"),
        ("ended", Conflict, "it stopped already"),
        ("twin-1", NotFound, "fits 2 workers: twin-1-cccc, twin-1-cccd"),
        ("ccc", NotFound, "fits 2 workers"),
        ("nobody", NotFound, "no worker 'nobody'"),
        ("", NotFound, "no worker ''"),
    ):
        with pytest.raises(kind, match=said):
            await app.stop_worker(name, reason="so")
    with pytest.raises(ConfigError):
        await app.stop_worker("twin-1-cccc", reason=" ")
    assert await lab.store.documents(orders.KIND) == ()
    assert await lab.store.journal("audit") == ()


async def test_a_prefix_means_those_that_can_hear(memory_lab: Lab) -> None:
    lab = memory_lab
    app = await lab.app()
    await lab.store.beat("web-1-aaaa", WorkerFacts(("q",), stopped=True), 0)
    await lab.store.beat("web-2-bbbb", WorkerFacts(("q",)), 1000)
    assert await app.stop_worker("web", reason="so") == "web-2-bbbb"


async def test_orders_of_workers_that_died_are_tidied_up_by_the_next(lab: Lab) -> None:
    app = await lab.app()
    await lab.store.beat("died-1-aaaa", WorkerFacts(("q",)), 1000)
    await app.stop_worker("died", reason="so")
    lab.clock.advance(2000)
    await lab.store.beat("alive-1-bbbb", WorkerFacts(("q",)), 1000)
    await app.stop_worker("alive", reason="so")
    assert [document.key for document in await lab.store.documents(orders.KIND)] == ["alive-1-bbbb"]


async def test_an_order_nobody_can_read_is_not_guessed_at(memory_lab: Lab) -> None:
    lab = memory_lab
    app = await lab.app()
    Waiting(app)
    seen = Seen(app)
    async with lab.working(app) as running:
        body = b"\x93not an order"
        await lab.store.write_documents([DocumentWrite(orders.KIND, name_of(seen), body)])
        await lab.pass_time("1m")
        assert not running.done()


async def test_an_order_is_heard_after_an_outage(memory_lab: Lab) -> None:
    lab = memory_lab
    app, faulty = await lab.faulty()
    Waiting(app)
    seen = Seen(app)
    async with lab.working(app) as running:
        office = await lab.app()
        await office.stop_worker(name_of(seen), reason="so")
        faulty.fail("document", times=3)
        await lab.until(running.done)
    assert len(seen.of(StoreFailed)) > 0
    assert [event.word for event in seen.of(WorkerOrdered)] == ["drain"]
