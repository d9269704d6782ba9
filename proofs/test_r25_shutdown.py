"""R25 shutdown. A worker told to stop is gone after its grace; unfinished items are given back uncharged.

What it finished stays finished.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from redrive import Redrive
from redrive.cli.exits import Exit
from redrive.core.item import Ending, Item
from redrive.core.states import State
from redrive.stores.url import store_from_url
from tests.support.rig.fleet import Member
from tests.support.rig.handlers import MIX
from tests.support.rig.log import Log, read_all
from tests.support.rig.owntime import OwnTime
from tests.support.rig.patience import eventually
from tests.support.rig.producer import Producer
from tests.support.rig.serving import Serving
from tests.support.rig.size import ROLLING, proof_size
from tests.support.rig.survey import Survey, survey
from tests.support.rig.verdict import judge

SIZE = f"{ROLLING[proof_size()].stops} rolling stops"

LEASE = 30.0
SOON = 2.0
"""Seconds after the grace in which a worker must be gone: how long the harness waits for it."""
START = 60.0
"""Seconds for what has no bound of its own, on a machine that is busy with other things."""
GRACE = 0.3
TOO_LONG = ("long", "stuck", "stuck-sync")
SLOTS = 3


class Stage:
    """One store, its producer, and workers that come and go."""

    def __init__(self, url: str, logs: Path, queues: Sequence[str]) -> None:
        self.url, self.logs = url, logs
        self.store = store_from_url(url)
        self.app = Redrive(self.store, log=False)
        for queue in queues:
            self.app.queue(queue)
        self.producer = Producer(self.app, Log(self.logs / "producer.log"))

    def serving(self, grace: str, **more: str) -> Serving:
        return Serving(self.url, self.logs, grace=grace, lease=LEASE, **more)

    async def items(self) -> list[Item]:
        return [final.item for final in (await survey(self.store)).finals.values()]

    async def judged(self, grace: str = "5s", handlers: str = "stopping", limit: float = 60) -> Survey:
        """What another worker makes of what was left, and the checker of all of it."""
        with self.serving(grace, handlers=handlers) as fleet:
            fleet.start()
            await eventually(self.nothing_left, limit=limit, what="the queues are empty")
            await fleet.retire()
        found = await survey(self.store)
        verdict = judge(read_all(self.logs), found)
        assert not verdict.faults, verdict.report()
        return found

    async def nothing_left(self) -> bool:
        return not any(row.ready or row.leased for row in (await self.store.tally()).queues)


async def gone(fleet: Serving, member: Member, limit: float) -> int | None:
    """The exit code of a worker that was told to stop. It must not take longer than the limit, by its own time."""
    own, took = OwnTime(member.pid), 0.0

    def is_gone() -> bool:
        nonlocal took
        took = own.look()
        return not member.alive

    await eventually(is_gone, limit=limit + START, what=f"the worker is gone: {fleet.complaints()}")
    assert took <= limit, f"{took:.2f} s, and {limit} s are allowed: {fleet.complaints()}"
    return member.process.returncode


async def running(fleet: Serving, count: int) -> Member:
    member = fleet.start()
    await eventually(lambda: len(member.look()) == count, limit=START, what=f"{count} handlers run")
    return member


async def told(fleet: Serving, text: str) -> None:
    await eventually(lambda: text in fleet.complaints(), limit=START, what=f"the worker says {text!r}")


async def check_given_back(stage: Stage) -> None:
    """Ready at once, and as if nothing had happened; but the history says what happened."""
    now = (await stage.store.tally()).at
    for final in (await survey(stage.store)).finals.values():
        item = final.item
        assert (item.state, item.attempt, item.errors, item.crashes) == (State.READY, 0, 0, 0), item
        assert item.due_at <= now
        assert [attempt.ending for attempt in final.attempts] == [Ending.RELEASED]


async def test_r25_what_ends_within_the_grace_is_done_and_nothing_new_is_taken(on_file: str, tmp_path: Path) -> None:
    stage = Stage(on_file, tmp_path, ["short", "short-sync"])
    async with stage.app:
        for queue in ("short", "short-sync"):
            for number in range(SLOTS + 2):
                await stage.producer.enqueue(queue, f"{queue}-{number}")
        with stage.serving("20s") as fleet:
            member = await running(fleet, 2 * SLOTS)
            fleet.terminate(member)
            await told(fleet, "SIGTERM: stopping")
            (stage.logs / "go").touch()
            assert await gone(fleet, member, 20 + SOON) == Exit.DONE
        items = await stage.items()
        assert sorted(item.state for item in items) == [State.DONE] * 2 * SLOTS + [State.READY] * 4
        assert all(item.deliveries == (item.state is State.DONE) for item in items)
        found = await stage.judged()
    assert {final.item.deliveries for final in found.finals.values()} == {1}


@pytest.mark.parametrize("queue", TOO_LONG)
async def test_r25_what_does_not_end_is_given_back_uncharged(on_file: str, tmp_path: Path, queue: str) -> None:
    await too_long(on_file, tmp_path, [queue])


async def too_long(url: str, logs: Path, queues: Sequence[str]) -> None:
    stage = Stage(url, logs, queues)
    async with stage.app:
        for queue in queues:
            for number in range(SLOTS):
                await stage.producer.enqueue(queue, f"{queue}-{number}")
        with stage.serving(f"{GRACE}s") as fleet:
            member = await running(fleet, SLOTS * len(queues))
            fleet.terminate(member)
            assert await gone(fleet, member, GRACE + SOON) == Exit.DONE, fleet.complaints()
        await check_given_back(stage)
        found = await stage.judged()
    assert {(final.item.state, final.item.attempt) for final in found.finals.values()} == {(State.DONE, 1)}


async def test_r25_a_second_sigterm_ends_the_grace(on_file: str, tmp_path: Path) -> None:
    queues = ("short", "short-sync", *TOO_LONG)
    stage = Stage(on_file, tmp_path, queues)
    async with stage.app:
        for queue in queues:
            await stage.producer.enqueue(queue, f"{queue}-0")
        with stage.serving("1h") as fleet:
            member = await running(fleet, len(queues))
            fleet.terminate(member)
            await told(fleet, "SIGTERM: stopping")
            assert member.alive
            fleet.terminate(member)
            assert await gone(fleet, member, SOON) == Exit.INTERRUPTED, fleet.complaints()
        await check_given_back(stage)
        await stage.judged()


async def test_r25_a_handler_that_blocks_the_loop_does_not_keep_the_process(on_file: str, tmp_path: Path) -> None:
    """Nobody can give its item back, for the loop is blocked: its lease runs out, and that is a crash."""
    stage = Stage(on_file, tmp_path, ["blocking"])
    async with stage.app:
        await stage.producer.enqueue("blocking", "blocking-0")
        with Serving(stage.url, stage.logs, grace=f"{GRACE}s", lease=0.5) as fleet:
            member = await running(fleet, 1)
            fleet.terminate(member)
            assert await gone(fleet, member, GRACE + SOON) == Exit.FAILED
            assert "blocks the event loop" in fleet.complaints()
        found = await stage.judged()
    (final,) = found.finals.values()
    assert [attempt.ending for attempt in final.attempts] == [Ending.CRASHED, Ending.DONE]


@pytest.mark.parametrize("strike", ["before lease", "after lease", "before settle", "after settle"])
async def test_r25_a_sigterm_in_the_middle_of_a_lease_loses_nothing(on_file: str, tmp_path: Path, strike: str) -> None:
    await struck(on_file, tmp_path, strike)


async def struck(url: str, logs: Path, strike: str) -> None:
    """Settling leases the next: both are places where the store gives what the worker no longer wants."""
    stage = Stage(url, logs, (*MIX, "leaf"))
    async with stage.app:
        for number in range(80):
            await stage.producer.enqueue(MIX[number % len(MIX)], f"item-{number:02}")
        with stage.serving("5s", handlers="mix", strike=strike) as fleet:
            assert await gone(fleet, fleet.start(), START + 5 + SOON) == Exit.DONE
        items = await stage.items()
        assert not [item for item in items if item.state is State.LEASED]
        assert [item for item in items if item.state is State.READY], "it went on as if nothing had been said"
        await stage.judged(handlers="mix")


async def stopped_at_random(stage: Stage, dice: random.Random, spell: float) -> None:
    grace = dice.choice([0, 0.01, 0.05, 1])
    with stage.serving(f"{int(grace * 1000)}ms", handlers="mix") as fleet:
        member = fleet.start()
        if dice.random() < 0.9:
            await eventually(lambda: member.ready, limit=START, what="the worker runs")
        await asyncio.sleep(dice.random() * spell)  # noqa: TID251 - the random moment
        fleet.terminate(member)
        # Told before it could listen, it dies of the signal; it has nothing in hand then.
        assert await gone(fleet, member, grace + SOON) in (Exit.DONE, -signal.SIGTERM), fleet.complaints()
    assert not any(row.leased for row in (await stage.store.tally()).queues)


@pytest.mark.timeout(900)
async def test_r25_rolling_restarts_cost_nothing(shared: str, tmp_path: Path) -> None:
    """Stopped at random moments, its start and its end included, again and again: no crash is ever charged."""
    size = ROLLING[proof_size()]
    dice = random.Random(25)
    stage = Stage(shared, tmp_path, (*MIX, "leaf"))
    async with stage.app:
        work = [(dice.choice(MIX), f"item-{number:06}") for number in range(size.items)]
        await stage.producer.enqueue_all(work)
        for _ in range(size.stops):
            await stopped_at_random(stage, dice, size.spell)
        found = await stage.judged(handlers="mix", limit=300)
    assert {final.item.crashes for final in found.finals.values()} == {0}
    released = [
        attempt for final in found.finals.values() for attempt in final.attempts if attempt.ending == "released"
    ]
    print(f"{len(found.finals)} items, {size.stops} stops, {len(released)} released")  # noqa: T201 - shown by -s
    assert released, "no stop ever met a running handler"
