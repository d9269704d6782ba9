"""Recovery of dead receipts: what is delivered is done, what is refused stays, and a dead target changes nothing."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from redrive import Snooze
from redrive.app.internals import store_of
from redrive.core.item import Item
from redrive.core.states import State
from redrive.errors import (
    ReceiptLimited,
    ReceiptRefused,
    ReceiptServerError,
    ReceiptSuperseded,
    ReceiptUnreachable,
)
from redrive.receipts import Receipt, ReceiptClient
from redrive.stores.url import store_from_url
from redrive.testing.clock import FakeClock
from redrive.testing.faults import FaultyStore, SimulatedCrash
from tests.receipts.test_dead_letters import receipt
from tests.support.broker import Broker, rpc_error, status
from tests.support.stores import EACH, StoreUrl


class Target:
    """A transport that answers each lease as it is told to."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Exception] | Exception] = {}
        self.calls: list[tuple[str, str]] = []

    async def __call__(self, receipt: Receipt, key: str, tenant_id: str | None) -> None:
        self.calls.append((receipt.lease_id, key))
        answer = self.answers.get(receipt.lease_id)
        if isinstance(answer, list):
            answer = answer.pop(0) if answer else None
        if answer is not None:
            raise answer

    @property
    def leases(self) -> list[str]:
        return [lease for lease, _ in self.calls]


@pytest.fixture
def target() -> Target:
    return Target()


@pytest.fixture
async def client(request: pytest.FixtureRequest, target: Target, store_url: StoreUrl) -> AsyncIterator[ReceiptClient]:
    """In memory, or on the store that the test says.

    In memory alone time moves by itself: a thread or a server takes real time, in which it would run away from leases.
    """
    where = getattr(request, "param", "memory")
    clock, url = FakeClock(autoadvance=where == "memory"), store_url(where)
    async with ReceiptClient(None, url, transport=target, clock=clock, work=False, log=False) as made:
        yield made


on_each = pytest.mark.parametrize("client", EACH, indirect=True)


async def dead(client: ReceiptClient, *leases: str) -> list[str]:
    return [await client.dead_letters.store(receipt(lease), attempts=5, error="boom") for lease in leases]


@pytest.fixture(params=EACH)
def each_url(request: pytest.FixtureRequest, store_url: StoreUrl) -> str:
    return store_url(request.param)


@on_each
async def test_r12_an_empty_queue_reports_nothing_and_changes_nothing(client: ReceiptClient, target: Target) -> None:
    done = await client.recover()
    assert (done.delivered, done.kept, done.superseded, done.skipped, done.left) == ((), (), (), (), ())
    assert (done.unreachable, target.calls) == ("", [])
    assert await client.app.audit.list() == ()


