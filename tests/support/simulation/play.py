"""One simulation from its seed to its verdict."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import SimpleNamespace
from unittest import mock

from redrive.core.acts import (
    Act,
    Discard,
    Replay,
)
from redrive.core.item import Millis
from redrive.core.select import And, Ids, Match
from redrive.core.verbs import QueueChange
from redrive.engine import heartbeat, ids
from redrive.errors import Conflict, NotFound, OutcomeUnknown, RedriveError, StoreError
from redrive.office.schedules import Schedules
from tests.support.rig import records as r
from tests.support.simulation.checks import verdict_on
from tests.support.simulation.handlers import KINDS, ORDERED, SCHEDULE, TIMED, WORK
from tests.support.simulation.loop import PROCESS, Deadlock, Livelock, SimulatedLoop
from tests.support.simulation.world import Node, Through, WorkerNode, World

LETTERS = And((Match("state", "=", "dead"), Match("disposition", "=", "open")))
JUMPS: tuple[Millis, ...] = (-3_600_000, -5_000, 5_000, 3_600_000)

LAST_TICK: Millis = 7_000
"""After so long no scheduler fires a schedule that was removed."""


@dataclass(frozen=True)
class Outcome:
    seed: int
    history: str
    """A hash of everything that happened."""
    faults: dict[str, dict[str, str]]
    summary: str
    notes: tuple[str, ...]

    def report(self) -> str:
        lines = [f"seed {self.seed}: {self.summary}"]
        for name, why in self.faults.items():
            lines += [f"  {name}: {key}: {text}" for key, text in why.items()]
        lines.append(f"this seed again: python -m tests.support.simulation {self.seed} --trace")
        return "\n".join(lines)


class ProducerNode(Node):
    """Enqueues what is left of the work; one that is started again goes on where the other was killed."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "producer")
        dice, plan = world.dice, world.plan
        self._work = [self._draw(number) for number in range(plan.items)]
        for number in range(plan.ordered):
            kind = dice.choice(("ok", "ok", "flaky", "dead", "slow"))
            key = f"key-{number % 2}"
            self._work.append((ORDERED, f"{key}.{number}", kind, 0, key))
        self._work.sort(key=lambda each: each[0] == ORDERED and dice.random() < 0.5)
        self._pause = plan.span * 3 // 2 // len(self._work)

    def _draw(self, number: int) -> tuple[str, str, str, Millis, str | None]:
        dice = self.world.dice
        kind = dice.choice(KINDS)
        delay = dice.randrange(self.world.plan.lease) if dice.random() < 0.2 else 0
        return TIMED if kind == "overdue" and self.world.plan.timed else WORK, f"item-{number:02}", kind, delay, None

    async def work(self) -> None:
        await self.open()
        while self._work:
            queue, item_id, kind, delay, key = self._work.pop(0)
            await self._enqueue(queue, item_id, kind, delay, key)
            if self.world.dice.random() < 0.6:
                await self.world.sleep(self.world.dice.randrange(self._pause))
        await self.app.close()
        self.finished = True

    async def _enqueue(self, queue: str, item_id: str, kind: str, delay: Millis, key: str | None) -> None:
        world = self.world
        world.log(r.Invoke(item_id, queue, world.ns, world.store_time(), delay))
        try:
            await self.app.enqueue(queue, {"kind": kind}, id=item_id, delay=delay / 1000, order_key=key)
        except OutcomeUnknown:
            world.log(r.Told(item_id, "unknown", world.ns))
        except RedriveError:
            world.log(r.Told(item_id, "fail", world.ns))
        else:
            world.log(r.Told(item_id, "ok", world.ns))


