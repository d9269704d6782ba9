"""Tells the gates how handling went, so that a whole fleet leaves a dependency in peace that one worker saw failing.

The worker says what ended after each settle and goes on; here it is gathered and written beside it: failures at once,
successes about once a second, and less often while all is well. The state is compared and set in the store, so several
workers that tell at the same time lose nothing. A store that fails is asked again; nobody waits for it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count

from msgspec.structs import replace

from redrive import events as ev
from redrive.core import gate as g
from redrive.core import outcome as o
from redrive.core.families import family_of
from redrive.core.item import Failure, Instant, Millis
from redrive.core.verbs import Gate, QueueSettings
from redrive.engine.ids import new_id
from redrive.engine.runner import Run
from redrive.engine.store_retry import StoreRetry
from redrive.errors import Conflict, StoreCorrupt, StoreError
from redrive.stores.base import Store
from redrive.stores.clock import Clock

GATHER: Millis = 1_000
"""How long successes are gathered."""
CALM_PARTS = 3
"""While all is well successes are written so many times in a window: enough to tell a rate when something fails."""
LAST_WORDS: Millis = 1_000
JITTER: Millis = 20

Settings = Callable[[str], QueueSettings]
Ended = tuple[Failure | None, Instant, Instant, Millis]
"""What failed (None: it succeeded), when it was leased and when it ended by the store's clock, and a Retry-After."""


class Gates:
    """`settings` gives what is known of a queue here, without waiting; queues without a gate cost a look."""

    def __init__(self, store: Store, settings: Settings, *, events: ev.Events, clock: Clock) -> None:
        self._store = store
        self._settings = settings
        self._events = events
        self._clock = clock
        self._retry = StoreRetry("gates", events, clock)
        self._unjudged: dict[str, list[Ended]] = {}
        self._told: dict[str, _Told] = {}
        self._written: dict[str, Instant] = {}
        self._news = asyncio.Event()
        self._failed = asyncio.Event()
        self._telling: asyncio.Task[None] | None = None

    def outcomes(self, batch: Sequence[Run]) -> None:
        """What was settled. Never waits."""
        names: dict[str, str] = {}
        for run in batch:
            queue = run.item.queue
            name = names.get(queue)
            if name is None:
                name = names[queue] = self._settings(queue).gate
            if name:
                self._note(name, run)

    def _note(self, name: str, run: Run) -> None:
        outcome = run.outcome
        failure, hold = None, 0
        if isinstance(outcome, o.Fail | o.Retry):
            failure, hold = outcome.failure, outcome.after or 0
            self._failed.set()
        elif not isinstance(outcome, o.Done):
            # Snoozed, released, rate limited, dead by its own word: nothing that speaks of the dependency.
            return
        leased = run.item.leased_at or 0
        self._unjudged.setdefault(name, []).append((failure, leased, leased + run.ended - run.leased, hold))
        self._news.set()

    async def run(self) -> None:
        while True:
            await self._news.wait()
            await self._clock.wait(self._failed, GATHER)
            self._news.clear()
            self._failed.clear()
            # A write that is broken off half-way would be told again, and count twice.
            self._telling = asyncio.create_task(self._flush())
            await asyncio.shield(self._telling)

    async def close(self) -> None:
        """What was seen last is told, if the store is quick."""
        with suppress(StoreError, TimeoutError):
            await asyncio.wait_for(self._last_words(), LAST_WORDS / 1000)

    async def held(self, names: Iterable[str]) -> frozenset[str]:
        """Those that somebody opened by hand: what lies behind them will not come by itself."""
        found = set()
        for name in names:
            gate = await self._retry(partial(self._store.gate, name))
            state = self._body(gate).state
            if state.open and state.by:
                found.add(name)
        return frozenset(found)

    async def _last_words(self) -> None:
        if self._telling is not None:
            await self._telling
        await self._flush()

    async def _flush(self) -> None:
        for name in self._told.keys() | self._unjudged.keys():
            await self._tell(name)

    async def _tell(self, name: str) -> None:
        for tries in count(1):
            gate = await self._retry(lambda: self._store.gate(name))
            body = self._body(gate)
            if gate is None and (family := family_of(name)):
                # A member's breaker begins as that of its family is configured.
                usual = await self._retry(partial(self._store.gate, family))
                body = replace(body, config=self._body(usual).config)
            told = self._told.setdefault(name, _Told())
            told.judge(self._unjudged.pop(name, ()), body.config)
            if told.nothing:
                del self._told[name]
                return
            if self._can_wait(name, told, body):
                return
            state = g.step(body.state, body.config, told.seen(), told.now)
            if state == body.state or await self._set(name, gate, body, state):
                del self._told[name]
                return
            # Somebody else wrote in between: what they saw comes first, and ours is added to it.
            await self._clock.sleep(int(random.random() * min(tries, 10) * JITTER))  # noqa: S311

    def _can_wait(self, name: str, told: _Told, body: g.GateBody) -> bool:
        pause = body.config.window // CALM_PARTS
        return not told.failures and g.calm(body) and told.now - self._written.get(name, 0) < pause

    async def _set(self, name: str, gate: Gate | None, body: g.GateBody, state: g.GateState) -> bool:
        expect = 0 if gate is None else gate.version
        write = g.write(name, expect, body.state, state, body.config, mark=new_id())
        try:
            await self._retry(lambda: self._store.set_gate(write))
        except Conflict:
            # Perhaps with ourselves: a write whose answer was lost is asked for again.
            there = await self._retry(lambda: self._store.gate(name))
            if there is None or there.body != write.body:
                return False
        self._written[name] = self._told[name].now
        self._say(name, body, state)
        return True

    def _say(self, name: str, body: g.GateBody, state: g.GateState) -> None:
        if state.open and not body.state.open:
            self._events.emit(ev.GateOpened(name, state.why, state.probes_from - state.since))
        elif body.state.open and not state.open:
            self._events.emit(ev.GateClosed(name, state.why, state.since - body.state.since))

    def _body(self, gate: Gate | None) -> g.GateBody:
        try:
            return g.body_of(gate)
        except StoreCorrupt as error:
            # What is lost is a state that comes back by itself; a worker must not end for it.
            self._events.emit(ev.StoreFailed("gates", f"{type(error).__name__}: {error}"))
            return g.GateBody()


class _Told:
    """What is to be told of one gate."""

    __slots__ = ("failed_from", "failures", "hold", "in_row", "now", "succeeded_from", "successes", "why")

    def __init__(self) -> None:
        self.successes = self.failures = self.in_row = 0
        self.succeeded_from: Instant = 0
        self.failed_from: Instant = 0
        self.now: Instant = 0
        self.hold: Millis = 0
        self.why = ""

    @property
    def nothing(self) -> bool:
        return not self.successes and not self.failures

    def judge(self, ended: Sequence[Ended], config: g.GateConfig) -> None:
        for failure, leased, at, hold in ended:
            if failure is None:
                self.successes += 1
                self.in_row = 0
                self.succeeded_from = max(self.succeeded_from, leased)
            elif g.counts_against(failure, config):
                self.failures += 1
                self.in_row += 1
                self.failed_from = max(self.failed_from, leased)
                self.why, self.hold = f"{failure.type}: {failure.text.partition(chr(10))[0][:200]}", hold
            else:
                continue
            self.now = max(self.now, at)

    def seen(self) -> g.Seen:
        return g.Seen(
            self.successes,
            self.failures,
            self.in_row,
            self.succeeded_from,
            self.failed_from,
            self.why,
            self.hold,
        )