async def test_r13_what_is_accepted_goes_and_what_is_refused_stays(
    each_url: str, target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    target.answers["b"] = ReceiptRefused("the task was cancelled", code="INVALID_STATE_TRANSITION")
    async with ReceiptClient(None, each_url, transport=target, work=False, log=False) as client:
        ids = await dead(client, "a", "b", "c")
        with caplog.at_level(logging.WARNING, "redrive.receipts"):
            done = await client.recover(reason="the broker is back")
        assert done.delivered == (ids[0], ids[2])
        assert [(each.id, each.reason) for each in done.kept] == [
            (ids[1], "redrive.errors.ReceiptRefused: the task was cancelled")
        ]
        assert (done.left, done.skipped, done.unreachable) == ((), (), "")
        assert f"receipt {ids[1][:8]} was kept: redrive.errors.ReceiptRefused: the task was cancelled" in caplog.text
        assert target.calls == [("a", ids[0]), ("b", ids[1]), ("c", ids[2])], "under their idempotency keys"
        if each_url == "memory:":
            return
    async with ReceiptClient(None, each_url, transport=target, work=False, log=False) as client:
        (left,) = await client.dead_letters.get_all()
        assert (left.id, left.attempts) == (ids[1], 5)
        assert client.metrics.dead_letters == 1
        history = await client.app.history(ids[1])
        assert history.attempts[-1].failure is not None
        assert history.attempts[-1].failure.code == "INVALID_STATE_TRANSITION"
        assert (await client.app.history(ids[0])).item.state is State.DONE
        entries = [each for each in await client.app.audit.list() if b'"work"' in each.body]
        assert {entry.reason for entry in entries} == {"the broker is back"}
        assert [json.loads(entry.body)["changed"] for entry in entries] == [[ids[0]], [ids[2]], []]


async def test_what_a_recovery_was_told_last_is_told_beside_what_it_died_of(each_url: str, target: Target) -> None:
    """On every store; until it dies anew, or as long as nobody has tried it."""
    clock = FakeClock()
    async with ReceiptClient(None, each_url, transport=target, work=False, log=False, clock=clock) as client:
        for lease in ("a", "b"):
            await dead(client, lease)
            clock.advance("1s")
        died = await client.dead_letters.get_all()
        assert [(each.error, each.last_error, each.tried_at) for each in died] == [
            ("redrive.errors.ReceiptError: boom", "", None)
        ] * 2
        for said in ("the task was cancelled", "who is that"):
            clock.advance("1m")
            target.answers["b"] = ReceiptRefused(said)
            target.answers["a"] = ReceiptUnreachable("nobody listens")
            assert (await client.recover()).unreachable
            target.answers["a"] = ReceiptServerError("a bug", code="500")
            assert len((await client.recover()).kept) == 2
            first, second = await client.dead_letters.get_all()
            assert (first.error, first.last_error) == (died[0].error, "redrive.errors.ReceiptServerError: a bug")
            assert (second.error, second.last_error) == (died[1].error, f"redrive.errors.ReceiptRefused: {said}")
            assert [each.tried_at for each in (first, second)] == [datetime.fromtimestamp(clock.now() / 1000, UTC)] * 2
            assert [each.failed_at for each in (first, second)] == [each.failed_at for each in died]
        target.answers["b"] = ReceiptUnreachable("nobody listens")
        clock.advance("1m")
        await client.recover()
        assert (await client.dead_letters.get_all())[1].last_error == f"redrive.errors.ReceiptRefused: {said}"


async def test_one_that_died_anew_was_not_tried_since(client: ReceiptClient, target: Target) -> None:
    (key,) = await dead(client, "a")
    target.answers["a"] = ReceiptRefused("no")
    await client.recover()
    assert (await client.dead_letters.get_all())[0].last_error
    target.answers["a"] = ReceiptRefused("still no")
    async with ReceiptClient(None, store_of(client.app), transport=target, clock=client.clock, log=False) as other:
        assert not await other.send_receipt(receipt("a"))
        (again,) = await other.dead_letters.get_all()
    assert (again.id, again.error, again.last_error) == (key, "redrive.errors.ReceiptRefused: still no", "")


@on_each
@pytest.mark.parametrize(
    "answer",
    [
        ReceiptUnreachable("connection refused"),
        ReceiptServerError("bad gateway", code="502"),
        ReceiptServerError("unavailable", code="503"),
        ReceiptServerError("timeout", code="504"),
        ConnectionRefusedError("nobody listens"),
        ReceiptRefused("who are you", code="UNAUTHORIZED"),
        ReceiptRefused("who are you", code="401"),
    ],
    ids=repr,
)
async def test_r14_an_unreachable_target_stops_it_early_and_all_stays(
    client: ReceiptClient, target: Target, answer: Exception
) -> None:
    ids = await dead(client, "a", "b", "c")
    before = [await client.app.history(each) for each in ids]
    target.answers["a"] = answer
    done = await client.recover()
    assert (done.left, done.delivered, target.leases) == (tuple(ids), (), ["a"])
    assert done.unreachable
    for history in before:
        now = await client.app.history(history.item.id)
        assert (now.item.letter, now.attempts, now.item.attempt) == (history.item.letter, history.attempts, 5)
    target.answers.clear()
    assert (await client.recover()).delivered == tuple(ids), "it can be run again"


async def test_a_target_that_goes_away_in_the_middle_leaves_the_rest(client: ReceiptClient, target: Target) -> None:
    ids = await dead(client, "a", "b", "c")
    target.answers["b"] = ReceiptUnreachable("connection reset")
    done = await client.recover()
    assert (done.delivered, sorted(done.left)) == ((ids[0],), sorted(ids[1:]))
    assert await client.dead_letters.size() == 2


async def test_a_fault_of_the_server_is_kept_and_the_next_is_tried(client: ReceiptClient, target: Target) -> None:
    ids = await dead(client, "a", "b")
    target.answers["a"] = ReceiptServerError("it stumbled over this one", code="500")
    done = await client.recover()
    assert ([each.id for each in done.kept], done.delivered) == ([ids[0]], (ids[1],))


@on_each
async def test_r22_a_running_and_a_final_receipt_of_one_lease_are_two(client: ReceiptClient, target: Target) -> None:
    running = await client.dead_letters.store(receipt("a", "running"), attempts=5)
    assert isinstance(client.clock, FakeClock)
    client.clock.advance(1)  # which of one instant is the first is not said
    final = await client.dead_letters.store(receipt("a", "complete"), attempts=5)
    target.answers["a"] = [ReceiptRefused("not now")]
    done = await client.recover(limit=1)
    assert [each.id for each in done.superseded] == [running], "an end was said: what ran is not owed any more"
    assert [each.id for each in await client.dead_letters.get_all()] == [final]
    target.answers.clear()
    assert (await client.recover()).delivered == (final,)


@on_each
async def test_r22_replaying_one_of_two_removes_only_that_one(client: ReceiptClient) -> None:
    final = await client.dead_letters.store(receipt("a", "complete"), attempts=5)
    running = await client.dead_letters.store(receipt("a", "running"), attempts=5)
    worked = await client.app.letters.work([final], client.deliver, reason="only this")
    assert worked.done == (final,)
    assert [each.id for each in await client.dead_letters.get_all()] == [running]


@on_each
async def test_r23_a_lost_lease_ends_as_superseded_with_its_reason(client: ReceiptClient, target: Target) -> None:
    (letter,) = await dead(client, "a")
    target.answers["a"] = ReceiptSuperseded("the lease is not valid any more", code="LEASE_INVALID_OR_EXPIRED")
    done = await client.recover()
    assert [(each.id, each.reason) for each in done.superseded] == [
        (letter, "superseded: the lease is not valid any more")
    ]
    history = await client.app.history(letter)
    assert history.item.state is State.CANCELLED
    assert "superseded: the lease is not valid any more" in history.attempts[-1].note
    assert (await client.recover()).superseded == ()
    assert target.leases == ["a"], "it is not tried for ever"


async def test_a_rate_limit_is_waited_for(client: ReceiptClient, target: Target) -> None:
    (letter,) = await dead(client, "a")
    began = client.clock.now()
    target.answers["a"] = [ReceiptLimited("slowly", retry_after=7), ReceiptLimited("slowly")]
    assert (await client.recover()).delivered == (letter,)
    assert client.clock.now() - began == 7_000 + 4_000


@pytest.mark.parametrize("asked", [3600.0, 1.0])
async def test_patience_has_an_end(client: ReceiptClient, target: Target, asked: float) -> None:
    (letter,) = await dead(client, "a")
    target.answers["a"] = ReceiptLimited("slowly", retry_after=asked)
    assert [each.id for each in (await client.recover()).kept] == [letter]
    assert len(target.calls) == (1 if asked > 60 else 5)


async def test_what_somebody_put_off_is_tried_all_the_same(client: ReceiptClient, target: Target) -> None:
    (letter,) = await dead(client, "a")

    async def later(_: Item) -> None:
        raise Snooze("1h")

    assert [each.id for each in (await client.app.letters.work(letter, later, reason="not now")).kept] == [letter]
    assert (await client.recover(dry_run=True)).left == (letter,)
    assert (await client.recover()).delivered == (letter,)


async def test_a_dry_run_tries_nothing(client: ReceiptClient, target: Target) -> None:
    ids = await dead(client, "a", "b")
    done = await client.recover(dry_run=True)
    assert (done.left, target.calls) == (tuple(ids), [])
    assert await client.dead_letters.size() == 2


async def test_progress_limit_and_stop(client: ReceiptClient, target: Target) -> None:
    ids = await dead(client, "a", "b", "c", "d")
    told: list[tuple[int, int]] = []
    done = await client.recover(limit=3, on_progress=lambda *so_far: told.append(so_far), stop=lambda: len(told) == 2)
    assert (done.delivered, done.left, done.stopped, done.unreachable) == (tuple(ids[:2]), (ids[2],), True, "")
    assert told[:2] == [(1, 3), (2, 3)]


async def test_pace(client: ReceiptClient, target: Target) -> None:
    await dead(client, "a", "b", "c")
    began = client.clock.now()
    await client.recover(pace="1 per 10s", concurrency=3)
    assert client.clock.now() - began == 20_000


async def test_metrics_tell_of_what_was_recovered(client: ReceiptClient, target: Target) -> None:
    await dead(client, "a", "b", "c")
    target.answers |= {"b": ReceiptRefused("no"), "c": ReceiptSuperseded("gone")}
    await client.recover()
    assert client.metrics.receipts == {("complete", "true"): 1}
    assert (client.metrics.superseded, client.metrics.dead_letters) == ({"complete": 1}, 1)


async def test_two_recoveries_at_once_try_each_once(client: ReceiptClient, target: Target) -> None:
    ids = await dead(client, *[f"lease-{number}" for number in range(20)])
    one, two = await asyncio.gather(client.recover(concurrency=2), client.recover(concurrency=2))
    assert sorted([*one.delivered, *two.delivered]) == sorted(ids)
    assert len(target.calls) == 20


async def test_what_is_no_receipt_is_kept(client: ReceiptClient, target: Target) -> None:
    record: dict[str, Any] = {"id": "x", "queue": "receipts", "reason": "r", "cause": "c", "error": "E"}
    record |= {"died_at": "2024-01-15T10:30:45Z", "enqueued_at": "2024-01-15T10:30:45Z", "payload": {"no": "receipt"}}
    await client.app.letters.import_([record], reason="test")
    (kept,) = (await client.recover()).kept
    assert (kept.id, target.calls) == ("x", [])


@pytest.mark.slow
async def test_a_recovery_that_dies_at_any_point_leaves_nothing_behind_that_the_next_one_cannot_deliver(
    tmp_path: Path, target: Target
) -> None:
    """At every point before and after a verb of the store: letters stay dead, and are delivered under the same key."""
    for point in range(1, 100):
        url = f"sqlite:///{tmp_path}/{point}.db"
        clock = FakeClock()
        async with ReceiptClient(None, url, transport=target, work=False, log=False, clock=clock) as client:
            ids = await dead(client, "a", "b")
        target.calls.clear()
        crashed = await _crashed(url, point, target, clock)
        tried = len(target.calls)
        assert len({key for _, key in target.calls}) == tried, "a process that dies tries none twice"
        clock.advance("2m")  # what the dead one held is free again
        async with ReceiptClient(None, url, transport=target, work=False, log=False, clock=clock) as client:
            states = [(await client.app.get(each)).state for each in ids]
            told = [json.loads(each.body) for each in await client.app.audit.list() if b'"work"' in each.body]
            ended = [each for each, state in zip(ids, states, strict=True) if state is State.DONE]
            assert [body["changed"] for body in told] == [[each] for each in ended], "each deed has its entry"
            assert set(states) <= {State.DEAD, State.DONE}
            done = await client.recover()
            assert sorted(done.delivered) == sorted(
                each for each, state in zip(ids, states, strict=True) if state is State.DEAD
            )
            assert {key for _, key in target.calls} == set(ids)
            assert (await client.app.check()).findings == ()
        if not crashed:
            assert point > 8, "there was something to crash at"
            return
    pytest.fail("it never came to its end")


async def _crashed(url: str, point: int, target: Target, clock: FakeClock) -> bool:
    faulty = FaultyStore(store_from_url(url, clock=clock))
    client = ReceiptClient(None, faulty, transport=target, work=False, log=False, clock=clock)
    try:
        async with client:
            faulty.crash_at(faulty.points + point)
            await client.recover()
    except SimulatedCrash:
        return True
    return faulty.crashed


# -- against a real broker -------------------------------------------------------------------------------------------


async def test_a_broker_that_was_down_and_comes_back_gets_all_of_it(broker: Broker) -> None:
    broker.down()
    async with ReceiptClient(broker.url, "memory:", work=False, log=False) as client:
        ids = await dead(client, "a", "b", "c")
        done = await client.recover()
        assert (done.left, bool(done.unreachable)) == (tuple(ids), True)
        broker.up()
        broker.script(status(503))
        assert (await client.recover()).left == tuple(ids)
        broker.script(rpc_error("TASK_NOT_FOUND"))
        done = await client.recover()
        assert ([each.id for each in done.superseded], done.delivered) == ([ids[0]], tuple(ids[1:]))
        assert sorted(broker.accepted) == sorted(ids[1:])
        assert await client.dead_letters.size() == 0
