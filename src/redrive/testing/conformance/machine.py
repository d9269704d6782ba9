"""One model, every engine: Hypothesis drives an engine and the memory store side by side through the same verbs.

    TestMachine = machine_for(lambda folder, clock: MyStore(folder / "db", clock=clock), durable=True)

in an engine's test file gives a smoke run (15 examples of 25 steps) and, under the marker `prove`, a short one (200 of
40) or with REDRIVE_PROVE=full the full one (5,000 of 60). Where CI is set, the examples are the same every time.
"""

from __future__ import annotations

import os
from typing import Literal, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test
from msgspec import structs

from redrive.core.acts import (
    Act,
    Amended,
    Cancel,
    Change,
)
from redrive.core.decide import Charge, Decision, ToDead, ToDone, ToReady
from redrive.core.item import Dedupe, Ending, History, Item, Millis, NewItem, Priority, Terms
from redrive.core.select import Ids, Selection
from redrive.core.states import Verb
from redrive.core.verbs import (
    Held,
    LeaseRequest,
    Leases,
    PutResult,
    QueueChange,
    Settled,
    Settlement,
    Verdict,
    Want,
)
from redrive.stores.base import PAGE_LIMIT, Store
from redrive.testing.conformance.kit import ended, failure
from redrive.testing.conformance.laws import check_bonds, check_history, check_limits, check_no_ring
from redrive.testing.conformance.model import check_item, check_move, check_tally, compare
from redrive.testing.conformance.stage import MakeStore, everything
from redrive.testing.conformance.stage_letters import LetterRules
from redrive.testing.conformance.strategies import (
    TTLS,
    WORKERS,
    asked,
    awaited,
    bonds,
    causes,
    changes,
    decisions,
    delays,
    filters,
    kinds,
    limits,
    orders,
    picks,
    priorities,
    queues,
)


class Size(NamedTuple):
    examples: int
    steps: int


SIZES = {"smoke": Size(6, 20), "short": Size(200, 40), "full": Size(5_000, 60)}
"""The smoke looks at the same examples every time, the others at new ones."""