class OperatorNode(Node):
    """Meanwhile replays and discards letters, cancels items, pauses queues and stops workers."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "operator")
        self._stopped: set[int] = set()

    async def work(self) -> None:
        await self.open()
        dice, plan = self.world.dice, self.world.plan
        acts = (self._letters, self._letters, self._letters, self._cancel, self._cancel, self._pause, self._stop_one)
        while self.world.weather.stormy:
            await self.world.sleep(dice.randrange(plan.lease))
            # A conflict: the worker that it wants to stop has ended meanwhile.
            with suppress(StoreError, Conflict):
                await dice.choice(acts)()
        self.finished = True

    async def _letters(self) -> None:
        for letter in (await self.app.letters.find(limit=5)).items:
            await self._act_on(letter.id)

    async def _act_on(self, item_id: str) -> None:
        letters = self.app.letters
        if self.world.dice.random() < 0.7:
            self.world.replays[item_id] += 1
            request = f"replay-{item_id}-{self.world.replays[item_id]}"
            await self._surely(lambda: letters.replay([item_id], reason="again", request_id=request))
        else:
            await self._surely(lambda: letters.discard([item_id], reason="not needed"))

    async def _cancel(self) -> None:
        item_id = f"item-{self.world.dice.randrange(self.world.plan.items):02}"
        await self.app.cancel([item_id], reason="not needed", force=self.world.dice.random() < 0.3)

    async def _pause(self) -> None:
        if self.world.dice.random() < 0.5:
            await self.app.pause(WORK, reason="to look at it")
        else:
            await self.app.resume(WORK)

    async def _stop_one(self) -> None:
        alive = [beat for beat in await self.app.workers() if beat.alive and beat.facts.pid not in self._stopped]
        if alive:
            chosen = self.world.dice.choice(alive)
            self._stopped.add(chosen.facts.pid)
            self.world.log(r.Struck(chosen.facts.pid, "term", self.world.ns))
            await self.app.stop_worker(chosen.worker, reason="to be replaced", at_once=self.world.dice.random() < 0.5)

    async def _surely(self, request: Callable[[], Awaitable[object]]) -> None:
        """A request of unknown outcome is made again."""
        for _ in range(4):
            try:
                await request()
            except StoreError:
                await self.world.sleep(100)
            else:
                return


class Nemesis:
    def __init__(self, world: World, workers: list[WorkerNode], producer: ProducerNode) -> None:
        self._world = world
        self._workers = workers
        self._producer = producer

    async def act(self) -> None:
        plan, dice = self._world.plan, self._world.dice
        for _ in range(plan.blows):
            await self._world.sleep(dice.randrange(2 * plan.span // plan.blows))
            self._strike(dice.choice(plan.nemeses), dice.choice(self._workers))

    def _strike(self, what: str, node: WorkerNode) -> None:
        world, lease = self._world, self._world.plan.lease
        if what == "store clock":
            world.jump_store(world.dice.choice(JUMPS))
        elif what == "worker clock":
            node.process.wall_offset += world.dice.choice(JUMPS)
        elif what == "producer crash":
            if self._producer.running and not self._producer.finished:
                self._producer.crash()
        elif not node.running or node.process.paused:
            return
        elif what == "crash":
            node.crash()
        elif what == "pause":
            node.pause()
            self._later(node.resume)
        elif what == "stop":
            node.stop()
        elif what == "partition":
            node.wire.cut(world.dice.randrange(lease // 4, 3 * lease))

    def _later(self, act: Callable[[], None]) -> None:
        world = self._world
        world.loop.call_later(world.dice.randrange(3 * world.plan.lease) / 1000, act)

    async def restart(self) -> None:
        """A supervisor: whatever has ended starts again after a while, under a new name."""
        world = self._world
        while not world.over:
            await world.sleep(world.dice.randrange(200, world.plan.lease))
            for node in self._workers:
                if not node.running:
                    node.start()
            if not self._producer.running and not self._producer.finished:
                self._producer.start()


async def _play(world: World) -> None:
    await world.memory.open()
    loop, plan = world.loop, world.plan
    producer = ProducerNode(world)
    workers = [WorkerNode(world, f"worker-{number}") for number in range(plan.workers)]
    operator = OperatorNode(world)
    nemesis = Nemesis(world, workers, producer)
    for node in (producer, *workers, *([operator] if "operator" in plan.nemeses else [])):
        node.start()
    supervisor = loop.start(loop.outside, nemesis.restart())
    await nemesis.act()
    await world.sleep(max(0, plan.span - world.now))
    world.weather.stormy = False
    for node in workers:
        node.resume()
    await _drain(world, producer, operator)
    supervisor.cancel()
    await _stop(world, workers)


async def _drain(world: World, producer: ProducerNode, operator: OperatorNode) -> None:
    """Until all has ended; whatever has not by the limit is stuck."""
    limit = world.now + world.plan.drain
    busy_at = world.now
    while world.now < limit:
        rows = (await world.memory.tally()).queues
        live = sum(row.ready + row.leased + row.held + row.parked for row in rows)
        at_work = operator.at_work or any(node.unsettled for node in world.nodes)
        if live or at_work or not producer.finished or not all(task.done() for task in world.late):
            busy_at = world.now
        elif world.now - busy_at >= (LAST_TICK if world.plan.schedule else 0):
            return
        await _mend(world)
        await world.sleep(world.plan.lease // 2)


async def _mend(world: World) -> None:
    """Nothing behind a letter runs, under its order key or for want of room in its route, before it is looked at."""
    waiting = LETTERS if world.plan.route else And((LETTERS, Match("queue", "=", ORDERED)))
    for letter in (await world.memory.find(waiting, 5)).items:
        change = Discard() if world.replays[letter.id] else Replay()
        world.replays[letter.id] += 1
        await world.memory.amend(Ids((letter.id,)), change, Act("drain", "others wait", f"{letter.id}-{change}"))
    for row in (await world.memory.tally()).queues:
        if row.paused:
            await world.memory.configure(row.queue, QueueChange(paused=False))
    if world.plan.schedule:
        # A worker that began before the end of the faults may declare it once more.
        with suppress(NotFound):
            await Schedules(world.memory, actor="drain").remove(SCHEDULE, reason="the end")
            world.removals.append((await world.memory.tally()).at)


async def _stop(world: World, workers: list[WorkerNode]) -> None:
    limit = world.now + 60_000
    while any(node.running for node in workers):
        for node in workers:
            node.stop()  # as soon as it has begun
        await world.sleep(100)
        if world.now > limit:
            world.found["endless"] = {node.process.name: "does not stop" for node in workers if node.running}
            return


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Whatever the engine draws, it draws from the seed."""
    state = random.getstate()
    random.seed(seed)
    source = random.Random(seed)
    pid = SimpleNamespace(getpid=lambda: PROCESS.get().pid)
    with (
        mock.patch.object(ids, "secrets", SimpleNamespace(token_bytes=source.randbytes)),
        mock.patch.object(heartbeat, "os", pid),
        mock.patch.object(heartbeat, "platform", SimpleNamespace(node=lambda: "simulated")),
    ):
        try:
            yield
        finally:
            random.setstate(state)


