"""Ways in which other queues lose work, by their number in the catalogue, as far as the engine could open them.

Those that only a store could open are in tests/stores/test_loss_windows.py. Elsewhere:

    02  pop, then push                   proofs/test_r03_crash_points.py (killed at every statement)
    04  fetch = delete                   proofs/test_r04_kills.py
    11  delivery limit without a target  every death is a letter: tests/promises/test_r14_dead_letters.py
    14  recovery in process memory       no recovery is a job of ours: replay is one write (tests/office)

Not built yet, so not open: 09 (dedupe keys), 15 (destinations).
"""

from __future__ import annotations

import asyncio
import json

import pytest

from redrive import Dead, Item, Policy, constant, never
from redrive.core.item import Ending, NewItem
from redrive.core.states import State
from redrive.events import Finished, SettleRefused, Started
from tests.support.lab import Lab, Seen, lab

__all__ = ["lab"]


async def test_window_06_a_replayed_item_that_dies_again_is_a_letter_again(lab: Lab) -> None:
    app = await lab.app()

    @app.handler("q", policy=Policy(backoff=never()))
    async def fail() -> None:
        raise ValueError("no")

    item_id = await app.enqueue("q")
    for replays in range(4):
        await lab.drain(app)
        item = await lab.item(item_id)
        assert (item.state, item.replays) == (State.DEAD, replays)
        assert len(await app.letters.find()) == 1
        await app.letters.replay(item_id, reason="again")


async def test_window_07_letters_do_not_expire_under_a_running_worker(lab: Lab) -> None:
    app = await lab.app()

    @app.handler("q", policy=Policy(backoff=never(), max_age="1h"))
    async def fail() -> None:
        raise ValueError("no")

    item_id = await app.enqueue("q")
    await lab.drain(app)
    before = await lab.history(item_id)
    lab.clock.advance("1000d")
    async with lab.working(app):
        await lab.pass_time("1m")
    assert await lab.history(item_id) == before


async def test_window_08_failing_never_deletes(lab: Lab) -> None:
    app = await lab.app()

    @app.handler("q", policy=Policy(backoff=never()))
    async def fail() -> None:
        raise Dead("useless")

    ids = [str(each) for each in await app.enqueue_many("q", [{"number": number} for number in range(20)])]
    await lab.drain(app)
    assert [(await lab.item(item_id)).payload for item_id in ids] == [b'{"number":%d}' % number for number in range(20)]


async def test_window_10_an_unknown_queue_is_not_acked_away(lab: Lab) -> None:
    """Work of a queue that this worker has no handler for stays as it is, ready or lost by its holder."""
    app = await lab.app()
    app.handler("known")(_nothing)
    app.queue("unknown")
    ids = [str(each) for each in await app.enqueue_many("unknown", [{"keep": number} for number in range(3)])]
    await lab.ghost("unknown", limit=1)
    async with lab.working(app):
        await lab.pass_time("5m")
    items = [await lab.item(item_id) for item_id in ids]
    assert [item.state for item in items] == [State.LEASED, State.READY, State.READY]
    assert [json.loads(item.payload) for item in items] == [{"keep": number} for number in range(3)]


UNDECODABLE = (
    b"",
    b"\xff\xfe",
    b"{",
    b"\x80\x04K\x01.",
    b"[" * 100_000,
    b'{"a": 1, "a": 2',
    b"nul\x00",
    '{"a":"\ud800"}'.encode("utf-8", "surrogatepass"),
)


async def test_window_10_an_undecodable_payload_is_dead_lettered_with_its_bytes(lab: Lab) -> None:
    app = await lab.app()
    runs: list[object] = []

    @app.handler("q")
    async def handle(a: object) -> None:
        runs.append(a)

    # Straight into the store, as another program or an older release would have left it.
    await lab.store.put([NewItem(f"strange-{number}", "q", body) for number, body in enumerate(UNDECODABLE)])
    neighbour = await app.enqueue("q", {"a": 1})
    await lab.drain(app)
    for number, body in enumerate(UNDECODABLE):
        found = await lab.history(f"strange-{number}")
        assert found.item.letter is not None, body[:20]
        assert (found.item.letter.reason, found.item.payload) == ("payload", body)
        assert [attempt.ending for attempt in found.attempts] == [Ending.DEAD]
    assert runs == [1]
    assert (await lab.item(neighbour)).state is State.DONE


async def test_window_10_undecodable_letters_can_be_replayed_to_a_handler_that_understands_them(lab: Lab) -> None:
    old, new = await lab.app(), await lab.app()
    got: list[bytes] = []

    @old.handler("q")
    async def strict(a: int) -> None:
        raise AssertionError("it cannot be called")

    @new.handler("q")
    async def tolerant(body: bytes) -> None:
        got.append(body)

    await lab.store.put([NewItem("strange", "q", b"\xff")])
    await lab.drain(old)
    await new.letters.replay("strange", reason="the new release reads it")
    await lab.drain(new)
    assert got == [b"\xff"]
    assert (await lab.item("strange")).state is State.DONE


