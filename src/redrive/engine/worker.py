"""The worker: leases in batches, runs handlers, settles in batches; the write that settles also leases the next.

One pump does all writing. Beside it run the keeper (prolongs leases), the reaper (takes over expired ones), the
deadline sweep and the beat; the gates, the scheduler and the maintainer (retention). A store that fails is asked again
with growing pauses; what has ended is kept until the store answers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial

from redrive import events as ev
from redrive.core import outcome as o
from redrive.core.decide import Decision, decide
from redrive.core.families import family_of, is_family, member_settings
from redrive.core.item import Attempt, Millis
from redrive.core.policy import Policy
from redrive.core.select import And, Match, Selection
from redrive.core.verbs import Answer, LeaseRequest, Leases, QueueChange, QueueTally, Settlement, Verdict
from redrive.engine.gates import Gates
from redrive.engine.heartbeat import Heartbeat, worker_name
from redrive.engine.keeper import WorkerKeeper, sweep_deadlines
from redrive.engine.maintainer import Maintainer
from redrive.engine.policies import Policies
from redrive.engine.reaper import Reaper
from redrive.engine.registry import Handler, handler_of, is_outbox, ready_of
from redrive.engine.replays import ReplayLeader, SendWindow, has_running
from redrive.engine.report import Reporter, attempt_of, clarified, unclear
from redrive.engine.runner import Run, Runner, Why
from redrive.engine.schedule import Scheduler
from redrive.engine.settings import Settings
from redrive.engine.slots import Demand, Slots
from redrive.engine.store_retry import StoreRetry
from redrive.engine.write_hook import WriteHook
from redrive.errors import EncryptionKeyMissing
from redrive.stores.base import Store
from redrive.stores.clock import Clock

IDLE_WAIT: Millis = 5_000
IDLE_CHECK: Millis = 500
VAIN_PAUSE: Millis = 5
VAIN_PAUSE_MAX: Millis = 250
LAST_WORDS: Millis = 2_000
"""How long a halted handler may still take to clean up, and the last settle to be written."""


class Worker:
    def __init__(
        self,
        store: Store,
        handlers: Mapping[str, Handler],
        *,
        events: ev.Events,
        clock: Clock,
        frames: bool,
        max_result: int,
        policies: Mapping[str, Policy] | None = None,
        until_idle: bool = False,
        most: int | None = None,
        write_hook: WriteHook | None = None,
        demand: Demand | None = None,
        once: bool = False,
        item: str = "",
        release: str = "",
        send_by_payload: SendWindow | None = None,
    ) -> None:
        """`once`: a single pass over what is due now, without heartbeat; a store error ends it.

        `item`: with one handler, only the item with this id, due or not; also a pass without heartbeat, but one whose
        result is settled however long the store takes.
        """
        self.name = worker_name()
        self._store = store
        self._handlers = dict(handlers)
        self._events = events
        self._clock = clock
        self._until_idle = until_idle
        self._once = once or bool(item)
        self._item = item
        self.leased = 0
        """How many items were leased."""
        self._write_hook = write_hook
        self._demand = Demand() if demand is None else demand
        self._demand.changed = self._stir
        self._release = release
        self._send_by_payload = send_by_payload
        self._kinds = {queue: kinds for queue, each in handlers.items() if (kinds := each.kinds) is not None}
        threads = sum(handler.concurrency for handler in handlers.values() if not handler.all_async)
        self._settings = Settings(store, clock)
        self._policies = Policies({} if policies is None else policies, self._settings)
        self._runner = Runner(
            clock, self._policies, threads=threads, frames=frames, max_result=max_result, thread_freed=self._stir
        )
        self._slots = Slots(self.name, self._handlers, self._policies, self._runner.busy_threads, most)
        self._gates = Gates(store, self._settings.known, events=events, clock=clock)
        self._report = Reporter(self.name, events, clock)
        self._writing = StoreRetry("pump", events, clock, forever=not once or bool(item))
        self._watching = StoreRetry("watch", events, clock, forever=not once)
        self._ended: list[Run] = []
        self._wake = asyncio.Event()
        self._due = True
        self._in_vain = 0
        self._unasked: set[str] = set()
        self._others = False
        self._stopping = False
        self._released = 0
        self._keyless: EncryptionKeyMissing | None = None
        self._watch: asyncio.Task[None] | None = None
        self._watched: frozenset[str] = frozenset()

    async def run(self, stop: asyncio.Event, now: asyncio.Event, grace: Millis) -> None:
        """Work until `stop` is set, then finish within `grace` (or until `now`) and release the rest; or until idle."""
        heartbeat = self._heartbeat(stop, now)
        beats = []
        if not self._once:
            await heartbeat.begin()
            self._events.emit(ev.WorkerStarted(self.name, tuple(self._handlers)))
            beats.append(heartbeat.run())
        pump = asyncio.create_task(self._pump(stop))
        stopper = asyncio.create_task(self._obey(stop, now, grace))
        parts = [stopper, *(asyncio.create_task(part) for part in (*self._parts(), *beats))]
        try:
            await self._until_over({pump, stopper}, parts)
        except asyncio.CancelledError:
            self._halt()
            await asyncio.wait({pump}, timeout=LAST_WORDS / 1000)
            raise
        finally:
            self._halt()
            if self._write_hook is not None:
                self._write_hook.attend(None)
            for task in (pump, self._watch, *parts):
                if task is not None:
                    task.cancel()
            await asyncio.gather(pump, *parts, *([self._watch] if self._watch else []), return_exceptions=True)
            self._runner.close()
            self._settings.close()
            await self._gates.close()
            if not self._once:
                await heartbeat.end()
                self._events.emit(ev.WorkerStopped(self.name, self._released))
        if self._keyless is not None:
            raise self._keyless

    def _parts(self) -> list[Coroutine[object, object, None]]:
        name, store, slots, events, clock = self.name, self._store, self._slots, self._events, self._clock
        reaper = Reaper(name, store, slots, policies=self._policies, report=self._report, events=events, clock=clock)
        self._reaper = reaper
        keeper = WorkerKeeper(name, store, slots, reaper=reaper, events=events, clock=clock)
        deadlines = sweep_deadlines(slots, self._handlers, clock)
        if self._once:
            return [keeper.run(), deadlines, self._gates.run()]
        keeping = [keeper.run(), reaper.run(), deadlines, self._gates.run()]
        if all(map(is_outbox, self._handlers)):
            return keeping
        maintainer = Maintainer(name, store, events, clock)
        scheduler = Scheduler(store, name, events=events, clock=clock, release=self._release)
        replays = ReplayLeader(store, name, events=events, clock=clock, send_by_payload=self._send_by_payload)
        return [*keeping, scheduler.run(), maintainer.run(), replays.run()]

    async def _until_over(self, ends: set[asyncio.Task[None]], parts: Sequence[asyncio.Task[None]]) -> None:
        """Until one of `ends` is over; a part that fails ends the worker, loudly."""
        waiting = {*ends, *parts}
        while not any(task.done() for task in ends):
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    async def _obey(self, stop: asyncio.Event, now: asyncio.Event, grace: Millis) -> None:
        await stop.wait()
        self._stopping = True
        self._wake.set()
        await self._clock.wait(now, grace)
        self._halt()
        await self._clock.sleep(LAST_WORDS // 2)
        for run in tuple(self._slots.running.values()):
            self._end(run, o.Release("the handler would not stop"))
        await self._clock.sleep(LAST_WORDS // 2)

    def _halt(self) -> None:
        self._stopping = True
        for run in tuple(self._slots.running.values()):
            run.cancel(Why.SHUTDOWN)
        self._wake.set()

    # -- the pump ------------------------------------------------------------------------------------------------

    def _check_encryption(self, stop: asyncio.Event) -> None:
        """A worker without keys can do nothing in an encrypted queue. It ends what it has in hand, and then stops."""
        if self._keyless is None and not self._store.info().keys:
            encrypted = [queue for queue in self._handlers if self._settings.known(queue).encrypt]
            self._keyless = EncryptionKeyMissing(encrypted[0]) if encrypted else None
        if self._keyless is not None and not self._stopping:
            self._stopping = True
            stop.set()

    async def _pump(self, stop: asyncio.Event) -> None:
        for queue in [name for name, handler in self._handlers.items() if not handler.is_member]:
            # A store that is in trouble just now is no reason for a worker not to start.
            await self._writing(partial(self._store.configure, queue, QueueChange()))
        await self._settings.read(self._handlers)
        if self._write_hook is not None:
            self._write_hook.attend(self._wake.set)
        if self._item:
            (queue,) = self._handlers
            await self._lease(self._slots.request_item(self._item, queue))
        while True:
            self._settings.refresh(self._slots.queues)
            self._check_encryption(stop)
            request = self._slots.request()
            if self._write_hook is not None and self._write_hook.begin():
                # After the request is made, or another thread could slip in and write what goes ahead alone.
                await asyncio.sleep(0)
                self._due = True
            batch, self._ended = self._ended, []
            if self._stopping or self._item or not self._demand.wanted:
                request = None
            if batch:
                await self._settle(batch, request)
            elif request is not None and self._due:
                await self._lease(request)
            elif await self._over():
                return
            else:
                await self._idle(request)

    async def _over(self) -> bool:
        if self._slots.running or self._ended:
            return False
        if self._stopping:
            return True
        if self._once:
            return bool(self._item) or not await self._take_over()
        return self._until_idle and await self._nothing_left()

    async def _take_over(self) -> bool:
        """At the end of a pass: handle an expired lease of a lost worker here and now. False if there is none."""
        queues, ttl = tuple(self._handlers), self._slots.shortest_lease
        lost = await self._writing(lambda: self._store.reclaim(self.name, queues, ttl, 1))
        # What is encrypted with a key that this process lacks is brought back and not run.
        whole = [item for item in lost if not item.flaw]
        ours = tuple([item for item in whole if handler_of(self._handlers, item.queue).takes(item.kind)])
        if ours:
            await self._begin(Leases(ours), LeaseRequest(self.name, (), ""))
        elif lost:
            await self._reaper.bring_back(lost)
        return bool(lost)

    async def _nothing_left(self) -> bool:
        """Nothing of our queues is leased by anybody or will become due by itself. Outbox queues do not count."""
        tally = await self._writing(partial(self._store.tally, members=False))
        ours = [row for row in tally.queues if row.queue in self._handlers and not is_outbox(row.queue)]
        # Nobody tells when others end what they hold, so that is looked at again and again.
        self._others = any(row.leased for row in ours)
        if self._others:
            return False
        # A gate that somebody opened by hand lets no probe through: what waits there does so until somebody closes it.
        ready = [row for row in ours if row.ready and not row.paused]
        families = [row for row in ready if is_family(row.queue)]
        plain = [row for row in ready if not is_family(row.queue)]
        waiting = {row.settings.gate for row in plain if await self._has_ours(row.queue)}
        if families:
            # Only now is it asked which of the members have something: there may be very many.
            for member, gate in _behind(families, (await self._writing(self._store.tally)).queues):
                if gate not in waiting and await self._has_ours(member):
                    waiting.add(gate)
        if waiting and not waiting <= await self._gates.held(waiting - {""}):
            return False
        # A replay in the background makes more of it by itself.
        queues = [queue for queue in self._handlers if not is_outbox(queue)]
        self._others = await self._writing(lambda: has_running(self._store, queues))
        return not self._others

    async def _has_ours(self, queue: str) -> bool:
        """Whether something of a queue is ready, of the kinds that this worker has and the keys of this process."""
        chosen = ready_of(handler_of(self._handlers, queue), queue)
        missing = {name.partition(" ")[2] for name in self._store.info().missing_keys}
        if not missing:
            return chosen is None or bool(len(await self._writing(lambda: self._store.find(chosen, 1))))
        waiting: Selection = chosen or And((Match("queue", "=", queue), Match("state", "=", "ready")))
        cursor: str | None = None
        while True:
            page = await self._writing(partial(self._store.find, waiting, cursor=cursor))
            if any(not item.hold and item.sealed not in missing for item in page):
                return True
            cursor = page.next
            if cursor is None:
                return False

    async def _idle(self, request: LeaseRequest | None) -> None:
        if self._ended or (self._stopping and not self._slots.running):
            return
        if request is not None:
            self._watch_for(self._slots.with_room())
        await self._wake.wait()
        self._wake.clear()

    def _watch_for(self, queues: frozenset[str]) -> None:
        if self._watch is not None and not self._watch.done():
            if queues == self._watched:
                return
            self._watch.cancel()
        self._watched = queues
        self._watch = asyncio.create_task(self._watch_store(tuple(queues)))

    async def _watch_store(self, queues: tuple[str, ...]) -> None:
        # What is due may be out of reach (others took it, or it needs a worker of its own): never ask in a tight loop.
        if self._in_vain > 1:
            await self._clock.sleep(min(self._in_vain * VAIN_PAUSE, VAIN_PAUSE_MAX))
        timeout = IDLE_CHECK if self._others else IDLE_WAIT
        began = self._clock.monotonic()
        await self._watching(lambda: self._store.wait(queues, timeout, self._kinds or None))
        waited = self._clock.monotonic() - began
        if waited >= VAIN_PAUSE_MAX:
            self._in_vain = 0  # the store had us wait: this is no tight loop
        if waited < timeout:
            self._unasked = set(queues)  # one of them has something
        self._stir()

    def _stir(self) -> None:
        """There may be something to lease."""
        self._due = True
        self._wake.set()

    # -- leases and settlements ----------------------------------------------------------------------------------

    async def _lease(self, request: LeaseRequest) -> None:
        await self._begin(await self._writing(lambda: self._store.lease(request)), request)

    async def _begin(self, leases: Leases, request: LeaseRequest) -> None:
        if leases.locked and not self._store.info().keys:
            # Of a member that was not known to be encrypted, or of a queue that has become so just now.
            self._keyless = EncryptionKeyMissing(leases.locked)
        asked = sum(want.limit for want in request.wants)
        # Items whose keys this process lacks made room for those behind them: these must not wait for a pause.
        again = leases.more or bool(leases.locked)
        self._due = len(leases.items) >= asked or leases.suspects_due or again
        self._unasked -= {want.queue for want in request.wants}
        if leases.items or again:
            self._in_vain = 0
        elif self._unasked & self._slots.with_room():
            self._due = True  # a request has no room for all: go round before it was in vain
        else:
            self._in_vain += 1
        now = self._clock.monotonic()
        for lost in self._slots.displaced(leases):
            lost.cancel(Why.LOST)
            self._events.emit(ev.LeaseLost(self.name, lost.item.queue, lost.item.id, lost.item.deliveries))
        runs = self._slots.take(leases, now)
        self.leased += len(runs)
        if runs and self._events:
            self._events.emit(ev.Leased(self.name, tuple(item.id for item in leases.items)))
        start = asyncio.get_running_loop().create_task
        for run in runs:
            run.task = start(self._handle(run))
        if runs and not (self._due and self._slots.with_room()):
            # Handlers that need no waiting end in this turn of the loop: settle them together. Where there is room for
            # more, they run while the store is asked for it.
            await asyncio.sleep(0)

    async def _handle(self, run: Run) -> None:
        run.begun = True
        run.started = self._clock.monotonic()
        if self._events and run.why is None:
            item = run.item
            self._events.emit(ev.Started(self.name, item.queue, item.id, item.deliveries, item.attempt))
        self._end(run, await self._runner.handle(run))

    def _end(self, run: Run, outcome: o.Outcome | None) -> None:
        if not self._slots.end(run):
            return
        self._wake.set()
        if outcome is None:
            return
        run.outcome = outcome
        run.ended = self._clock.monotonic()
        self._slots.settling[run.item.id] = run
        self._ended.append(run)

    async def _settle(self, batch: list[Run], request: LeaseRequest | None) -> None:
        await self._keep_outputs(batch)
        settlements = [self._settlement(run) for run in batch]
        try:
            settled = await self._writing(lambda: self._store.settle(settlements, request))
        except EncryptionKeyMissing as refused:
            await self._settle_without(batch, refused)
            return
        # Taken back under a new number while its result was on the way: the result is said again, under that number.
        moved = [run for run, old in zip(batch, settlements, strict=True) if run.item.deliveries != old.delivery]
        for run in batch:
            if run not in moved:
                self._slots.settling.pop(run.item.id, None)
        self._ended += moved
        answers = settled.answers
        asks = bool(self._events) and unclear(answers)
        if not asks:
            self._tell(batch, settlements, answers)
        ended = zip(batch, answers, strict=True)
        self._gates.outcomes([run for run, answer in ended if answer.verdict is not Verdict.REFUSED])
        if moved:
            self._wake.set()
        if settled.leases is not None and request is not None:
            await self._begin(settled.leases, request)
            if not settled.leases.items:
                self._in_vain = 0  # it was asked along, not because something was due
        if asks:
            # After what was leased has begun: the store may not answer for a while.
            items = [run.item for run in batch]
            self._tell(batch, settlements, await clarified(self._store, self._writing, items, settlements, answers))

    async def _settle_without(self, batch: list[Run], refused: EncryptionKeyMissing) -> None:
        """A queue was encrypted while its items ran: what they bring for it cannot be stored, so they are released."""
        self._keyless = refused
        concerned = [run for run in batch if refused.queue in {run.item.queue, *(new.queue for new in run.follow_ups)}]
        concerned = [run for run in concerned if type(run.outcome) is o.Done]
        if not concerned:
            raise refused
        for run in concerned:
            run.outcome, run.follow_ups = o.Release(str(refused)), ()
            run.offered = run.output = b""
        await self._settle(batch, None)

    async def _keep_outputs(self, batch: list[Run]) -> None:
        for run in batch:
            if run.offered and not await self._settings.encrypts(run.item.queue):
                run.output = run.offered

    def _settlement(self, run: Run) -> Settlement:
        item, outcome = run.item, run.outcome
        roll = random.random()  # noqa: S311 - a spread, not a secret
        decision = decide(item, outcome, run.policy, roll=roll, age=run.age(run.ended))
        if type(outcome) is not o.Done:
            failed = self._attempt(run, decision)
            return Settlement(item.id, item.deliveries, decision, failed, queue=item.queue)
        # A first-try success without output writes no attempt: its facts are on the item.
        attempt = None if item.deliveries == 1 and not run.output else self._attempt(run)
        return Settlement(item.id, item.deliveries, decision, attempt, run.follow_ups, queue=item.queue)

    def _attempt(self, run: Run, decision: Decision | None = None) -> Attempt:
        return attempt_of(run, self.name, decision, release=self._release)

    def _tell(self, batch: list[Run], settlements: list[Settlement], answers: Sequence[Answer]) -> None:
        self._released += sum([type(run.outcome) is o.Release for run in batch])
        if not self._events:
            return
        for run, settlement, answer in zip(batch, settlements, answers, strict=True):
            self._report.ended(self.name, run.item, settlement, answer, ran=run.ran)

    def _heartbeat(self, stop: asyncio.Event, now: asyncio.Event) -> Heartbeat:
        def obey(command: str) -> None:
            stop.set()
            if command == "stop":
                now.set()

        return Heartbeat(
            self.name,
            self._store,
            queues=lambda: self._handlers,
            slots=self._slots.most,
            kinds=[f"{queue} {kind}" for queue, kinds in self._kinds.items() for kind in kinds],
            release=self._release,
            running=lambda: len(self._slots.running),
            obey=obey,
            events=self._events,
            clock=self._clock,
        )


def _behind(families: Sequence[QueueTally], rows: Sequence[QueueTally]) -> list[tuple[str, str]]:
    """The members of these families that have something ready and are not paused, each with its gate."""
    defaults = {row.queue: row.settings for row in families if not row.paused}
    return [
        (row.queue, member_settings(row.queue, row.settings, defaults[family]).gate)
        for row in rows
        if row.ready and not row.paused and (family := family_of(row.queue)) in defaults
    ]
