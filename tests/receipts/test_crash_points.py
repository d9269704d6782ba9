"""A client dies at any call of its store, or shares it with others: no receipt is lost, and each has one key."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from redrive.core.states import State
from redrive.errors import AppClosed, ReceiptError
from redrive.receipts import Receipt, ReceiptClient
from redrive.receipts.model import final_id
from redrive.testing.faults import FaultyStore, SimulatedCrash
from tests.receipts.target import GONE, REFUSED, SERVER, opened, receipt
from tests.support.lab import Lab, lab, memory_lab
from tests.support.rig.crash import MUTATING, spread

__all__ = ["lab", "memory_lab"]
SCENES: dict[str, tuple[str, Sequence[ReceiptError]]] = {
    "ok": ("done", ()),
    "flaky": ("done", (SERVER,)),
    "down": ("dead", (SERVER,) * 9),
    "refused": ("dead", (REFUSED,) * 9),
    "gone": ("cancelled", (GONE,) * 9),
}
"""By lease: how its receipt must end, and what its calls meet."""


class Broker:
    """The target of one run, which outlives the client."""

    def __init__(self) -> None:
        self.keys: dict[str, set[str]] = defaultdict(set)
        self.accepted: set[str] = set()
        self._calls: Counter[str] = Counter()

    async def __call__(self, said: Receipt, key: str, tenant_id: str | None) -> None:
        self.keys[said.lease_id].add(key)
        errors = SCENES[said.lease_id][1]
        number = self._calls[said.lease_id]
        self._calls[said.lease_id] += 1
        if number < len(errors):
            raise errors[number]
        self.accepted.add(said.lease_id)


async def play(lab: Lab, run: int, point: int | None) -> int:
    """How many points the first client passed. `point`: the one that it dies at."""
    queue, broker = f"run-{run}", Broker()
    kept: dict[str, str] = {}
    faulty = FaultyStore(lab.shared, counted=MUTATING)
    if point is not None:
        faulty.crash_at(point)
    options: dict[str, Any] = {"queue": queue, "max_receipt_retries": 2}
    first = ReceiptClient(None, faulty, transport=broker, clock=lab.clock, log=False, actor="first", **options)
    with suppress(SimulatedCrash, AppClosed):
        await lab.drive(first.open())
        for lease in SCENES:
            kept[lease] = await lab.drive(first.submit(receipt(lease)))
        for item in kept.values():
            await lab.drive(first.wait(item))
    assert faulty.crashed == (point is not None)
    passed = faulty.points
    with suppress(SimulatedCrash):
        await lab.drive(first.close())  # a dead one writes nothing more
    await lab.pass_time("10m")  # the leases of the dead end
    async with opened(lab, broker, **options) as second:
        there = {item.id for item in (await second.app.find(f"queue:{queue}")).items}
        assert set(kept.values()) <= there, f"lost after a crash at point {point}"
        for lease in SCENES:
            if (item := final_id(queue, None, lease)) not in there:
                continue
            await lab.drive(second.wait(item))
            state = (await lab.item(item)).state
            assert state.value == SCENES[lease][0], f"{lease} after a crash at point {point}"
            assert broker.keys[lease] == {item}
            assert (lease in broker.accepted) == (state is State.DONE)
        assert (await second.app.check()).findings == ()
    return passed


@pytest.mark.slow
async def test_r19_r21_a_client_that_dies_at_any_point(memory_lab: Lab) -> None:
    points = await play(memory_lab, 0, None)
    assert points > 20, "there was something to die at"
    for point in range(1, points + 1):
        await play(memory_lab, point, point)


async def test_r19_r21_a_client_that_dies_at_some_point(lab: Lab) -> None:
    points = await play(lab, 0, None)
    # How often a worker looks for work depends on the store, so the last points may not be reached.
    for point in spread(points * 3 // 4, 5):
        await play(lab, point, point)


async def test_r26_two_clients_that_dead_letter_and_a_recovery_lose_none(lab: Lab) -> None:
    accepted: Counter[str] = Counter()

    async def refuse(said: Receipt, key: str, tenant_id: str | None) -> None:
        raise REFUSED

    async def accept_even(said: Receipt, key: str, tenant_id: str | None) -> None:
        if int(said.lease_id.rpartition("-")[2]) % 2:
            raise REFUSED
        accepted[key] += 1

    async def send(client: ReceiptClient, name: str, numbers: range) -> None:
        await asyncio.gather(*(client.send_receipt(receipt(f"{name}-{number}")) for number in numbers))

    async with (
        opened(lab, refuse) as ann,
        opened(lab, refuse) as bob,
        opened(lab, accept_even, work=False) as third,
    ):
        for numbers in (range(20), range(20, 40)):
            sending = [send(ann, "ann", numbers), send(bob, "bob", numbers)]
            await lab.drive(asyncio.gather(*sending, third.recover(concurrency=4)))
        await lab.drive(third.recover(concurrency=4))
        left = {each.id for each in await third.dead_letters.get_all()}
        sent = {final_id("receipts", None, f"{name}-{number}") for name in ("ann", "bob") for number in range(40)}
        assert left | set(accepted) == sent
        assert (len(left), len(accepted), set(accepted.values())) == (40, 40, {1}), "none is lost, none twice"
        assert (await third.app.check()).findings == ()