async def test_window_12_an_old_item_that_dies_now_is_a_fresh_letter(lab: Lab) -> None:
    app = await lab.app()

    @app.handler("q", policy=Policy(backoff=never()))
    async def fail() -> None:
        raise ValueError("no")

    item_id = await app.enqueue("q")
    lab.clock.advance("300d")
    await lab.drain(app)
    letter = (await lab.item(item_id)).letter
    assert letter is not None
    assert lab.clock.now() - letter.died_at < 5_000
    assert [item.id for item in await app.letters.find("died<1m")] == [item_id]


async def test_window_16_crashes_are_counted_on_an_id_that_no_delivery_changes(lab: Lab) -> None:
    """Every delivery has a new number and a new worker; the item and its count stay the same, so poison ends."""
    app = await lab.app()
    app.handler("q", policy=Policy(backoff=constant("1s"), max_crashes=3), lease="10s")(_nothing)
    item_id = await app.enqueue("q")
    for number in range(1, 4):
        (held,) = await lab.ghost("q", worker=f"ghost-{number}", ttl="1s")
        assert (held.id, held.crashes) == (item_id, number - 1)
        await app.pause("q", reason="only the reaper is wanted")
        async with lab.working(app):
            await lab.pass_time("10s")
        await app.resume("q")
    item = await lab.item(item_id)
    assert item.letter is not None
    assert (item.letter.reason, item.crashes) == ("max_crashes", 3)


async def test_window_17_a_bulk_replay_keeps_every_reason(lab: Lab) -> None:
    app = await lab.app()
    broken = [True]

    @app.handler("q", policy=Policy(backoff=never()))
    async def handle(number: int) -> None:
        if broken:
            raise ValueError(f"reason {number}")

    ids = [str(each) for each in await app.enqueue_many("q", [{"number": number} for number in range(10)])]
    await lab.drain(app)
    broken.clear()
    await app.letters.replay("queue:q", reason="fixed")
    await lab.drain(app)
    for number, item_id in enumerate(ids):
        found = await lab.history(item_id)
        assert found.item.state is State.DONE
        assert found.attempts[0].failure is not None
        assert f"reason {number}" in found.attempts[0].failure.text


async def test_window_19_a_lease_shorter_than_the_job_multiplies_nothing(lab: Lab) -> None:
    apps = [await lab.app() for _ in range(3)]
    gate = asyncio.Event()
    runs: list[str] = []

    async def long(item: Item) -> None:
        runs.append(item.id)
        await gate.wait()

    for app in apps:
        app.handler("q", lease="3s", concurrency=2)(long)
    seen = [Seen(app) for app in apps]
    ids = [str(each) for each in await apps[0].enqueue_many("q", [None] * 4)]
    async with lab.working(apps[0]), lab.working(apps[1]), lab.working(apps[2]):
        await lab.pass_time("2m")
        gate.set()
        await lab.until(lambda: sum(len(each.of(Finished)) for each in seen) == 4)
    assert sorted(runs) == sorted(ids)
    assert [(await lab.item(item_id)).deliveries for item_id in ids] == [1] * 4


@pytest.mark.parametrize("late_word", ["done", "fail"])
async def test_window_21_an_ending_names_its_delivery(lab: Lab, late_word: str) -> None:
    """After a rescue the old worker cannot mark the new run done or failed, although id and state would fit."""
    (slow, cut), quick = await lab.faulty(), await lab.app()
    late, current = asyncio.Event(), asyncio.Event()

    @slow.handler("q", lease="10s", concurrency=1)
    async def old() -> None:
        await late.wait()
        if late_word == "fail":
            raise Dead("the old run's word")

    @quick.handler("q", lease="10s", policy=Policy(backoff=constant("1s")))
    async def new() -> str:
        await current.wait()
        return "the new run's word"

    seen, seen_by_new = Seen(slow), Seen(quick)
    item_id = await slow.enqueue("q")
    async with lab.working(slow):
        await lab.until(lambda: bool(seen.of(Started)))
        cut.fail("extend")
        cut.fail("reclaim")
        async with lab.working(quick):
            await lab.until(lambda: bool(seen_by_new.of(Started)))
            late.set()
            await lab.until(lambda: bool(seen.of(SettleRefused)))
            assert (await lab.item(item_id)).state is State.LEASED
            current.set()
            assert await lab.drive(quick.wait(item_id)) == "the new run's word"
        cut.heal()


async def _nothing() -> None:
    return
