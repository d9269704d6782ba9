"""`letters.replay` with `dedupe_by` and `transform`, for queues of plain handlers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import pytest

from redrive import Policy, Redrive, blocking, never
from redrive.core import codec
from redrive.core.acts import Act, Replay
from redrive.core.item import Priority
from redrive.core.states import State
from redrive.errors import ConfigError
from redrive.office.replay import Replayed, claims
from redrive.office.replay.by_payload import replay_by_payload
from redrive.office.replay.resend import GRACE, TAKEN
from redrive.stores.audit import AuditRecord
from redrive.stores.memory import MemoryStore
from redrive.testing import FakeClock
from redrive.testing.faults import FaultyStore, Hold, SimulatedCrash
from tests.support.stores import StoreUrl


class Shop:
    def __init__(self, app: Redrive) -> None:
        self.app = app
        self.orders: list[Any] = []

        @app.handler("orders", policy=Policy(backoff=never()))
        async def take(order: Any) -> None:
            self.orders.append(order)
            raise ValueError("closed")

    async def dead(self, *orders: Any) -> list[str]:
        ids = []
        for order in orders:
            ids.append(str(await self.app.enqueue("orders", {"order": order})))
            await self.app.run(until_idle=True)
        self.orders.clear()
        return ids


@pytest.fixture(params=["memory", "sqlite"])
async def shop(request: pytest.FixtureRequest, store_url: StoreUrl) -> AsyncIterator[Shop]:
    app = Redrive(store_url(request.param), actor="tester", log=False)
    made = Shop(app)
    async with app:
        yield made


async def test_of_letters_with_one_key_the_longest_dead_goes(shop: Shop) -> None:
    one, two, three, none = await shop.dead({"id": 7}, {"id": 7}, {"id": 8}, {"name": "x"})
    dry = await shop.app.letters.replay("queue:orders", reason="open", dedupe_by="order.id", dry_run=True)
    done = await shop.app.letters.replay("queue:orders", reason="open", dedupe_by="order.id")
    assert done == dry
    assert (done.changed, done.replayed, done.skipped) == ((one, three), (one, three), ())
    assert [(each.id, each.reason) for each in done.duplicates] == [
        (two, f"{one}, with the same dedupe key, was replayed to orders, or is about to be")
    ]
    assert [(each.id, each.reason) for each in done.kept] == [
        (none, "its payload has no order.id to deduplicate by")
    ], "a misspelt path must not replay everything"
    assert (await shop.app.get(one)).replays == 1, "the same item, as without dedupe_by"
    later = await shop.app.letters.replay([two], reason="once more", dedupe_by="order.id")
    assert [each.id for each in later.duplicates] == [two], "also in another call"
    assert (await shop.app.letters.replay([two], reason="anyway")).changed == (two,)


async def test_one_that_died_again_may_go_again(shop: Shop) -> None:
    (letter,) = await shop.dead({"id": 7})
    for replays in range(1, 4):
        how: dict[str, Any] = {"transform": dict} if replays == 2 else {}
        done = await shop.app.letters.replay("queue:orders", reason="open", dedupe_by="order.id", **how)
        assert (done.duplicates, len(done.replayed)) == ((), 1)
        await shop.app.run(until_idle=True)
    (item,) = await shop.app.letters.find("queue:orders")
    assert item.id.endswith("-r2"), "its id tells its lineage"
    assert (await shop.app.get(letter)).state is State.DONE


async def test_a_transformed_letter_ends_in_the_write_that_puts_the_new_item(shop: Shop) -> None:
    (letter,) = await shop.dead({"id": 7})
    done = await shop.app.letters.replay(
        "queue:orders", reason="new form", transform=lambda payload: {"order": payload["order"]["id"]}, delay="0s"
    )
    (new,) = done.replayed
    assert (done.changed, new != letter) == ((letter,), True)
    await shop.app.run(until_idle=True)
    assert shop.orders == [7]
    history = await shop.app.letters.get(letter)
    assert history.item.state is State.DONE
    assert history.attempts[-1].note == f"replayed to orders as {new} by tester: new form"
    entry = (await shop.app.letters.audit())[-1]
    record = codec.decode(entry.body, AuditRecord)
    assert (record.change, record.changed, entry.reason) == ("replay", (letter, new), "new form")


async def test_a_function_that_raises_keeps_its_letter_and_stops_no_other(shop: Shop) -> None:
    one, two = await shop.dead({"id": 1}, {"id": 2})

    def only_two(payload: dict[str, Any]) -> object:
        if payload["order"]["id"] == 1:
            raise LookupError("no such order")
        return {"order": "changed"}

    done = await shop.app.letters.replay("queue:orders", reason="x", transform=only_two, queue="other")
    assert (done.changed, len(done.replayed)) == ((two,), 1)
    reason = "its payload could not be used: builtins.LookupError: no such order"
    assert [(each.id, each.reason) for each in done.kept] == [(one, reason)]
    assert (await shop.app.get(done.replayed[0])).queue == "other"
    assert (await shop.app.get(one)).deliveries == 1, "nobody had it"


async def test_what_cannot_be_used_is_refused_with_the_name_of_the_field(shop: Shop) -> None:
    await shop.dead({"id": 1})

    async def later(payload: object) -> object:
        return payload

    wrong: list[tuple[str, dict[str, Any]]] = [
        ("dedupe_by", {"dedupe_by": "order..id"}),
        ("dedupe_by", {"dedupe_by": ""}),
        ("dedupe_by", {"dedupe_by": 5}),
        ("transform", {"transform": "tasks:repair"}),
        ("transform", {"transform": later}),
        ("transform", {"transform": lambda _: None}),
        ("budget", {"transform": dict, "budget": "once"}),
    ]
    for field, how in wrong:
        with pytest.raises(ConfigError, match=f"^{field}: ") as caught:
            await shop.app.letters.replay("queue:orders", reason="x", **how)
        assert caught.value.field == field
    assert await shop.app.letters.count() == 1


async def test_a_function_that_ends_the_program_keeps_its_letter(shop: Shop) -> None:
    (letter,) = await shop.dead({"id": 1})

    def interrupted(_: object) -> object:
        raise KeyboardInterrupt("stop")

    wrong: list[tuple[str, dict[str, Any]]] = [
        ("builtins.SystemExit: 3", {"transform": lambda _: sys.exit(3)}),
        ("builtins.KeyboardInterrupt: stop", {"transform": interrupted}),
        ("builtins.SystemExit: 3", {"dedupe_by": lambda _: sys.exit(3)}),
    ]
    for error, how in wrong:
        done = await shop.app.letters.replay("queue:orders", reason="x", **how)
        assert done.changed == ()
        assert [(each.id, each.reason) for each in done.kept] == [(letter, f"its payload could not be used: {error}")]
    assert await shop.app.letters.count() == 1


async def test_equal_json_values_are_one_dedupe_key_and_no_others(shop: Shop) -> None:
    groups: list[list[Any]] = [
        [1, 1.0],
        ["1"],
        [True],
        ["true"],
        [1.5],
        [{"a": [1, {"b": 2.0, "c": "x"}]}, {"a": [1.0, {"c": "x", "b": 2}]}],
        [{"a": ["1", {"b": 2, "c": "x"}]}],
        ['{"a": 1}'],
        [{"a": 1}],
    ]
    ids = [await shop.dead(*[{"id": value} for value in group]) for group in groups]
    for by in ("order.id", lambda payload: payload["order"]["id"]):
        done = await shop.app.letters.replay(
            [each for group in ids for each in group], reason="x", dedupe_by=by, dry_run=True
        )
        assert done.changed == tuple(group[0] for group in ids)
        assert [each.id for each in done.duplicates] == [each for group in ids for each in group[1:]]


class Code(str):
    __slots__ = ()


async def test_the_key_of_a_function_may_be_of_a_subclass_of_str(shop: Shop) -> None:
    one, two = await shop.dead({"id": "x"}, {"id": "x"})
    done = await shop.app.letters.replay([one, two], reason="x", dedupe_by=lambda payload: Code(payload["order"]["id"]))
    assert (done.changed, [each.id for each in done.duplicates]) == ((one,), [two])


async def test_a_letter_that_is_bound_to_others_needs_force_to_become_a_new_item(shop: Shop) -> None:
    await shop.app.enqueue("orders", {"order": 1}, order_key="ann")
    await shop.app.run(until_idle=True)
    (kept,) = (await shop.app.letters.replay("queue:orders", reason="x", transform=dict)).kept
    assert kept.reason.startswith("it has an order key")
    assert len((await shop.app.letters.replay("queue:orders", reason="x", transform=dict, force=True)).replayed) == 1


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


async def test_priority_limit_and_leases(clock: FakeClock) -> None:
    store = await MemoryStore(clock).open()
    app = Redrive(store, clock=clock, log=False)
    shop = Shop(app)
    async with app:
        ids = await shop.dead(*[{"id": number} for number in range(5)])
        await store.lease_letters([ids[0]], "somebody", 60_000)
        act = Act("ann", "urgent", "r-1")
        done = await replay_by_payload(store, ids, act, Replay(), clock=clock, priority=Priority.HIGH, limit=2)
        assert [each.id for each in done.skipped] == [ids[0]]
        assert done.skipped[0].reason.startswith("it is leased by somebody for another 1m")
        assert done.changed == tuple(ids[1:3])
        assert {(await app.get(each)).priority for each in done.replayed} == {Priority.HIGH}
        rest = await app.letters.replay(ids[3:], reason="x", dedupe_by="order.id", transform=dict)
        assert rest.changed == tuple(ids[3:])
        gone = await app.letters.replay([ids[3], "nobody"], reason="x", dedupe_by="order.id")
        assert [each.reason for each in gone.skipped] == ["it is done, not a dead letter", "no such item"]
        clock.advance("1m")
        await app.letters.discard(ids[0], reason="x")
        (trash,) = (await app.letters.replay(ids[0], reason="x", transform=dict)).skipped
        assert trash.reason == "it is in the trash; restore it first"
        await app.letters.restore(ids[0], reason="x")
        await app.letters.archive(ids[0], reason="x")
        assert (await app.letters.replay(ids[0], reason="x", transform=dict)).changed == (ids[0],)


async def test_the_claim_of_a_dead_process_is_taken_over(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Redrive("memory:", clock=clock, log=False)
    shop = Shop(app)
    async with app:
        one, two = await shop.dead({"id": 7, "n": 1}, {"id": 7, "n": 2})

        async def killed(*_: object) -> None:
            raise RuntimeError("killed")

        with monkeypatch.context() as patched:
            patched.setattr("redrive.office.replay.resend.LetterReplay._amend", killed)
            with pytest.raises(RuntimeError):
                await app.letters.replay([one], reason="x", dedupe_by="order.id")
        for dry_run in (True, False):
            done = await app.letters.replay([two], reason="x", dedupe_by="order.id", dry_run=dry_run)
            assert "or this one in 1h, or without dedupe_by" in done.duplicates[0].reason
        clock.advance(GRACE)
        for dry_run in (True, False):
            done = await app.letters.replay([two], reason="x", dedupe_by="order.id", dry_run=dry_run)
            assert done.changed == (two,)


def test_without_a_loop_a_function_may_use_the_app() -> None:
    app = blocking.Redrive("memory:", log=False)

    @app.handler("mail", policy=Policy(backoff=never()))
    def send(n: int) -> None:
        raise ValueError(f"no {n}")

    with app:
        ids = app.enqueue_many("mail", [{"n": number} for number in range(2)])
        app.run(until_idle=True)
        done = app.letters.replay(ids, reason="x", transform=lambda old: {"n": old["n"] + app.letters.count()})
        assert sorted(app.letters.payload(each)["n"] for each in done.replayed) == [2, 3]
        assert len(app.letters.replay(ids, reason="x", dedupe_by=lambda old: old["n"] and None).skipped) == 2


async def test_a_crash_at_each_step_loses_and_doubles_nothing(clock: FakeClock) -> None:
    """Two letters of one key: whatever dies where, one of them becomes one item, and the other stays a letter."""

    async def replayed(crash: int | None) -> tuple[int, int, int]:
        """How many steps there were; letters and live items at the end."""
        store = MemoryStore(clock)
        app = Redrive(store, clock=clock, log=False)
        shop = Shop(app)
        async with app:
            ids = await shop.dead({"id": 7}, {"id": 7})
            faulty = FaultyStore(store, counted=("lease_letters", "settle_letters", "write_documents"))
            if crash is not None:
                faulty.crash_at(crash)
            act, how = Act("ann", "x", f"r-{crash}"), {"dedupe_by": "order.id", "transform": dict}
            with suppress(SimulatedCrash):
                await replay_by_payload(faulty, ids, act, Replay(), clock=clock, **how)  # type: ignore[arg-type]
            clock.advance("61s")
            await app.letters.replay(ids, reason="again", dedupe_by="order.id", transform=dict)
            row = next(row for row in (await app.tally()).queues if row.queue == "orders")
            return faulty.points, row.open, row.ready

    steps, *found = await replayed(None)
    assert (steps > 2, found) == (True, [1, 1])
    for step in range(1, steps + 1):
        assert (await replayed(step))[1:] == (1, 1), f"step {step}"


class Overlap:
    """Three letters of one value, and calls that replay them at the same time, each through its own faulty store."""

    def __init__(self, clock: FakeClock, **how: Any) -> None:
        self.clock, self.how = clock, {"dedupe_by": "order.id", **how}
        self.store = MemoryStore(clock)
        self.app = Redrive(self.store, clock=clock, log=False)
        self.shop = Shop(self.app)
        self.calls = 0

    async def replay(self, ids: list[str], through: FaultyStore | None = None) -> Replayed:
        self.calls += 1
        act = Act("ann", "x", f"r-{self.calls}")
        return await replay_by_payload(through or self.store, ids, act, Replay(), clock=self.clock, **self.how)

    async def begun(self, ids: list[str], verb: str, when: Literal["before", "after"] = "before") -> Begun:
        """A call that has claimed the value, and waits at this verb."""
        faulty = FaultyStore(self.store)
        hold = faulty.hold(verb, when)
        task = asyncio.create_task(self.replay(ids, faulty))
        await hold.reached.wait()
        return Begun(task, hold)

    async def live(self) -> int:
        return next(row for row in (await self.app.tally()).queues if row.queue == "orders").ready


class Begun(NamedTuple):
    task: asyncio.Task[Replayed]
    hold: Hold

    async def end(self) -> Replayed:
        self.hold.release()
        return await self.task


SENT_BY = {"as it is": ({}, "amend"), "as a new item": ({"transform": dict}, "lease_letters")}


@pytest.mark.parametrize("sent", SENT_BY)
@pytest.mark.parametrize("first", [0, 1])
async def test_of_two_replays_at_once_the_second_leaves_the_claim(clock: FakeClock, sent: str, first: int) -> None:
    """Both have claimed the same letter; the one that comes too late must not withdraw."""
    how, verb = SENT_BY[sent]
    case = Overlap(clock, **how)
    async with case.app:
        ids = await case.shop.dead(*[{"id": 7}] * 3)
        both = [await case.begun(ids, verb) for _ in range(2)]
        sender, late = both[first], both[1 - first]
        assert (await sender.end()).changed == (ids[0],)
        done = await late.end()
        assert ([each.id for each in done.skipped], done.changed) == ([ids[0]], ())
        assert (await case.replay(ids)).changed == ()
        assert await case.live() == 1


@pytest.mark.parametrize("ids_of_first", [slice(0, 1), slice(1, 2)])
async def test_a_letter_that_another_call_is_about_to_send_keeps_its_claim(
    clock: FakeClock, ids_of_first: slice
) -> None:
    """Also if the other call has the claim for a letter that is not the first of its list."""
    case = Overlap(clock, transform=dict)
    async with case.app:
        ids = await case.shop.dead(*[{"id": 7}] * 3)
        late = await case.begun(ids[ids_of_first], "lease_letters")
        sender = await case.begun(ids, "settle_letters")
        assert [(each.reason, each.code) for each in (await late.end()).skipped] == [TAKEN]
        assert (await case.replay(ids[2:])).changed == (), "the sender has the lease, and not yet sent"
        assert (await sender.end()).changed == tuple(ids[ids_of_first])
        assert (await case.replay(ids)).changed == ()
        assert await case.live() == 1


async def test_a_letter_that_was_replayed_without_a_claim_keeps_that_of_another_call(clock: FakeClock) -> None:
    case = Overlap(clock)
    async with case.app:
        ids = await case.shop.dead(*[{"id": 7}] * 3)
        late = await case.begun(ids, "amend")
        await case.app.letters.replay(ids[:1], reason="without dedupe_by")
        assert [each.id for each in (await late.end()).skipped] == ids[:1]
        assert (await case.replay(ids)).changed == ()


async def test_a_claim_whose_letter_no_call_sent_is_withdrawn_by_the_last_of_them(clock: FakeClock) -> None:
    case = Overlap(clock, transform=dict)
    async with case.app:
        ids = await case.shop.dead(*[{"id": 7}] * 3)
        both = [await case.begun(ids, "lease_letters") for _ in range(2)]
        await case.store.lease_letters(ids[:1], "a consumer", 60_000)
        for number, each in enumerate(both):
            assert [skipped.id for skipped in (await each.end()).skipped] == ids[:1]
            assert len((await case.replay(ids[1:])).changed) == number, "the other call may still send it"
        assert await case.live() == 1


async def test_a_call_that_was_killed_after_it_sent_leaves_the_claim(clock: FakeClock) -> None:
    case = Overlap(clock, transform=dict)
    async with case.app:
        ids = await case.shop.dead(*[{"id": 7}] * 3)
        killed = await case.begun(ids, "settle_letters", "after")
        killed.task.cancel()
        await asyncio.wait([killed.task])
        clock.advance(2 * GRACE)
        assert (await case.replay(ids)).changed == ()
        assert await case.live() == 1


async def test_a_claim_of_very_many_calls_stays(clock: FakeClock) -> None:
    """A claim does not grow without end, and none of its calls is forgotten."""
    store = await MemoryStore(clock).open()
    name, calls = claims.name_of("any"), [f"call {number}" for number in range(3 * claims.CALLS)]
    for call in calls:
        await claims.claim(store, {name: "letter"}, 0, call)
        found = await claims.found(store, name)
        assert found is not None
        assert len(found.calls) <= claims.CALLS
    for call in calls[1:]:
        await claims.withdraw(store, name, call)
    assert await claims.claimed(store, name) == "letter", "the first may have sent it"
    await store.close()
