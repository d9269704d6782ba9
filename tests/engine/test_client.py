"""Enqueue, get and wait: what the one who puts work in is told."""

from __future__ import annotations

import asyncio

import pytest

from redrive import Dead, Redrive
from redrive.core.states import State
from redrive.errors import (
    AppClosed,
    ConfigError,
    Conflict,
    ItemFailed,
    NotFound,
    OutcomeUnknown,
    PayloadNotSerialisable,
    PayloadTooLarge,
    UnknownQueue,
    WaitTimeout,
)
from redrive.events import Enqueued
from redrive.testing.faults import Fault
from tests.support.lab import Lab, Seen


async def _nothing() -> None:
    return


async def test_a_queue_nobody_declared_is_refused_with_a_guess(lab: Lab) -> None:
    app = await lab.app()
    app.handler("emails")(_nothing)
    with pytest.raises(UnknownQueue, match="did you mean 'emails'"):
        await app.enqueue("emial")
    with pytest.raises(UnknownQueue):
        await app.enqueue_many("emial", [1])
    assert [row.queue for row in (await app.tally()).queues if row.queue == "emial"] == []


async def test_a_queue_that_another_process_declared_is_known(lab: Lab) -> None:
    worker, client = await lab.app(), await lab.app()
    worker.handler("emails")(_nothing)
    await lab.drain(worker)
    item_id = await client.enqueue("emails")
    assert (await client.get(item_id)).state is State.READY


async def test_a_closed_or_unopened_app_refuses_everything(lab: Lab) -> None:
    app = await lab.app()
    app.handler("q")(_nothing)
    item_id = await app.enqueue("q")
    await app.close()
    unopened = Redrive("memory:")
    unopened.handler("q")(_nothing)
    for each in (app, unopened):
        for call in (each.enqueue("q"), each.enqueue_many("q", [1]), each.get(item_id), each.run(), each.tally()):
            with pytest.raises(AppClosed):
                await call
        with pytest.raises(AppClosed):
            _ = each.letters
    with pytest.raises(AppClosed):
        await app.open()


async def test_a_payload_that_is_too_large_is_refused_and_nothing_is_written(lab: Lab) -> None:
    app = await lab.app(max_payload=100)
    app.handler("q")(_nothing)
    with pytest.raises(PayloadTooLarge):
        await app.enqueue("q", "x" * 200)
    with pytest.raises(PayloadTooLarge):
        await app.enqueue_many("q", ["fine", "x" * 200])
    with pytest.raises(PayloadNotSerialisable):
        await app.enqueue_many("q", ["fine", object()])
    assert not any(row.ready for row in (await app.tally()).queues)


@pytest.mark.parametrize("item_id", ["", " ", "a b", "x" * 129, "new\nline", "\0"])
async def test_a_bad_id_is_refused(memory_lab: Lab, item_id: str) -> None:
    app = await memory_lab.app()
    app.handler("q")(_nothing)
    with pytest.raises(ConfigError, match="id"):
        await app.enqueue("q", id=item_id)


async def test_an_own_id_is_taken_once(lab: Lab) -> None:
    app = await lab.app()
    app.handler("q")(_nothing)
    first, second = await app.enqueue("q", 1, id="invoice-7"), await app.enqueue("q", 1, id="invoice-7")
    assert (first, first.duplicate, second, second.duplicate) == ("invoice-7", False, "invoice-7", True)
    assert (await app.get("invoice-7")).payload == b"1"
    await lab.drain(app)
    assert (await app.enqueue("q", 1, id="invoice-7")).duplicate
    (row,) = (await app.tally()).queues
    assert (row.done, row.ready) == (1, 0)


async def test_a_repeat_of_what_was_moved_is_a_repeat(memory_lab: Lab) -> None:
    app = await memory_lab.app()

    async def die() -> None:
        raise Dead("for good")

    app.handler("q")(die)
    await app.enqueue("q", id="invoice-7")
    await memory_lab.drain(app)
    await app.letters.move("invoice-7", "by-hand", reason="nobody mends it")
    assert (await app.enqueue("q", id="invoice-7")).duplicate
    with pytest.raises(Conflict):
        await app.enqueue("q", 1, id="invoice-7")