@contextmanager
def uncollected() -> Iterator[None]:
    """One collection at the end instead of many meanwhile: a tenth of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def simulate(seed: int, through: Through = lambda store: store) -> Outcome:
    with seeded(seed), uncollected():
        loop = SimulatedLoop(random.Random(~seed))
        world = World(seed, loop, through)
        loop.set_exception_handler(lambda _, context: unhandled(world, context))
        try:
            faults, summary = loop.run_until_complete(_judged(world))
        finally:
            dismantle(world)
    return Outcome(seed, world.history_hash(), faults, summary, tuple(world.notes))


def reports(seeds: Iterable[int]) -> str:
    """What is wrong, and how to replay it; empty if nothing is."""
    outcomes = map(simulate, seeds)
    return "\n".join(outcome.report() for outcome in outcomes if outcome.faults)


async def _judged(world: World) -> tuple[dict[str, dict[str, str]], str]:
    await _play(world)
    world.over = True
    verdict, faults = await verdict_on(world)
    return faults, verdict.report().splitlines()[0]


def unhandled(world: World, context: dict[str, object]) -> None:
    if not world.over:
        world.found["unhandled"][str(context.get("message"))] = repr(context.get("exception"))


def dismantle(world: World) -> None:
    """Let every task come to its end, with a network that answers nobody."""
    world.over = True
    loop = world.loop
    for process in loop.processes:
        process.dead = process.paused = False
    for _ in range(20):
        left = [task for process in loop.processes for task in process.tasks if not task.done()]
        if not left:
            break
        for task in left:
            task.cancel()
        with suppress(Deadlock, Livelock):
            loop.run_until_complete(asyncio.wait(left, timeout=10))
    loop.close()