class StoreMachine(LetterRules):
    # --- the verbs ---

    @initialize(order=orders, limit=limits, unwanted=st.booleans())
    def begin(self, order: QueueChange, limit: QueueChange, unwanted: bool) -> None:  # noqa: FBT001 - drawn
        """Every example starts with an item in each state, so that no verb has to wait long for its prey."""
        self.configure("a", order)
        self.configure("b", limit)
        self.configure("a", 1)
        first, ordered = Terms(order_key="o", dedupe=Dedupe("d")), Terms(order_key="o")
        keyed, mortal = Terms(limit_key="l"), Terms(on_dead="die")
        line: list[tuple[Terms | None, list[int]]] = [(first, []), (None, []), (ordered, []), (ordered, [])]
        self.put("a", (0, None), line, Priority.NORMAL, again=False)
        # The mortal waits for the first of its own call, the patient for the head that is to die.
        patient = Terms(policy="gentle")
        others: list[tuple[Terms | None, list[int]]] = [
            (keyed, []),
            (keyed, []),
            (None, []),
            (mortal, [4]),
            (patient, [8]),
        ]
        self.put("b", (0, None), others, Priority.NORMAL, again=False)
        self.the_stores_agree()
        self.kill(queue="a", cause="c1")
        self.the_stores_agree()
        self.tick(1)
        self._lease(self.request("w-1", [Want("b", 2, 5_000, 3)], 0))
        if unwanted:
            self.the_stores_agree()
            self.amend([0], Cancel(), "new", None)

    @rule(queue=queues, cause=causes)
    def kill(self, queue: str, cause: str) -> None:
        """A few steps in one: what is due dies or is done, in turns."""
        items = self._lease(self.request("killer", [Want(queue, 3, 1_000, 99)], 1))
        self.the_stores_agree()
        endings: tuple[Decision, ...] = (
            ToDead("rule", Charge.ERROR, failure(cause), "r", 1_000),
            ToDone(b"1"),
            ToReady(0, Charge.CRASH),
        )
        settlements = [Settlement(item.id, item.deliveries, endings[turn], None) for turn, item in enumerate(items)]
        self.both(lambda store: store.settle(settlements), Verb.SETTLE)
        self.touched.update(item.id for item in items)

    @rule(
        queue=queues,
        when=st.tuples(delays, st.sampled_from([None, None, 0, 2_000])),
        bound=st.lists(st.tuples(bonds, awaited), min_size=1, max_size=3),
        priority=priorities,
        again=st.booleans(),
        kind=kinds,
    )
    def put(
        self,
        queue: str,
        when: tuple[Millis, Millis | None],
        bound: list[tuple[Terms | None, list[int]]],
        priority: Priority,
        *,
        again: bool,
        kind: str = "",
    ) -> None:
        """`bound`: one item each, with what it waits for counted back from the latest, those of the call included."""
        fresh = [f"i-{len(self.known) + number:03d}" for number in range(len(bound))]
        names = [*self.known, *fresh]
        delay, later = when
        at = None if later is None else self.clock.now() + later
        items = [NewItem(item_id, queue, item_id.encode(), delay) for item_id in (self.known[-1:] if again else [])]
        for item_id, (terms, picked) in zip(fresh, bound, strict=True):
            after = tuple(names[-1 - pick % len(names)] for pick in picked)
            bonds_of = structs.replace(terms or Terms(), after=tuple(one for one in after if one != item_id))
            items.append(NewItem(item_id, queue, item_id.encode(), delay, at, priority, bonds_of, kind, f"r{kind}"))
        answer = self.both(lambda store: store.put(items))
        if isinstance(answer, PutResult):
            self.known.extend(answer.added)
            self.touched.update(answer.added, answer.already)

    @rule(
        worker=st.sampled_from(WORKERS),
        wants=st.lists(asked, min_size=1, max_size=2, unique_by=lambda want: want.queue),
        holding=st.sampled_from([0, 0, 1]),
        again=st.sampled_from([False, False, False, True]),
        named=st.sampled_from([None, None, None, 0, 1, 3, 8]),
    )
    def lease(self, worker: str, wants: list[Want], holding: int, again: bool, named: int | None) -> None:  # noqa: FBT001 - drawn
        """`again`: under the worker's last nonce, though it may ask for something else. `named`: for one item by id."""
        request = self.request(worker, wants, holding)
        if named is not None:
            request = structs.replace(request, wants=request.wants[:1], item=self._known(named))
        if again and worker in self.nonces:
            request = structs.replace(request, nonce=self.nonces[worker])
        self._lease(request)

    def _lease(self, request: LeaseRequest) -> tuple[Item, ...]:
        answer: Leases = self.both(lambda store: store.lease(request), Verb.LEASE)
        self.named = request.item
        self._remember(request, answer)
        return answer.items

    def _remember(self, request: LeaseRequest, leases: Leases) -> None:
        # An engine need not keep the nonce of an empty answer over a reopen: nobody holds anything under it.
        self.nonces[request.worker] = request.nonce
        self.gave_nothing = {*self.gave_nothing, request.worker} - ({request.worker} if leases.items else set())
        self.leases.extend(leases.items)
        self.touched.update(item.id for item in leases.items)

    @precondition(lambda self: self.leases)
    @rule(
        picked=picks,
        chosen=st.lists(decisions, min_size=3, max_size=3),
        recorded=st.booleans(),
        follow=st.sampled_from([0, 1, 2]),
        then=st.one_of(st.none(), st.tuples(st.sampled_from(WORKERS), queues, st.integers(1, 2), st.integers(0, 1))),
    )
    def settle(
        self,
        picked: list[int],
        chosen: list[Decision],
        recorded: bool,  # noqa: FBT001 - drawn, not passed
        follow: int,
        then: tuple[str, str, int, int] | None,
    ) -> None:
        """Current or stale: a pick from the end is most often still held, others were given away long ago."""
        items = [self._given(pick) for pick in picked]
        terms = Terms(order_key="o") if follow == 2 else None
        child = [NewItem(f"i-{len(self.known):03d}", "b", b"child", terms=terms)] if follow else []
        settlements = [
            Settlement(
                item.id, item.deliveries, decision, ended(item, Ending.FAILED) if recorded else None, tuple(child)
            )
            for item, decision in zip(items, chosen, strict=False)
        ]
        request = None if then is None else self.request(then[0], [Want(then[1], then[2], 1_000, 3)], then[3])
        answer: Settled = self.both(lambda store: store.settle(settlements, request), Verb.SETTLE, Verb.LEASE)
        if any(one.verdict is Verdict.APPLIED and not one.reason for one in answer.answers):
            self.known.extend(item.id for item in child)
        self.touched.update((*(item.id for item in items), *(item.id for item in child)))
        if request is not None and answer.leases is not None:
            self._remember(request, answer.leases)

    @precondition(lambda self: self.leases)
    @rule(picked=picks, ttl=st.sampled_from(TTLS))
    def extend(self, picked: list[int], ttl: Millis) -> None:
        held = [Held(item.id, item.deliveries) for item in {pick: self._given(pick) for pick in picked}.values()]
        self.both(lambda store: store.extend(held, ttl))
        self.touched.update(one.id for one in held)

    @rule(
        names=st.lists(queues, max_size=2, unique=True),
        limit=st.integers(1, 3),
        force=st.sampled_from([False, False, True]),
        named=st.one_of(st.none(), picks),
    )
    def reclaim(self, names: list[str], limit: int, force: bool, named: list[int] | None) -> None:  # noqa: FBT001
        ids = None if named is None else [self._known(pick) for pick in named]
        answer: tuple[Item, ...] = self.both(
            lambda store: store.reclaim("reaper", names, 1_000, limit, ids, force=force), Verb.RECLAIM
        )
        self.leases.extend(answer)
        self.touched.update(item.id for item in answer)

    @rule(
        target_=st.one_of(filters, picks),
        change=changes,
        request=st.sampled_from(["new", "new", "q-1", "q-2"]),
        expect=st.sampled_from([None, None, None, 0, 1, 2]),
    )
    def amend(self, target_: Selection | list[int], change: Change, request: str, expect: int | None) -> None:
        selection = Ids(tuple(self._known(pick) for pick in target_)) if isinstance(target_, list) else target_
        self.requests += 1
        by = Act("ada", "because", f"q-new-{self.requests}" if request == "new" else request)
        answer = self.both(lambda store: store.amend(selection, change, by, expect), Verb.AMEND)
        if isinstance(answer, Amended):
            self.touched.update(answer.changed, answer.already, (one.id for one in answer.skipped))

    @rule(selection=filters, limit=st.integers(0, 2))
    def prune(self, selection: Selection, limit: int) -> None:
        self._find(selection, limit + 1, oldest=self.requests % 2 == 1)
        self.requests += 1
        by = Act("ada", "because", f"q-prune-{self.requests}")
        stones = self.both(lambda store: store.prune(selection, limit, by))
        for stone in stones:
            assert self.both(lambda store, item_id=stone.id: store.tombstone(item_id)) == stone  # type: ignore[misc]
        self.pruned.update(stone.id for stone in stones)
        self.touched.update(stone.id for stone in stones)

    def _find(self, selection: Selection, limit: int, *, oldest: bool) -> None:
        """Each store with its own cursors; the pages must be the same."""

        async def pages(store: Store) -> tuple[object, ...]:
            found: list[object] = []
            cursor = None
            while not found or cursor is not None:
                page = await store.find(selection, limit, cursor, oldest=oldest)
                found.append(page.items)
                cursor = page.next
            return tuple(found)

        self.run(compare(pages, self.model, self.engine))

    @precondition(lambda self: self.last is not None)
    @rule()
    def repeat(self) -> None:
        """The reply to the last write was lost: both are told again, and must still agree."""
        assert self.last is not None
        answer = self.both(self.last, *self.verbs)
        if isinstance(answer, Leases):
            self.leases.extend(answer.items)

    @rule(duration=st.sampled_from([1, 999, 999, 1_000, 1_001, 5_000]))
    def tick(self, duration: Millis) -> None:
        self.verbs = ()
        self.last = None
        self.clock.advance(duration)

    @precondition(lambda self: type(self).durable)
    @rule()
    def reopen(self) -> None:
        self.verbs = ()
        self.run(self.engine.close())
        self.engine = self.run(self._make().open())
        self.last = None
        self.touched.update(self.known)
        for worker in self.gave_nothing:
            self.nonces.pop(worker, None)

    # --- what must hold after each step ---

    @invariant()
    def the_stores_agree(self) -> None:
        items = self.run(compare(everything, self.model, self.engine))
        tally = self.run(compare(lambda store: store.tally(), self.model, self.engine))
        self.run(compare(lambda store: store.causes(), self.model, self.engine))
        self.run(compare(lambda store: store.gates(), self.model, self.engine))
        # Also those that were moved by what happened to others.
        self.touched.update(item.id for item in items if item != self.before.get(item.id))
        for item_id in sorted(self.touched):
            history = self.run(compare(lambda store, one=item_id: store.get(one), self.model, self.engine))  # type: ignore[misc]
            if isinstance(history, History):
                check_history(history)
        self.touched.clear()
        check_bonds(items)
        held = [item.id for item in items if item.hold]
        check_no_ring({item_id: self.run(self.model.get(item_id)).blocked_by for item_id in held})
        check_limits(self.before, items, tally, self.named)
        self._check(items)
        check_tally(tally, items)
        self._follow_changes(items)

    def _follow_changes(self, items: tuple[Item, ...]) -> None:
        """Whoever reads on is told of every change that the model tells of, with the item as it is now."""
        stores = zip((self.model, self.engine), self.last_changes, strict=True)
        expected, told = [self.run(store.changes(last, PAGE_LIMIT)) for store, last in stores]
        assert {one.id for one in expected} <= {one.id for one in told}
        there = {item.id: item for item in items}
        assert all(one.item == there.get(one.id) for one in told)
        lasts = zip((expected, told), self.last_changes, strict=True)
        self.last_changes = [found[-1].number if found else last for found, last in lasts]

    def _check(self, items: tuple[Item, ...]) -> None:
        assert {item.id for item in items} == set(self.known) - self.pruned
        assert sorted(items, key=lambda item: -item.seq) == list(items)
        for item in items:
            check_item(item)
            if item.id in self.before:
                check_move(self.before[item.id], item, self.verbs, self.clock.now(), self.named)
        self.before = {item.id: item for item in items}

    def teardown(self) -> None:
        try:
            for item_id in self.known:
                self.run(compare(lambda store, one=item_id: store.get(one), self.model, self.engine))  # type: ignore[misc]
            self.run(compare(lambda store: store.journal("audit", 0, PAGE_LIMIT), self.model, self.engine))
            assert self.run(compare(lambda store: store.check(), self.model, self.engine)).sound
        finally:
            self.close()


