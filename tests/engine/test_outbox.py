"""Outbox items: put with the settlement that causes them, delivered by processes that registered their target."""

from __future__ import annotations

import pytest

from redrive import Item, Policy, Redrive, never
from redrive.core.item import NewItem
from redrive.core.select import Match
from redrive.core.states import State
from redrive.core.verbs import QueueTally
from redrive.engine.outbox import MAX_ATTEMPTS, Deliver, OutboxWorker, destination_id, outbox_item
from redrive.errors import ConfigError, StoreUnavailable
from redrive.events import Events
from redrive.stores.base import Store
from redrive.stores.memory import MemoryStore
from redrive.testing.faults import Fault, FaultyStore, SimulatedCrash
from tests.support.lab import Lab

MAIL = "redrive.outbox.mail"


class Target:
    """Somewhere else. What is delivered twice under one id is there once."""

    def __init__(self) -> None:
        self.down = False
        self.calls: list[str] = []
        self.arrived: dict[str, bytes] = {}

    async def deliver(self, item: Item) -> None:
        self.calls.append(item.id)
        if self.down:
            raise ConnectionError("no answer")
        self.arrived[destination_id(item)] = item.payload


def ordering(app: Redrive, error: Exception | None = None) -> None:
    @app.handler("orders")
    async def handle(item: Item) -> None:
        app.follow_up(MAIL, {"order": item.id})
        if error is not None:
            raise error


async def row(store: Store, queue: str = MAIL) -> QueueTally:
    return next(each for each in (await store.tally()).queues if each.queue == queue)


async def test_an_item_is_delivered_after_the_write_that_made_it(lab: Lab) -> None:
    app, faulty = await lab.faulty()
    target = Target()
    assert app.outbox("mail", target.deliver) == MAIL
    ordering(app)
    faulty.next("settle", Fault.UNKNOWN)
    item_id = await app.enqueue("orders")
    await lab.drain(app)
    assert list(target.arrived.values()) == [f'{{"order":"{item_id}"}}'.encode()]
    counts = await row(lab.store)
    assert (counts.ready, counts.leased, counts.done) == (0, 0, 1)
    assert (counts.settings.keep, counts.settings.gate) == (3_600_000, "outbox.mail")


async def test_only_a_process_that_registered_the_target_leases_its_queue(lab: Lab) -> None:
    sender, deliverer, target = await lab.app(), await lab.app(), Target()
    sender.outbox("mail")
    ordering(sender)
    await sender.enqueue("orders")
    await lab.drain(sender)
    assert (await row(lab.store)).ready == 1
    deliverer.outbox("mail", target.deliver)
    deliverer.handler("orders")(lambda: None)
    async with lab.working(deliverer):
        await lab.until(lambda: bool(target.arrived))


async def test_until_idle_does_not_wait_for_retries_of_an_outbox(lab: Lab) -> None:
    app, target = await lab.app(), Target()
    target.down = True
    app.outbox("mail", target.deliver)
    ordering(app)
    await app.enqueue("orders")
    began = lab.clock.monotonic()
    await lab.drive(app.run(until_idle=True))
    assert lab.clock.monotonic() - began < 1_000
    assert ((await row(lab.store)).ready, len(target.calls)) == (1, 1)


async def test_after_an_hour_of_attempts_it_is_a_letter_and_a_replay_delivers_it(memory_lab: Lab) -> None:
    lab = memory_lab
    app, target = await lab.app(), Target()
    target.down = True
    app.outbox("mail", target.deliver)
    ordering(app)
    await app.enqueue("orders")
    async with lab.working(app):
        await lab.until(lambda: len(target.calls) == MAX_ATTEMPTS, limit="1d")
        await lab.quiet()
        (item,) = (await lab.store.find(Match("queue", "=", MAIL))).items
        assert item.letter is not None
        assert (item.letter.reason, item.letter.failure.type) == ("undeliverable", "ConnectionError")
        assert lab.clock.now() - item.enqueued_at > 3_600_000
        target.down = False
        await app.letters.replay(item.id, reason="it is back")
        await lab.until(lambda: bool(target.arrived), limit="1d")


async def test_the_breaker_of_a_target_that_is_away_spares_the_other_items(lab: Lab) -> None:
    app, target = await lab.app(), Target()
    target.down = True
    app.outbox("mail", target.deliver, concurrency=1)
    ordering(app)
    await app.enqueue_many("orders", [None] * 50)
    async with lab.working(app):
        await lab.pass_time("2m")
        assert len(target.calls) < 25
        (gate,) = await app.gates()
        assert (gate.name, gate.state) != ("outbox.mail", "closed")
        target.down = False
        await lab.until(lambda: len(target.arrived) == 50)


