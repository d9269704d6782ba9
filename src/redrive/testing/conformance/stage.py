"""What the state machine stands on: two stores with one clock, and the rules about queues, gates, routes, retention."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from redrive.core.acts import Act
from redrive.core.item import Item
from redrive.core.select import EVERYTHING
from redrive.core.states import Disposition, State, Verb
from redrive.core.verbs import (
    GateWrite,
    LeaseRequest,
    QueueChange,
    Want,
)
from redrive.stores.base import PAGE_LIMIT, Store
from redrive.stores.memory import MemoryStore
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.model import Call, compare
from redrive.testing.conformance.strategies import queue_changes, queues

MakeStore = Callable[[Path, FakeClock], Store]
"""Builds an unopened store on the data in a folder; the same folder again is the same data."""

GATE = "g"


class Stage(RuleBasedStateMachine):
    make_store: ClassVar[MakeStore]
    durable: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        # All of it is closed whatever raises, so that nothing is left to the garbage collector.
        with ExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="redrive-machine-")))
            self.runner = stack.enter_context(asyncio.Runner())
            self.model: Store = self.run(MemoryStore(clock=self.clock).open())
            stack.callback(lambda: self.run(self.model.close()))
            self.engine: Store = self.run(self._make().open())
            stack.callback(lambda: self.run(self.engine.close()))
            self.close = stack.pop_all().close
        self.known: list[str] = []
        self.pruned: set[str] = set()
        self.leases: list[Item] = []
        self.nonces: dict[str, str] = {}
        self.gave_nothing: set[str] = set()
        self.before: dict[str, Item] = {}
        self.last_changes = [0, 0]
        self.verbs: tuple[Verb, ...] = ()
        self.named = ""
        self.touched: set[str] = set()
        self.requests = 0
        self.last: Call | None = None

    def run(self, coroutine: Any) -> Any:
        return self.runner.run(coroutine)

    def _make(self) -> Store:
        return type(self).make_store(self.folder, self.clock)

    def both(self, call: Call, *verbs: Verb) -> Any:
        """The same to both; what they answer must be the same."""
        self.verbs, self.named = verbs, ""
        self.last = call
        return self.run(compare(call, self.model, self.engine))

    def request(self, worker: str, wants: Sequence[Want], holding: int) -> LeaseRequest:
        self.requests += 1
        return LeaseRequest(worker, tuple(wants), f"r-{self.requests}", holding)

    def _given(self, pick: int) -> Item:
        return self.leases[-1 - pick % len(self.leases)]

    def _known(self, pick: int) -> str:
        """From the end: what was leased lately, then what was put lately."""
        names = [*self.known, "nobody", *dict.fromkeys(item.id for item in self.leases[-6:])]
        return names[-1 - pick % len(names)]

    def the_stores_agree(self) -> None:
        """After each step; a rule of several steps asks for it in between."""
        raise NotImplementedError

    # --- settings ---

    @rule(queue=queues, change=st.one_of(queue_changes, queue_changes, st.sampled_from([1, 2, None])))
    def configure(self, queue: str, change: QueueChange | int | None) -> None:
        """A queue; or, with a number or None, how many letters a route has room for."""
        if isinstance(change, QueueChange):
            self.both(lambda store: store.configure(queue, change))
        else:
            self.both(lambda store: store.configure_route("r", change))

    @rule(
        interval=st.sampled_from([None, None, 500_000, 2_000_000]),
        burst=st.sampled_from([1, 2]),
        share=st.sampled_from([None, 500]),
        shut=st.booleans(),
        stale=st.sampled_from([False, False, False, True]),
    )
    def set_gate(self, interval: int | None, burst: int, share: int | None, shut: bool, stale: bool) -> None:  # noqa: FBT001 - drawn
        gate = self.run(self.model.gate(GATE))
        expect = (0 if gate is None else gate.version) + stale
        write = GateWrite(GATE, expect, interval, burst, share, 2_000, 1_000_000, shut, f"{interval}".encode())
        self.both(lambda store: store.set_gate(write))

    @rule(limit=st.integers(1, 4))
    def sweep(self, limit: int) -> None:
        """Each store with its own cursors, to the end; only what is finished, or in the trash, may be gone."""
        self.requests += 1
        by = Act("retention", "because", f"q-sweep-{self.requests}")

        async def bites(store: Store) -> tuple[int, int]:
            swept = [await store.sweep(limit, by)]
            while swept[-1].next is not None:
                swept.append(await store.sweep(limit, by, swept[-1].next))
            return sum(one.pruned for one in swept), sum(one.results for one in swept)

        self.verbs, self.last = (), None
        self.run(compare(bites, self.model, self.engine))
        left = {item.id for item in self.run(everything(self.engine))}
        gone = set(self.known) - self.pruned - left
        assert all(resolved(self.before[one]) for one in gone)
        self.pruned |= gone
        self.touched |= {item_id for item_id in self.known if item_id in left}


def resolved(item: Item) -> bool:
    if item.letter is not None:
        return item.letter.disposition is Disposition.TRASH
    return item.state in {State.DONE, State.CANCELLED}


async def everything(store: Store) -> tuple[Item, ...]:
    return (await store.find(EVERYTHING, PAGE_LIMIT)).items
