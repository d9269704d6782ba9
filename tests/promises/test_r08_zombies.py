"""R8: a worker that wakes after its lease was given away writes nothing: every late word of it is refused."""

from __future__ import annotations

import asyncio

import pytest

from redrive import Dead, Item, Policy, Snooze, constant
from redrive.core.item import Ending
from redrive.core.states import State
from redrive.events import Finished, LeaseLost, SettleRefused, Started
from tests.support.lab import Lab, Seen

LATE = ("done", "fail", "dead", "snooze", "extend")
QUICK = Policy(backoff=constant("1s"))


class Zombie:
    """Two apps on one store: the first is cut off until its lease is gone, the second holds the item and runs."""

    def __init__(self, lab: Lab, mode: str) -> None:
        self.lab = lab
        self.mode = mode
        self.late, self.current = asyncio.Event(), asyncio.Event()
        self.cancelled: list[int] = []

    async def handle_late(self, item: Item) -> None:
        try:
            await self.late.wait()
        except asyncio.CancelledError:
            self.cancelled.append(item.deliveries)
            raise
        if self.mode == "fail":
            raise ValueError("too late")
        if self.mode == "dead":
            raise Dead("too late")
        if self.mode == "snooze":
            raise Snooze("1h")

    async def handle(self, item: Item) -> str:
        await self.current.wait()
        return f"delivery {item.deliveries}"


@pytest.mark.parametrize("mode", LATE)
async def test_r8_a_late_word_changes_nothing_while_the_new_holder_runs(lab: Lab, mode: str) -> None:
    zombie = Zombie(lab, mode)
    (slow, cut), quick = await lab.faulty(), await lab.app()
    slow.handler("q", lease="10s", policy=QUICK, concurrency=1)(zombie.handle_late)
    quick.handler("q", lease="10s", policy=QUICK)(zombie.handle)
    seen, seen_by_new = Seen(slow), Seen(quick)
    item_id = await slow.enqueue("q")
    async with lab.working(slow):
        await lab.until(lambda: bool(seen.of(Started)))
        for verb in ("extend", "reclaim"):
            cut.fail(verb)
        async with lab.working(quick):
            await lab.until(lambda: bool(seen_by_new.of(Started)))
            before = await lab.history(item_id)
            assert (before.item.state, before.item.deliveries) == (State.LEASED, 3)
            if mode == "extend":
                for verb in ("extend", "reclaim"):
                    cut.heal(verb)
                await lab.until(lambda: bool(seen.of(LeaseLost)))
                await lab.quiet()
            else:
                zombie.late.set()
                await lab.until(lambda: bool(seen.of(SettleRefused)))
            after = await lab.history(item_id)
            # The new holder's keeper may have prolonged its lease meanwhile; nothing else may differ.
            assert _without_lease(after.item) == _without_lease(before.item)
            assert after.attempts == before.attempts
            zombie.current.set()
            await lab.until(lambda: any(event.state == "done" for event in seen_by_new.of(Finished)))
            cut.heal()
    final = await lab.history(item_id)
    assert await quick.wait(item_id) == "delivery 3"
    assert (final.item.state, final.item.errors, final.item.crashes) == (State.DONE, 0, 1)
    assert [attempt.ending for attempt in final.attempts] == [Ending.CRASHED, Ending.DONE]
    if mode == "extend":
        assert [event.delivery for event in seen.of(LeaseLost)] == zombie.cancelled == [1]
        assert seen.of(SettleRefused) == []
    else:
        assert [event.delivery for event in seen.of(SettleRefused)] == [1]


def _without_lease(item: Item) -> dict[str, object]:
    return {name: getattr(item, name) for name in item.__struct_fields__ if name != "lease_until"}


@pytest.mark.parametrize("mode", ["done", "fail", "dead", "snooze"])
async def test_r8_a_late_word_after_the_end_changes_nothing(lab: Lab, mode: str) -> None:
    zombie = Zombie(lab, mode)
    zombie.current.set()
    (slow, cut), quick = await lab.faulty(), await lab.app()
    slow.handler("q", lease="10s", policy=QUICK, concurrency=1)(zombie.handle_late)
    quick.handler("q", lease="10s", policy=QUICK)(zombie.handle)
    seen = Seen(slow)
    item_id = await slow.enqueue("q")
    async with lab.working(slow):
        await lab.until(lambda: bool(seen.of(Started)))
        for verb in ("extend", "reclaim"):
            cut.fail(verb)
        await lab.drain(quick)
        before = await lab.history(item_id)
        zombie.late.set()
        await lab.until(lambda: bool(seen.of(SettleRefused)))
        assert await lab.history(item_id) == before
    assert before.item.state is State.DONE
