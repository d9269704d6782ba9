"""A simulated world: one store, processes with apps of their own, and everything that is written down about them."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from redrive import Redrive
from redrive import events as ev
from redrive.core.item import Instant, Item, Millis
from redrive.core.states import Disposition, State
from redrive.errors import StoreError
from redrive.stores.base import Store
from redrive.stores.memory import MemoryStore
from tests.support.rig import records as r
from tests.support.rig.worker import record_of
from tests.support.simulation.handlers import SCHEDULE, register
from tests.support.simulation.loop import PROCESS, Process, SimulatedClock, SimulatedLoop
from tests.support.simulation.network import LeaseBook, Wire
from tests.support.simulation.weather import Weather, draw_plan

Through = Callable[[Store], Store]
GRACES = (0.0, 0.5, 30.0)


class World:
    def __init__(self, seed: int, loop: SimulatedLoop, through: Through) -> None:
        self.dice = random.Random(seed)
        self.loop = loop
        self.plan = draw_plan(self.dice)
        self.weather = Weather(self.dice, self.plan)
        self.server = loop.process("store")
        self.memory = MemoryStore(SimulatedClock(loop, self.server))
        self.store = through(self.memory)
        self.leases = LeaseBook()
        self.records: list[r.Record] = []
        self.notes: list[str] = []
        self.found: defaultdict[str, dict[str, str]] = defaultdict(dict)
        """Faults that were seen when they happened, by class."""
        self.store_jumps: list[Millis] = []
        self.replays: defaultdict[str, int] = defaultdict(int)
        self.ticks: dict[str, Instant] = {}
        """The items of the schedule that were asked for, with their times."""
        self.removals: list[Instant] = []
        """When the schedule was removed: one that is declared anew begins anew."""
        self.followed: dict[str, str] = {}
        """Follow-ups that handlers asked for, with their parents."""
        self.over = False
        self.late: list[asyncio.Task[Any]] = []
        self.nodes: list[Node] = []

    # -- time ----------------------------------------------------------------------------------------------------

    @property
    def now(self) -> Millis:
        return self.loop.millis()

    @property
    def ns(self) -> int:
        return round(self.loop.time() * 1e9)

    def store_time(self) -> Instant:
        return self.memory._time.now()  # noqa: SLF001 - the very clock by which leases and due times are kept

    async def sleep(self, duration: Millis) -> None:
        await asyncio.sleep(duration / 1000)  # noqa: TID251 - simulated time

    def jump_store(self, duration: Millis) -> None:
        self.server.wall_offset += duration
        self.store_jumps.append(self.now)
        self.note(self.server, "clock", f"jumps {duration} ms")

    # -- what is written down ------------------------------------------------------------------------------------

    def note(self, process: Process, what: str, text: str = "") -> None:
        self.notes.append(f"{self.loop.time():10.3f} {process.name:<12} {what:<10} {text}")

    def log(self, record: r.Record) -> None:
        self.records.append(record)
        self.note(PROCESS.get(self.loop.outside), type(record).__name__.lower(), _shown(record))

    def history_hash(self) -> str:
        text = "\n".join(self.notes).encode() + msgspec.json.encode(self.records)
        return hashlib.blake2b(text, digest_size=8).hexdigest()

    def hear(self, process: Process) -> Callable[[ev.Event], None]:
        """Turns the events of a process's app into records."""

        def write(event: ev.Event) -> None:
            if self.over:
                return
            record = record_of(event, self.store_time(), self.ns, process.pid)
            if isinstance(record, r.Settled) and record.ending == "failed" and record.state == "ready":
                # When it may run again follows from the policy, whatever the engine says.
                record = msgspec.structs.replace(record, retry_in=max(record.retry_in, self.plan.backoff))
            if record is not None:
                self.log(record)

        return write

    # -- what happens in handlers and to messages ----------------------------------------------------------------

    def duration(self, kind: str) -> Millis:
        if kind == "slow" or (kind == "chain" and self.dice.random() < 0.5):
            return self.dice.randrange(self.plan.lease * 5 // 2)
        if kind == "overdue":
            return self.dice.randrange(self.plan.lease // 2, self.plan.lease * 3 // 2)
        return self.dice.randrange(50) if self.dice.random() < 0.5 else 0

    def check_turn(self, item: Item) -> None:
        """Nothing before it under its order key may still be alive."""
        key = item.terms.order_key if item.terms else ""
        for other in self.memory._table.items.values():  # noqa: SLF001 - read without a message
            if other.seq < item.seq and other.terms and other.terms.order_key == key and _is_ahead(other):
                self.found["overtaken"][item.id] = f"it runs while {other.id} is {other.state}"

    def check_put(self, args: Sequence[Any]) -> None:
        """A scheduler may ask for new items of its own; a follow-up is never there before its parent is done."""
        for item in args[0]:
            if item.id.startswith(SCHEDULE) and item.id not in self.ticks:
                self.ticks[item.id] = item.at
                self.log(r.Invoke(item.id, item.queue, self.ns, item.at))
            parent = self.memory._table.items.get(self.followed.get(item.id, ""))  # noqa: SLF001 - as above
            if parent is not None and parent.state is not State.DONE:
                self.found["unexpected"][item.id] = f"it is put while its parent {parent.id} is {parent.state}"

    def deliver_late(self, work: Coroutine[Any, Any, object]) -> None:
        pause = self.dice.randrange(2 * self.plan.lease)

        async def deliver() -> None:
            try:
                await self.sleep(pause)
                await work
            except StoreError as error:
                self.note(self.server, "late", repr(error))
            finally:
                work.close()

        self.late.append(self.loop.start(self.server, deliver()))

    def crash(self, process: Process) -> None:
        self.log(r.Struck(process.pid, "kill", self.ns))
        process.kill()


class Node:
    """A place for a process: it runs one at a time, each with an app and a way to the store of its own."""

    process: Process
    app: Redrive
    wire: Wire

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.worker = ""
        self.stopping_since: Millis | None = None
        self._paused_at: Millis = 0
        self.started = False
        self.finished = False
        """It has done all it was meant to do."""
        world.nodes.append(self)

    @property
    def running(self) -> bool:
        return not self.process.dead

    @property
    def unsettled(self) -> bool:
        return self.started and self.running and self.wire.unsettled

    @property
    def at_work(self) -> bool:
        return self.started and self.running and not self.finished

    def start(self) -> None:
        world = self.world
        self.process = world.loop.process(self.name)
        self.wire = Wire(world.store, world, self.process)
        self.worker, self.stopping_since = "", None
        self.started = True
        world.note(self.process, "starts")
        world.loop.start(self.process, self._main())

    async def open(self) -> None:
        while True:
            clock = SimulatedClock(self.world.loop, self.process)
            self.app = Redrive(self.wire, clock=clock, log=False, actor=self.name)
            self.app.events.subscribe(self.world.hear(self.process))
            self.app.events.subscribe(self._name)
            register(self.app, self.world, self.process)
            try:
                await self.app.open()
            except StoreError:
                await self.world.sleep(500)
            else:
                return

    def _name(self, event: ev.Event) -> None:
        if isinstance(event, ev.WorkerStarted):
            self.worker = event.worker

    async def _main(self) -> None:
        try:
            await self.work()
        except Exception as error:  # noqa: BLE001 - whatever ends a process that nothing struck is a finding
            self.world.found["ended"][self.process.name] = f"{type(error).__name__}: {error}"

    async def work(self) -> None:
        raise NotImplementedError

    # -- what may happen to it -----------------------------------------------------------------------------------

    def crash(self) -> None:
        self.world.crash(self.process)

    def pause(self) -> None:
        self.process.paused = True
        self._paused_at = self.world.now
        self.world.log(r.Struck(self.process.pid, "stop", self.world.ns))

    def resume(self) -> None:
        if self.process.paused and not self.process.dead:
            self.process.paused = False
            self.process.disturbed.append((self._paused_at, self.world.now - self._paused_at))
            self.world.log(r.Struck(self.process.pid, "cont", self.world.ns))


class WorkerNode(Node):
    async def work(self) -> None:
        await self.open()
        await self.app.run(grace=self.world.dice.choice(GRACES))
        self._check_released()
        await self.app.close()
        self.world.note(self.process, "ends")
        self.process.kill()

    def stop(self) -> None:
        """Ask it to stop, as SIGTERM does. No blow once all work has ended: that would excuse what went before."""
        if self.worker and self.stopping_since is None:
            if self.world.weather.stormy:
                self.world.log(r.Struck(self.process.pid, "term", self.world.ns))
            self.stopping_since = self.world.now
            self.world.loop.start(self.process, self.app.stop())

    def _check_released(self) -> None:
        """A worker that could reach the store while it stopped leaves nothing behind."""
        since = self.stopping_since
        world = self.world
        if since is None or self.process.disturbance(since - world.plan.lease, world.now):
            return
        for item in world.memory._table.items.values():  # noqa: SLF001 - read without a message
            if item.state is State.LEASED and item.worker == self.worker:
                world.found["unreleased"][item.id] = f"{self.worker} stopped and still holds delivery {item.deliveries}"


def _is_ahead(item: Item) -> bool:
    return item.state in (State.READY, State.LEASED) or (
        item.letter is not None and item.letter.disposition is Disposition.OPEN
    )


def _shown(record: r.Record) -> str:
    values = {name: value for name, value in msgspec.structs.asdict(record).items() if name not in ("ns", "at")}
    return " ".join(f"{name}={value}" for name, value in values.items() if value not in ("", 0))
