"""Whose turn it is: priorities share the leases of a worker, and retries leave room for first attempts."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest

from redrive import Item, Policy, Redrive, never
from redrive.core.item import NewItem, Priority
from redrive.core.lanes import CYCLE
from redrive.core.states import State
from redrive.core.verbs import QueueChange
from redrive.events import Event, Finished
from tests.support.lab import Lab, Seen

SLOTS = 10


async def test_low_and_normal_come_to_their_turn_while_high_waits(lab: Lab) -> None:
    app = await lab.app()
    order: list[str] = []

    @app.handler("q", concurrency=1)
    async def note(item: Item) -> None:
        order.append(item.priority)

    for word, count in ((Priority.HIGH, 200), (Priority.NORMAL, 20), (Priority.LOW, 20)):
        await lab.store.put([NewItem(f"{word}-{number}", "q", b"null", priority=word) for number in range(count)])
    await lab.drain(app)
    assert len(order) == 240
    while_all_wait = order[: 9 * CYCLE]
    for begin in range(len(while_all_wait) - CYCLE + 1):
        seen = while_all_wait[begin : begin + CYCLE]
        assert {str(Priority.LOW), str(Priority.NORMAL)} <= set(seen)
        assert seen.count(Priority.HIGH) == CYCLE - 2


async def replayed(lab: Lab, app: Redrive, count: int) -> None:
    """So many letters of `q` sent back to work."""
    await app.pause("q", reason="to fill it")
    await lab.store.put([NewItem(f"old-{number:05}", "q", b"null") for number in range(count)])
    await app.resume("q")
    seen = Seen(app)
    async with lab.working(app):
        await lab.until(lambda: len(seen.of(Finished)) == count)
    await app.pause("q", reason="to fill it")
    await app.letters.replay("queue:q", reason="fixed")


def watched(app: Redrive, lab: Lab, *, took: Callable[[str], int], slots: int = SLOTS) -> list[tuple[int, int]]:
    """Handles `q`: the first time an `old` one comes, it dies. Notes how many (retries, first attempts) run at each
    start of the second time.
    """
    running: list[str] = []
    log: list[tuple[int, int]] = []

    @app.handler("q", concurrency=slots, policy=Policy(never()))
    async def handle(item: Item) -> None:
        if item.id.startswith("old") and not item.replays:
            raise ValueError("not yet")
        running.append(item.id)
        retries = sum(each.startswith("old") for each in running)
        log.append((retries, len(running) - retries))
        await lab.clock.sleep(took(item.id))
        running.remove(item.id)

    return log


async def test_retries_keep_to_their_share_while_first_attempts_wait_and_borrow_the_rest(lab: Lab) -> None:
    app = await lab.app()
    log = watched(app, lab, took=lambda item_id: 500 + hash_of(item_id) % 1000)
    await replayed(lab, app, 120)
    await lab.store.configure("q", QueueChange(retry_share=0.3))
    await lab.store.put([NewItem(f"new-{number:05}", "q", b"null") for number in range(120)])
    await app.resume("q")
    await lab.drain(app)
    assert len(log) == 240
    # The last first attempt starts while only retries are left to fill up with.
    firsts = [index for index, (retries, others) in enumerate(log) if others]
    while_both_wait = log[: firsts[-1] - SLOTS]
    assert len(while_both_wait) > 100
    assert max(retries for retries, _ in while_both_wait) == 3
    assert max(retries for retries, _ in log) == SLOTS


async def test_without_a_share_the_first_due_goes_first(lab: Lab) -> None:
    app = await lab.app()
    log = watched(app, lab, took=lambda _: 1000)
    await replayed(lab, app, 30)
    await app.configure("q", retry_share="off", reason="in due order")
    await lab.store.put([NewItem(f"new-{number:05}", "q", b"null") for number in range(30)])
    await app.resume("q")
    await lab.drain(app)
    assert max(retries for retries, _ in log[:SLOTS]) == SLOTS


async def test_half_is_the_share_of_a_queue_that_nobody_configured(lab: Lab) -> None:
    app = await lab.app()
    log = watched(app, lab, took=lambda _: 1000)
    await replayed(lab, app, 30)
    await lab.store.put([NewItem(f"new-{number:05}", "q", b"null") for number in range(30)])
    await app.resume("q")
    await lab.drain(app)
    assert log[SLOTS - 1][0] in {SLOTS // 2 - 1, SLOTS // 2}


@pytest.mark.parametrize(("share", "in_forty"), [(0.25, 10), (0.5, 20), (0.1, 4)])
async def test_a_share_of_less_than_a_slot_is_a_slot_now_and_then(lab: Lab, share: float, in_forty: int) -> None:
    app = await lab.app()
    log = watched(app, lab, took=lambda _: 10, slots=1)
    await replayed(lab, app, 60)
    await lab.store.configure("q", QueueChange(retry_share=share))
    await lab.store.put([NewItem(f"new-{number:05}", "q", b"null") for number in range(60)])
    await app.resume("q")
    await lab.drain(app)
    assert len(log) == 120
    # The turns of each priority are counted apart, and each count may be one ahead.
    assert abs(sum(retries for retries, _ in log[:40]) - in_forty) <= 3


async def test_a_new_share_is_obeyed_within_about_a_second(memory_lab: Lab) -> None:
    lab = memory_lab
    app = await lab.app()
    log = watched(app, lab, took=lambda _: 100)
    await replayed(lab, app, 700)
    await app.configure("q", retry_share=None, reason="in due order")
    await lab.store.put([NewItem(f"new-{number:05}", "q", b"null") for number in range(700)])
    await app.resume("q")
    async with lab.working(app):
        await lab.pass_time("3s")
        assert log[-1] == (SLOTS, 0)
        await lab.store.configure("q", QueueChange(retry_share=0.1))
        await lab.pass_time("1200ms")
        log.clear()
        await lab.pass_time("1s")
        assert max(retries for retries, _ in log) == 1


def hash_of(text: str) -> int:
    """The same in every run."""
    return zlib.crc32(text.encode())


async def fresh_latencies(lab: Lab, *, replays: int) -> list[int]:
    """Of first attempts, from enqueue to done, beside so many replays."""
    app = await lab.app()
    took = lambda item_id: 500 + hash_of(item_id) % 1000  # noqa: E731 - a second on average
    watched(app, lab, took=took, slots=50)
    if replays:
        await replayed(lab, app, replays)
    # Retries take the share that they have: with 70 % it must not fill the slots, or there is no end to waiting.
    await lab.store.configure("q", QueueChange(retry_share=0.2))
    begun: dict[str, int] = {}
    ended: dict[str, int] = {}

    def hear(event: Event) -> None:
        if isinstance(event, Finished) and event.state == State.DONE:
            ended[event.id] = lab.clock.monotonic()

    app.events.subscribe(hear)
    if replays:
        await app.resume("q")
    async with lab.working(app):
        for number in range(1000):
            item_id = f"new-{replays}-{number}"
            begun[item_id] = lab.clock.monotonic()
            await app.enqueue("q", id=item_id)
            await lab.pass_time("28ms")  # 70 % of what fifty slots do
        await lab.until(lambda: len([each for each in ended if each.startswith("new")]) == 1000)
        left = len([each for each in ended if each.startswith("old")])
        assert left < replays or not replays, "the replays must last as long as the load"
    return sorted(ended[item_id] - at for item_id, at in begun.items())


@pytest.mark.slow
async def test_gap13_a_large_replay_hardly_delays_first_attempts(memory_lab: Lab) -> None:
    """At 70 % load, p95 from enqueue to done rises by less than a fifth; with no such load replays use every slot."""
    calm = await fresh_latencies(memory_lab, replays=0)
    p95 = calm[len(calm) * 95 // 100]
    busy = await fresh_latencies(memory_lab, replays=2_000)
    assert busy[len(busy) * 95 // 100] < 1.2 * p95