@pytest.mark.parametrize("fault", [Fault.UNKNOWN, Fault.UNKNOWN_UNDONE])
async def test_an_enqueue_of_unknown_outcome_is_repeated_and_does_not_double(lab: Lab, fault: Fault) -> None:
    app, faulty = await lab.faulty()
    app.handler("q")(_nothing)
    seen = Seen(app)
    faulty.next("put", fault)
    item_id = await lab.drive(app.enqueue("q"))
    (row,) = (await app.tally()).queues
    assert row.ready == 1
    assert (await app.get(item_id)).state is State.READY
    assert item_id.duplicate is False
    assert [event.ids for event in seen.of(Enqueued)] == [(item_id,)]


async def test_an_enqueue_whose_outcome_stays_unknown_says_so(lab: Lab) -> None:
    app, faulty = await lab.faulty()
    app.handler("q")(_nothing)
    faulty.fail("put", Fault.UNKNOWN)
    with pytest.raises(OutcomeUnknown):
        await lab.drive(app.enqueue("q", id="mine"))
    faulty.heal()
    await app.enqueue("q", id="mine")
    (row,) = (await app.tally()).queues
    assert row.ready == 1


async def test_an_enqueue_that_may_have_happened_is_never_told_as_not_done(lab: Lab) -> None:
    """A server dies while it writes and is then away: the second try knows of itself, not of the first."""
    app, faulty = await lab.faulty()
    app.handler("q")(_nothing)
    faulty.next("put", Fault.UNKNOWN)
    faulty.fail("put", Fault.UNAVAILABLE)
    with pytest.raises(OutcomeUnknown):
        await lab.drive(app.enqueue("q", id="mine"))
    faulty.heal()
    (row,) = (await app.tally()).queues
    assert row.ready == 1


async def test_wait_gives_the_result_of_an_item_that_ends_later(lab: Lab) -> None:
    app = await lab.app()

    @app.handler("q")
    async def double(value: int) -> int:
        return 2 * value

    item_id = await app.enqueue("q", {"value": 21}, delay="5s")
    async with lab.working(app):
        assert await lab.drive(app.wait(item_id)) == 42


async def test_wait_raises_what_became_of_a_failed_item(lab: Lab) -> None:
    app = await lab.app()

    @app.handler("q")
    async def give_up() -> None:
        raise Dead("no such user")

    dead, cancelled = await app.enqueue("q"), await app.enqueue("q", delay="1h")
    await app.cancel(cancelled, reason="not needed")
    await lab.drain(app)
    with pytest.raises(ItemFailed, match="no such user") as raised:
        await app.wait(dead)
    assert (raised.value.item_id, raised.value.state, raised.value.reason) == (dead, "dead", "handler")
    with pytest.raises(ItemFailed, match="cancelled") as raised:
        await app.wait(cancelled)
    assert raised.value.state == "cancelled"


async def test_wait_ends_after_its_timeout_and_the_item_goes_on(lab: Lab) -> None:
    app = await lab.app()
    app.handler("q")(_nothing)
    item_id = await app.enqueue("q")
    begun = lab.clock.monotonic()
    with pytest.raises(WaitTimeout, match="ready"):
        await lab.drive(app.wait(item_id, timeout="10s"))
    assert lab.clock.monotonic() - begun == 10_000
    assert (await app.get(item_id)).state is State.READY
    with pytest.raises(TimeoutError):
        await lab.drive(app.wait(item_id, timeout=0))


async def test_wait_and_get_of_an_unknown_item(lab: Lab) -> None:
    app = await lab.app()
    for call in (app.get("nobody"), app.wait("nobody")):
        with pytest.raises(NotFound):
            await call


async def test_many_payloads_are_put_all_or_none_in_their_order(lab: Lab) -> None:
    app = await lab.app()
    app.handler("q")(_nothing)
    ids = await app.enqueue_many("q", range(1_200))
    assert len(set(ids)) == 1_200
    items = await asyncio.gather(*(app.get(item_id) for item_id in ids[::100]))
    assert [item.payload for item in items] == [str(number).encode() for number in range(0, 1_200, 100)]
    assert await app.enqueue_many("q", []) == []


async def test_wait_is_told_by_a_worker_of_the_same_app(lab: Lab) -> None:
    """Without a moment of fake time: nobody has to look again."""
    app = await lab.app()
    gate = asyncio.Event()

    @app.handler("q")
    async def handle() -> str:
        await gate.wait()
        return "done"

    async with lab.working(app):
        waiting = asyncio.ensure_future(app.wait(await app.enqueue("q")))
        await lab.quiet()
        assert not waiting.done()
        gate.set()
        before = lab.clock.monotonic()
        while not waiting.done():
            await lab.quiet()
        assert (await waiting, lab.clock.monotonic()) == ("done", before)
