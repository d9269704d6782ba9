"""Fresh work first, also where the queue gives little: under a rate, and through a breaker that is open."""

from __future__ import annotations

import pytest

from redrive import Item, Policy, Redrive, constant
from redrive.core.acts import Replay
from redrive.core.gate import gate_config
from redrive.core.item import Millis, NewItem
from redrive.core.meters import Rate
from redrive.core.select import Ids
from redrive.core.verbs import QueueChange
from redrive.testing.conformance.kit import act
from tests.engine.gated import behind, view
from tests.promises.test_retry_lane import letters
from tests.support.lab import Lab

RATE = 50
SHARE = 0.2
WINDOW: Millis = 100
"""Of the store's time, beyond what the rate allows: five more leases."""


class Ended:
    """Handles `q`: what ended, in order, with the time."""

    def __init__(self, lab: Lab, app: Redrive) -> None:
        self.log: list[tuple[Millis, Item]] = []
        self.broken = False

        @app.handler("q", concurrency=10, policy=Policy(backoff=constant("1s"), max_attempts=None))
        async def handle(item: Item) -> None:
            if self.broken:
                raise ConnectionError("no answer")
            self.log.append((lab.clock.now(), item))

    def fresh(self) -> list[Millis]:
        return [at for at, item in self.log if item.id.startswith("new")]


async def replay(lab: Lab, count: int) -> None:
    ids = await letters(lab, count)
    for start in range(0, count, 1000):
        await lab.store.amend(Ids(ids[start : start + 1000]), Replay(), act())


async def put(lab: Lab, count: int, name: str = "new") -> Millis:
    await lab.shared.put([NewItem(f"{name}-{number}", "q", b"null") for number in range(count)])
    return lab.clock.now()


@pytest.mark.slow
async def test_gap13_fresh_work_is_not_held_up_by_a_replay_under_a_rate(lab: Lab) -> None:
    """Ten first attempts beside 2,000 replayed letters at 50 a second: they have four of five leases."""
    await replay(lab, 2_000)
    await lab.store.configure("q", QueueChange(rate=Rate(RATE), retry_share=SHARE))
    app = await lab.app()
    ended = Ended(lab, app)
    async with lab.working(app):
        await lab.pass_time("3s")
        assert len(ended.log) >= 3 * RATE, "the replay has all that no first attempt uses"
        began = await put(lab, 10)
        await lab.until(lambda: len(ended.fresh()) == 10)
        assert ended.fresh()[-1] - began <= 1000 * 10 / (RATE * (1 - SHARE)) + WINDOW
        # While first attempts wait, retries have their share: no less, and no more.
        ended.log.clear()
        began = await put(lab, 200, "new-many")
        await lab.until(lambda: len(ended.fresh()) == 200)
        took = ended.fresh()[-1] - began
        assert took == pytest.approx(1000 * 200 / (RATE * (1 - SHARE)), rel=0.1)
        assert len(ended.log) - 200 == pytest.approx(200 * SHARE / (1 - SHARE), abs=5)
        assert sum(at >= began for at, _ in ended.log) <= took * RATE / 1000 + 5


@pytest.mark.slow
async def test_gap13_fresh_work_is_not_held_up_by_a_replay_behind_a_breaker(lab: Lab) -> None:
    """Ten first attempts beside 200 replayed letters, with one probe each 100 ms."""
    await replay(lab, 200)
    every = gate_config(interval="100ms", longest="100ms", successes=1_000, retry_share=None)
    app = await lab.app()
    ended = Ended(lab, app)
    ended.broken = True
    await behind(lab, every)
    await lab.store.configure("q", QueueChange(retry_share=SHARE))
    async with lab.working(app):
        await lab.pass_time("5s")
        ended.broken = False
        await lab.pass_time("2s")
        assert (await view(lab)).state != "closed"
        assert ended.log, "no probe came through: this proves nothing"
        began = await put(lab, 10)
        ended.log.clear()
        await lab.until(lambda: len(ended.fresh()) == 10)
        assert (await view(lab)).state != "closed"
        assert ended.fresh()[-1] - began == 100 * len(ended.log), "no probe is left out for the share"
        # Within three leases of the share, wherever the worker's count of turns began (ADR 36).
        assert 1 <= len(ended.log) - 10 <= SHARE * len(ended.log) + 3