def run_machine(
    machine: type[StoreMachine], size: Literal["smoke", "short", "full"] | Size, *, hunt: bool = False
) -> None:
    """`hunt` stops at the first finding without making it small, and looks in the same places every time: in five times
    as many, since a change of what is drawn may move the finding.
    """
    chosen = size if isinstance(size, Size) else SIZES[size]
    phases = [Phase.generate] if hunt else list(Phase)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=chosen.examples * (5 if hunt else 1),
            stateful_step_count=chosen.steps,
            deadline=None,
            derandomize=hunt or size == "smoke" or bool(os.environ.get("CI")),
            print_blob=True,
            phases=phases,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


def machine_of(make_store: MakeStore, *, durable: bool = False) -> type[StoreMachine]:
    return type("EngineMachine", (StoreMachine,), {"make_store": staticmethod(make_store), "durable": durable})


def machine_for(make_store: MakeStore, *, durable: bool = False) -> type:
    """The tests of one engine, to be assigned to a name that begins with Test."""
    machine = machine_of(make_store, durable=durable)

    class TestMachine:
        def test_machine_smoke(self) -> None:
            run_machine(machine, "smoke")

        @pytest.mark.prove
        @pytest.mark.timeout(7_200)
        def test_machine(self) -> None:
            run_machine(machine, "full" if os.environ.get("REDRIVE_PROVE") == "full" else "short")

    return TestMachine
