"""R23: a herd of retries is spread, and neither a dead endpoint nor a flood makes the others wait."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial

import pytest

from redrive import Item, Policy, constant
from redrive.core.item import NewItem, Terms
from redrive.core.select import Match
from redrive.core.verbs import GateWrite, QueueChange
from redrive.testing.conformance.kit import asking, released
from tests.support.lab import Lab
from tests.support.rig.waits import Waits

WINDOW = 20_000
"""Milliseconds over which a backoff of 10 s with full jitter spreads."""
HEALTHY = 20
SLOTS = 20
TAKES = 100


async def herd(lab: Lab, count: int) -> None:
    """All fail in the same instant, and so would be due in the same instant again."""
    app = await lab.app()
    runs: Counter[int] = Counter()

    @app.handler("herd", policy=Policy(backoff=constant("10s", jitter=1.0)), concurrency=500)
    async def handle(item: Item) -> None:
        runs[item.errors] += 1
        if not item.errors:
            raise ConnectionError("down for a moment")

    ids = [f"item-{number}" for number in range(count)]
    for start in range(0, count, 1000):
        await lab.store.put([NewItem(item_id, "herd", b"null") for item_id in ids[start : start + 1000]])
    failed_at = lab.clock.now()
    async with lab.working(app):
        await lab.quiet()
        assert runs[0] == count
        assert lab.clock.now() == failed_at, "not all failed in the same instant"
        due = await _due_times(lab, failed_at)
        assert len(due) + runs[1] == count
        assert max(due) - min(due) >= 0.8 * WINDOW
        tenths = Counter(moment * 10 // (WINDOW + 1) for moment in due)
        # A fair die puts a tenth into each; twice as many is far beyond luck.
        assert max(tenths.values()) <= count * 0.2
        await lab.until(lambda: runs[1] == count)
        await lab.quiet()
    assert lab.clock.now() - failed_at <= WINDOW + 2_000
    (row,) = (await lab.store.tally()).queues
    assert (row.done, row.ready, row.leased) == (count, 0, 0)


async def _due_times(lab: Lab, since: int) -> list[int]:
    due: list[int] = []
    cursor = None
    while True:
        page = await lab.store.find(Match("state", "=", "ready"), 1000, cursor)
        due += [item.due_at - since for item in page.items]
        cursor = page.next
        if cursor is None:
            return due


@pytest.mark.slow
async def test_r23_a_herd_of_retries_is_spread(lab: Lab) -> None:
    await herd(lab, 300)


# --- a dead endpoint ------------------------------------------------------------------------------------------------


def _event(key: str, name: str) -> NewItem:
    return NewItem(name, "hooks", b"null", terms=Terms(order_key=key))


async def healthy(lab: Lab, waits: Waits, name: str) -> None:
    """For ten seconds each endpoint gets an event a second: a tenth of what the slots can do."""
    for number in range(10):
        # All but one, whose slot the dead endpoint may have.
        expected = waits.begun + HEALTHY - 1
        await lab.shared.put([_event(f"ep-{one}", f"{name}-{one}.{number}") for one in range(HEALTHY)])
        await lab.noticed(partial(waits.has_begun, expected))
        await lab.clock.sleep(1_000)


async def dead_endpoint(lab: Lab, count: int) -> None:
    """Its events are ordered, so that only one of them is ever tried at a time, however many wait."""
    app = await lab.app()
    waits = Waits(lab, app, "hooks", slots=SLOTS, takes=TAKES)
    waits.fails = lambda item: item.id.startswith("dead")
    async with lab.working(app):
        await lab.drive(healthy(lab, waits, "alone"))
        for start in range(0, count, 1000):
            size = min(1000, count - start)
            await lab.shared.put([_event("dead", f"dead.{start + number}") for number in range(size)])
        await lab.drive(healthy(lab, waits, "beside"))
        await lab.pass_time("1s")
    assert waits.of["dead"], "nobody called the dead endpoint: this proves nothing"
    assert sum(len(waits.of[f"beside-{one}"]) for one in range(HEALTHY)) == 10 * HEALTHY
    # A slot that the dead one has just taken is free again after what one item takes.
    assert waits.p95("beside") <= max(2 * waits.p95("alone"), TAKES)


@pytest.mark.slow
async def test_r23_a_dead_endpoint_does_not_hold_up_the_healthy(lab: Lab) -> None:
    await dead_endpoint(lab, 300)


# --- a flood --------------------------------------------------------------------------------------------------------


async def flood(lab: Lab, count: int) -> None:
    """One tenant puts more than can be done for hours; the others go on as if it were not there."""
    app = await lab.app()
    waits = Waits(lab, app, "tenants", slots=SLOTS, takes=TAKES)
    await lab.store.configure("tenants", QueueChange(max_per_key=SLOTS // 2))
    for start in range(0, count, 1000):
        size = min(1000, count - start)
        await lab.store.put([_of_tenant("flood", f"flood.{start + number}") for number in range(size)])

    async def others() -> None:
        for number in range(10):
            await lab.shared.put([_of_tenant(f"t{one}", f"other-{one}.{number}") for one in range(5)])
            await lab.clock.sleep(100)

    async with lab.working(app):
        await lab.drive(others())
        await lab.pass_time("1s")
    assert len(waits.of["flood"]) >= 5 * SLOTS // 2, "the flood was not served at all"
    assert waits.p95("other") <= TAKES
    assert sum(len(waits.of[f"other-{one}"]) for one in range(5)) == 50


def _of_tenant(key: str, name: str) -> NewItem:
    return NewItem(name, "tenants", b"null", terms=Terms(limit_key=key))


@pytest.mark.slow
async def test_r23_a_tenant_that_floods_does_not_hold_up_the_others(lab: Lab) -> None:
    await flood(lab, 300)


# --- probes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("probes", [1, 3])
async def test_r23_a_shut_gate_lets_no_more_probes_through_than_configured(lab: Lab, probes: int) -> None:
    """Many workers ask all the time, in two queues behind the same gate: the fleet has one meter."""
    interval = 30_000
    store = lab.store
    for queue in ("a", "b"):
        await store.configure(queue, QueueChange(gate="smtp"))
        await store.put([NewItem(f"{queue}-{number}", queue, b"null") for number in range(50)])
    await store.set_gate(GateWrite("smtp", 0, interval=interval * 1000 // probes, burst=probes, shut=True))
    given: list[int] = []
    for _ in range(20):
        asked = [asking(10, queue=queue, worker=f"w{number}-{queue}") for number in range(4) for queue in ("a", "b")]
        leases = await asyncio.gather(*(store.lease(request) for request in asked))
        items = [item for one in leases for item in one.items]
        given.append(len(items))
        if items:
            await store.settle([released(item) for item in items])
        lab.clock.advance(interval // 4)
    assert given[0] == 0, "shut means nothing at first"
    windows = [sum(given[start : start + 4]) for start in range(len(given) - 4)]
    assert max(windows) <= probes + 1
    assert sum(given) <= probes * (1 + len(given) // 4)
    assert sum(given) >= probes * (len(given) // 4 - 1), "no probes at all: nobody would ever know that it is back"