@pytest.mark.parametrize("point", [1, 2], ids=["before the settle", "after the settle"])
async def test_a_crash_between_delivery_and_settle_delivers_it_once(lab: Lab, point: int) -> None:
    """To another store, under an id that follows from the item's own."""
    there = MemoryStore(lab.clock)
    await there.open()

    async def deliver(item: Item) -> None:
        await there.put([NewItem(destination_id(item), "inbox", item.payload)])

    dying = FaultyStore(lab.shared, counted=("settle",))
    dying.crash_at(point)
    await lab.store.put([outbox_item("mail", b"hello")])
    worker = process(dying, lab, deliver)
    with pytest.raises(SimulatedCrash):
        await worker.look(wait=True)
    assert (await row(there, "inbox")).ready == 1
    lab.clock.advance("61s")
    await process(lab.shared, lab, deliver).look(wait=True)
    assert (await row(there, "inbox")).ready == 1
    counts = await row(lab.store)
    assert (counts.ready, counts.leased, counts.done) == (0, 0, 1)


def process(store: Store, lab: Lab, deliver: Deliver) -> OutboxWorker:
    worker = OutboxWorker(store, Events(), lab.clock)
    worker.register("mail", deliver)
    return worker


async def test_a_look_tries_each_item_that_is_due_once_and_ends_with_a_store_error(lab: Lab) -> None:
    target, faulty = Target(), FaultyStore(lab.shared)
    worker = process(faulty, lab, target.deliver)
    await worker.look(wait=True)
    assert faulty.calls_of("lease") == []
    await lab.store.put([outbox_item("mail", b"1"), outbox_item("mail", b"2")])
    target.down = True
    await worker.look(wait=True)
    assert len(target.calls) == 2
    await worker.look(wait=True)
    assert len(target.calls) == 2
    faulty.next("lease", Fault.UNAVAILABLE)
    with pytest.raises(StoreUnavailable):
        await worker.look(wait=True)
    target.down = False
    lab.clock.advance("1s")
    await worker.look(wait=True)
    assert sorted(target.arrived.values()) == [b"1", b"2"]


async def test_parts_of_a_target_are_served_with_it_each_with_a_breaker(lab: Lab) -> None:
    target = Target()
    worker = OutboxWorker(lab.shared, Events(), lab.clock)
    first = worker.register("mail", target.deliver, breaker=False)
    other = worker.register("mail", target.deliver, breaker=False)
    await lab.store.put([outbox_item(each, b"1") for each in ("mail", "mail@there", "mailing", "sms@there")])
    await worker.look(wait=True)
    assert len(target.arrived) == 2
    rows = {each.queue: each for each in (await lab.store.tally()).queues}
    assert [rows[f"{MAIL}{part}"].settings.gate for part in ("", "@there")] == ["", "outbox.mail@there"]
    await worker.release(first)
    await lab.store.put([outbox_item("mail@there", b"2")])
    await worker.look(wait=True)
    assert len(target.arrived) == 3
    await worker.release(other)
    await lab.store.put([outbox_item("mail", b"3")])
    await worker.look(wait=True)
    assert len(target.arrived) == 3


async def test_outbox_queues_are_not_enqueued_to_and_have_no_handlers(memory_lab: Lab) -> None:
    app = await memory_lab.app()
    app.outbox("mail")
    for refused in (app.enqueue(MAIL, 1), app.enqueue_many(MAIL, [1])):
        with pytest.raises(ConfigError, match=r"outbox queue of target 'mail'.*app\.outbox\('mail', deliver\)"):
            await refused
    for declare in (app.queue, app.handler, lambda name: app.schedule("s", name, every="1h")):
        with pytest.raises(ConfigError, match="outbox queue of target"):
            declare(MAIL)
    for wrong in ("", None, "a b", "x" * 120):
        with pytest.raises(ConfigError):
            app.outbox(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="deliver"):
        app.outbox("sms", "no function")  # type: ignore[arg-type]


async def test_a_follow_up_to_an_unknown_target_advises_to_register_it(memory_lab: Lab) -> None:
    app = await memory_lab.app()

    @app.handler("orders", policy=Policy(never()))
    async def order() -> None:
        app.follow_up("redrive.outbox.nosuch", 1)

    item_id = await app.enqueue("orders")
    await memory_lab.drain(app)
    letter = (await memory_lab.item(item_id)).letter
    assert letter is not None
    assert "app.outbox('nosuch', deliver)" in letter.failure.text
    assert "app.queue" not in letter.failure.text


async def test_an_outbox_item_causes_no_outbox_item(memory_lab: Lab) -> None:
    app = await memory_lab.app()
    app.outbox("mail", lambda _item: app.follow_up(MAIL))
    ordering(app)
    await app.enqueue("orders")
    async with memory_lab.working(app):
        await memory_lab.quiet()
        (item,) = (await memory_lab.store.find(Match("queue", "=", MAIL))).items
        assert (item.state, item.errors) == (State.READY, 1)
        assert "cannot cause another outbox item" in (await memory_lab.history(item.id)).attempts[-1].failure.text  # type: ignore[union-attr]
