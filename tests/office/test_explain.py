"""Why an item is where it is: each thing that can keep one, told with who decided it and what ends it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from redrive import Policy, Redrive, Snooze, constant, never
from redrive.core.decide import Charge, ToReady
from redrive.core.verbs import LeaseRequest, QueueChange, Settlement, Want, WorkerFacts
from redrive.errors import NotFound
from redrive.office import doors
from redrive.office.explain import explain
from redrive.office.scene import Explanation, look
from redrive.stores.memory import MemoryStore
from redrive.testing import FakeClock

HOUR = 3_600_000


class Shop:
    """An app on a clock of its own; its handlers raise what `error` says."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(clock=self.clock)
        self.app = app = Redrive(self.store, clock=self.clock, actor="ann", log=False)
        self.error: BaseException | None = ConnectionError("no answer")
        app.route("billing", capacity=1)
        app.policy("gentle", Policy(constant("5m"), max_attempts=9))
        app.queue("parking", order="park")

        @app.handler("emails", policy=Policy(constant("10m"), max_attempts=5))
        async def email(number: int) -> None:
            self._act()

        @app.handler("orders", policy=Policy(never(), routes={"timeout": "billing"}))
        async def order(number: int) -> None:
            self._act()

        @app.handler("parking", policy=Policy(never()))
        async def park(number: int) -> None:
            self._act()

    def _act(self) -> None:
        if self.error is not None:
            raise self.error

    async def work(self, *queues: str) -> None:
        """What is due now; then the worker has stopped, and another one is alive."""
        running = asyncio.create_task(self.app.run(queues=queues))
        await self.clock.tick()
        await self.app.stop(grace=0)
        await running
        await self.serve(*queues)

    async def serve(self, *queues: str, ttl: int = HOUR) -> None:
        await self.store.beat("w1", WorkerFacts(queues), ttl)

    async def lease(self, queue: str, ttl: int = 60_000) -> str:
        want = Want(queue, 1, ttl, max_crashes=3)
        (item,) = (await self.store.lease(LeaseRequest("w9", (want,), "nonce"))).items
        return item.id

    async def put(self, queue: str, count: int = 1, **asks: str) -> list[str]:
        await self.serve(queue)
        return [str(each) for each in await self.app.enqueue_many(queue, range(count), order_key=asks.get("key"))]


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    made = Shop()
    async with made.app:
        yield made


def kinds(told: Explanation) -> list[str]:
    return [why.kind for why in told.why]


async def test_an_unknown_item_is_not_found(shop: Shop) -> None:
    with pytest.raises(NotFound):
        await shop.app.explain("nobody")


async def test_what_nothing_keeps(shop: Shop) -> None:
    (item,) = await shop.put("emails")
    shop.clock.advance("90s")
    told = await shop.app.explain(item)
    assert (told.state, told.why, told.next_at) == ("ready", (), None)
    assert told.summary == "nothing keeps it: it has been due for 1m30s"


async def test_what_waits_for_a_slot(shop: Shop) -> None:
    """By what is leased, before a worker says so with its beat; and by the beat, which counts its other queues."""
    first, second = await shop.put("emails", 2)
    await shop.store.beat("w1", WorkerFacts(("emails", "orders"), slots=2, running=1), HOUR)
    assert (await shop.app.explain(second)).next == "the next worker of its queue with a free slot takes it"
    await shop.store.beat("w1", WorkerFacts(("emails", "orders"), slots=2, running=2), HOUR)
    busy = "its workers are busy with {} of {} at once; the next free slot takes it"
    assert (await shop.app.explain(second)).next == busy.format(2, 2)
    await shop.store.beat("w1", WorkerFacts(("emails",), slots=1), HOUR)
    assert await shop.lease("emails") == first
    assert (await shop.app.explain(second)).next == busy.format(1, 1)


async def test_nobody_serves_its_queue(shop: Shop) -> None:
    item = await shop.app.enqueue("emails", {"number": 1})
    told = await shop.app.explain(item)
    assert kinds(told) == ["no_worker"]
    assert told.summary == "no live worker serves emails; none did within the last day"
    assert told.next == "it runs when a worker serves the queue"
    assert told.advice == ("redrive worker run MODULE:APP --queues emails",)
    await doors.mark(shop.store, "emails", "receipts")
    assert (await shop.app.explain(item)).advice == ("redrive receipts send --waiting --queue emails",)
    await doors.mark(shop.store, "emails", "mailboxes")
    assert (await shop.app.explain(item)).advice == ("start the process that receives from the mailbox emails",)
    await shop.serve("emails", ttl=1000)
    shop.clock.advance("1m")
    assert (await shop.app.explain(item)).summary == "no live worker serves emails; w1 was last heard of 1m ago"


async def test_it_is_due_later_and_when(shop: Shop) -> None:
    await shop.serve("emails")
    item = await shop.app.enqueue("emails", {"number": 1}, delay="1h")
    told = await shop.app.explain(item)
    assert (told.state, kinds(told), told.next) == ("scheduled", ["scheduled"], "it runs when it is due")
    assert told.next_at == shop.clock.now() + HOUR == told.why[0].until


async def test_a_paused_queue_names_who_and_why(shop: Shop) -> None:
    (item,) = await shop.put("emails")
    await shop.app.pause("emails", reason="INC-7")
    told = await shop.app.explain(item)
    (why,) = told.why
    assert (why.kind, why.by, why.text) == ("paused", "ann", "queue emails is paused by ann: INC-7")
    assert told.advice == ("redrive queue resume emails",)


async def test_several_reasons_stand_with_the_strongest_first(shop: Shop) -> None:
    item = await shop.app.enqueue("emails", {"number": 1}, delay="1h")
    await shop.app.pause("emails", reason="INC-7")
    told = await shop.app.explain(item)
    assert kinds(told) == ["scheduled", "paused", "no_worker"]
    assert told.next == "it runs when it is due, somebody resumes the queue and a worker serves the queue"
    assert told.next_at is None  # time alone does not do it


async def test_a_retry_with_its_number_its_policy_and_when(shop: Shop) -> None:
    (item,) = await shop.put("emails")
    await shop.work("emails")
    told = await shop.app.explain(item)
    assert (told.state, kinds(told)) == ("retrying", ["retry"])
    assert told.why[0].text == "attempt 1 of 5 failed: ConnectionError; the next is due in 10m"
    assert (told.why[0].by, told.policy) == ("", "the policy of the handler: constant 10m, 5 attempts, 3 crashes")
    assert told.next_at == shop.clock.now() + 600_000
    await shop.app.configure("emails", policy="gentle", reason="slow day")
    told = await shop.app.explain(item)
    assert told.why[0].text.partition(" failed")[0] == "attempt 1 of 9"
    # The due time was decided before.
    gentle = "policy gentle of the queue: constant 5m, 9 attempts, 3 crashes"
    assert (told.why[0].by, told.policy) == ("", gentle)


async def test_every_live_item_names_the_policy_that_judges_its_next_failure(shop: Shop) -> None:
    own = {"max_attempts": 2}
    judged = "policy 2 attempts of the item, over the policy of the handler: constant 10m, 2 attempts, 3 crashes"
    await shop.serve("emails")
    head = await shop.app.enqueue("emails", 1, policy=own)
    behind = await shop.app.enqueue("emails", 2, policy=own, after=[head])
    scheduled = await shop.app.enqueue("emails", 3, policy=own, delay="1h")
    for item in (head, behind, scheduled):
        assert (await shop.app.explain(item)).policy == judged
    assert await shop.lease("emails") == head
    assert (await shop.app.explain(head)).policy == judged
    shop.clock.advance("2h")
    assert (await shop.app.explain(scheduled)).policy == judged
    await shop.app.cancel(scheduled, reason="x")
    assert (await shop.app.explain(scheduled)).policy == ""


async def test_the_policy_of_an_item_as_far_as_it_is_known(shop: Shop) -> None:
    unknown = " (what it says is only in the code of the app)"
    (item,) = await shop.put("emails")

    async def told() -> str:
        """Without an app."""
        return explain(await look(shop.store, item)).policy

    async def told_by_app() -> str:
        return (await shop.app.explain(item)).policy

    assert await told() == f"the policy of the handler{unknown}"
    await shop.app.set_policy(item, "gentle", reason="x")
    assert await told() == f"policy gentle of the item{unknown}"
    await shop.app.configure("emails", policy={"route": "billing"}, reason="x")
    await shop.app.set_policy(item, {"max_attempts": 3}, reason="x")
    layers = "policy 3 attempts of the item, over policy letters to billing of the queue"
    assert await told() == f"{layers}, over the policy of the handler{unknown}"
    await shop.app.set_policy(item, Policy(never()), reason="x")
    assert await told() == "policy never, 25 attempts, of any age, letters to no route of the item"
    await shop.store.configure("emails", QueueChange(policy="urgent"))
    await shop.app.set_policy(item, None, reason="x")
    note = "no policy named 'urgent' here; judged by another"
    assert await told_by_app() == f"policy urgent of the queue ({note}): constant 10m, 5 attempts, 3 crashes"
    await shop.store.configure("emails", QueueChange(policy='{"later": 1}'))
    assert (await told_by_app()).startswith("""policy '{"later": 1}' (not a policy here) of the queue, over""")
    await doors.mark(shop.store, "emails", "mailboxes")
    assert await told_by_app() == "its receiver: policies do not apply to what is received"


async def test_what_was_only_put_off(shop: Shop) -> None:
    (item,) = await shop.put("emails")
    shop.error = Snooze("30m")
    await shop.work("emails")
    (why,) = (await shop.app.explain(item)).why
    assert (why.kind, why.text) == ("snoozed", "its last delivery was snoozed, which costs nothing; it is due in 30m")


async def test_the_head_of_its_order_key_goes_first(shop: Shop) -> None:
    head, second = await shop.put("orders", 2, key="cust-9")
    told = await shop.app.explain(second)
    assert (told.state, kinds(told), told.why[0].ids) == ("blocked", ["order"], (head,))
    assert told.why[0].text == f"{head[:8]} (ready) goes first under order key 'cust-9'"
    assert told.next == f"it runs when {head[:8]} has ended"
    await shop.work("orders")
    told = await shop.app.explain(second)
    assert told.why[0].text == f"{head[:8]} (dead since 0ms: ConnectionError) goes first under order key 'cust-9'"
    assert told.next == f"it runs when {head[:8]} is replayed to done, discarded or skipped"
    assert told.advice == tuple(f"redrive letters {verb} {head[:8]} --reason …" for verb in ("replay", "skip"))
    dead = await shop.app.explain(head)
    assert "1 wait behind it under order key 'cust-9'" in [why.text for why in dead.why]
    assert dead.next.endswith("with all counters at 0, before those that wait behind it")


async def test_what_is_parked(shop: Shop) -> None:
    head, second = await shop.put("parking", 2, key="cust-9")
    await shop.work("parking")
    told = await shop.app.explain(second)
    assert (told.state, kinds(told), told.why[0].ids) == ("blocked", ["parked"], (head,))
    assert "the queue parks those behind it" in told.why[0].text


async def test_it_waits_for_others_to_be_done(shop: Shop) -> None:
    (first,) = await shop.put("emails")
    item = await shop.app.enqueue("emails", {"number": 2}, after=[first])
    told = await shop.app.explain(item)
    assert (kinds(told), told.why[0].ids, told.next) == (["after"], (first,), "it runs when they are done")
    assert told.why[0].text == f"it waits for {first[:8]} (ready) to be done"


async def test_as_many_of_its_limit_key_run_as_may(shop: Shop) -> None:
    await shop.app.configure("emails", max_per_key=1, reason="one a host")
    await shop.serve("emails")
    ids = [await shop.app.enqueue("emails", {"number": n}, limit_key="host") for n in range(2)]
    await shop.lease("emails")
    want = Want("emails", 1, 60_000, max_crashes=3)
    await shop.store.lease(LeaseRequest("w2", (want,), "other"))  # passes over it, and sets it aside
    told = await shop.app.explain(ids[1])
    assert kinds(told) == ["limit"]
    assert told.why[0].text == "1 of limit key 'host' run as may"


async def test_as_many_of_its_queue_run_as_may(shop: Shop) -> None:
    await shop.app.configure("emails", max_running=1, reason="one at a time")
    ids = await shop.put("emails", 2)
    assert await shop.lease("emails") == ids[0]
    told = await shop.app.explain(ids[1])
    assert (kinds(told), told.next) == (["max_running"], "it runs when one of those that run ends")
    assert told.why[0].text == "1 of its queue run, and 1 may at once"


async def test_an_open_gate_names_who_and_why(shop: Shop) -> None:
    shop.app.gate("smtp")
    await shop.app.configure("emails", gate="smtp", reason="x")
    (item,) = await shop.put("emails")
    await shop.app.open_gate("smtp", reason="they asked")
    told = await shop.app.explain(item)
    assert (kinds(told), told.why[0].by) == (["gate"], "ann")
    assert told.why[0].text == "gate smtp is open by ann: they asked"
    assert (told.next, told.next_at) == ("it runs when somebody closes the gate", None)


async def test_a_rate_is_told_while_more_are_ready_than_it_gives(shop: Shop) -> None:
    await shop.app.configure("emails", rate="1/min", reason="x")
    ids = await shop.put("emails", 2)
    told = await shop.app.explain(ids[1])
    assert [why.text for why in told.why] == ["its queue is given out at 1/min, and 2 are ready"]
    assert (told.next, told.next_at) == ("it runs when its turn comes", None)


async def test_a_rate_that_is_spent_says_when_it_gives_the_next(shop: Shop) -> None:
    """Also to the only one: counts would say that nothing keeps it."""
    await shop.app.configure("emails", rate="1/min", reason="x")
    ids = await shop.put("emails", 3)
    await shop.lease("emails")
    shop.clock.advance("20s")
    told = await shop.app.explain(ids[2])
    again = shop.clock.now() + 40_000
    assert [(why.text, why.until) for why in told.why] == [
        ("its queue is given out at 1/min: the next in 40s, and 2 are ready", again)
    ]
    assert (told.next, told.next_at) == ("it runs when its turn comes", None)
    await shop.app.cancel(ids[1], reason="not needed")
    told = await shop.app.explain(ids[2])
    assert (kinds(told), told.why[0].text) == (["rate"], "its queue is given out at 1/min: the next in 40s")
    assert (told.next, told.next_at) == ("it runs when the rate gives the next", again)
    shop.clock.advance("40s")
    assert kinds(await shop.app.explain(ids[2])) == []


async def test_a_rate_keeps_nothing_that_is_due_later(shop: Shop) -> None:
    await shop.app.configure("emails", rate="1/min", reason="x")
    await shop.put("emails")
    await shop.lease("emails")
    item = await shop.app.enqueue("emails", 1, delay="61s")
    assert kinds(await shop.app.explain(str(item))) == ["scheduled"]
    shop.clock.advance("60s")
    assert kinds(await shop.app.explain(str(item))) == ["scheduled"]


async def test_a_gate_without_a_retry_to_spare_says_when_one_passes(shop: Shop) -> None:
    shop.app.gate("smtp")
    await shop.app.configure("emails", gate="smtp", reason="x")
    first, second = await shop.put("emails", 2)
    await shop.work("emails")
    shop.clock.advance("11m")
    await shop.serve("emails")
    retried = await shop.lease("emails")
    (kept,) = {first, second} - {retried}
    told = await shop.app.explain(kept)
    assert kinds(told) == ["retry_budget"]
    assert told.why[0].text == (
        "gate smtp has no retry to spare: first attempts earn them, and without any one passes in 10s"
    )
    assert (told.next, told.next_at) == ("it runs when the gate lets a retry through", shop.clock.now() + 10_000)
    (fresh,) = await shop.put("emails")
    assert kinds(await shop.app.explain(fresh)) == []
    shop.clock.advance("10s")
    assert kinds(await shop.app.explain(kept)) == []


async def test_a_full_route_keeps_it_alive(shop: Shop) -> None:
    shop.error = TimeoutError()
    first, second = await shop.put("orders", 2)
    await shop.work("orders")
    states = {each: (await shop.app.get(each)).state for each in (first, second)}
    (kept,) = [each for each, state in states.items() if state == "ready"]
    told = await shop.app.explain(kept)
    assert (told.state, kinds(told)) == ("retrying", ["route_full"])
    assert "route billing was full (1 of 1)" in told.why[0].text
    assert told.next.endswith("another error makes it a letter if its route has room by then")


async def test_what_runs_names_its_worker_and_lease(shop: Shop) -> None:
    await shop.put("emails")
    item = await shop.lease("emails")
    shop.clock.advance("20s")
    told = await shop.app.explain(item)
    assert (told.state, kinds(told)) == ("running", ["leased"])
    assert told.summary == "w9 has it since 20s (attempt 1 of 5)"
    assert told.next.endswith("without a sign it is taken over in 40s")
    await shop.app.cancel(item, reason="too slow")
    assert kinds(await shop.app.explain(item)) == ["leased", "cancel"]


async def test_what_a_lost_worker_held(shop: Shop) -> None:
    await shop.put("emails")
    item = await shop.lease("emails")
    shop.clock.advance("2m")
    told = await shop.app.explain(item)
    assert kinds(told) == ["leased", "lease_expired"]
    assert told.summary == "its lease ran out 1m ago: that worker is lost, or hangs"
    shop.clock.advance("2h")
    told = await shop.app.explain(item)
    assert kinds(told) == ["leased", "lease_expired", "no_worker"]
    assert told.next == "a worker of the queue starts and takes it over, as a crash"


async def test_a_letter_names_reason_rule_and_what_a_replay_would_do(shop: Shop) -> None:
    (item,) = await shop.put("orders")
    await shop.work("orders")
    shop.clock.advance("1h")
    told = await shop.app.explain(item)
    assert (told.state, told.summary, kinds(told)) == ("dead", "it died 1h ago: no_retry", ["dead"])
    assert "by rule default:connection (category connection): ConnectionError: no answer" in told.why[0].text
    assert told.next == "nothing, until somebody acts; a replay makes it ready again with all counters at 0"
    await shop.app.letters.archive(item, reason="seen")
    assert (await shop.app.explain(item)).why[-1].text == "it was archived by ann: seen"


async def test_a_letter_that_somebody_works_on_says_who_and_until_when(shop: Shop) -> None:
    (item,) = await shop.put("orders")
    await shop.work("orders")
    (given,) = await shop.store.lease_letters([item], "rescue-7", HOUR)
    shop.clock.advance("10m")
    told = await shop.app.explain(item)
    assert (kinds(told), told.why[1].text) == (["dead", "leased"], "rescue-7 works on it where it lies, since 10m")
    assert told.next == "rescue-7 ends it, or lets it go; without a sign it is free again in 50m, and stays a letter"
    assert (told.next_at, told.why[1].by) == (given.lease_until, "rescue-7")
    later = ToReady(HOUR, Charge.NOTHING)
    await shop.store.settle_letters([Settlement(item, given.deliveries, later)])
    told = await shop.app.explain(item)
    assert told.why[1].text == "whoever worked on it where it lies wants it left alone for 1h"
    assert told.next == "it can be worked on where it lies again; anybody may act on it before"
    shop.clock.advance("1h")
    assert kinds(await shop.app.explain(item)) == ["dead"]


async def test_a_letter_from_another_store_says_where_a_replay_puts_it(shop: Shop) -> None:
    """In the queue of that name here, which nobody may serve."""
    (item,) = await shop.put("orders")
    await shop.work("orders")
    for tag, moved in (("from:ann", False), ("from:0123456789ab", True)):
        await shop.app.letters.tag([item], add=[tag], reason="x")
        told = await shop.app.explain(item)
        assert ("moved" in kinds(told)) is moved
        assert ("queue orders of this store, not where it came from" in told.next) is moved


async def test_a_letter_in_the_trash_says_until_when(shop: Shop) -> None:
    (item,) = await shop.put("orders")
    await shop.work("orders")
    await shop.app.letters.discard(item, reason="noise")
    told = await shop.app.explain(item)
    assert told.next == "it was discarded by ann: noise; it is removed for good in 30d"
    assert told.advice == (f"redrive letters restore {item[:8]} --reason …",)


async def test_which_dependency_failed(shop: Shop) -> None:
    (first,) = await shop.put("orders")
    item = await shop.app.enqueue("orders", {"number": 2}, after=[first], on_dead="die")
    await shop.work("orders")
    told = await shop.app.explain(item)
    assert (kinds(told), told.why[1].ids) == (["dead", "dependency"], (first,))
    assert told.why[1].text == f"it waited for {first[:8]} (dead since 0ms: ConnectionError)"


async def test_a_replay_that_needs_force(shop: Shop) -> None:
    await shop.serve("orders")
    first = await shop.app.enqueue("orders", {"number": 1}, delay="1h")
    item = await shop.app.enqueue("orders", {"number": 2}, after=[first], on_dead="die")
    await shop.app.cancel(first, reason="not wanted")
    told = await shop.app.explain(item)
    assert told.next.endswith(f"a replay needs --force: {first[:8]}, for which it waits, was cancelled")


async def test_what_was_replayed_with_a_delay(shop: Shop) -> None:
    (item,) = await shop.put("orders")
    await shop.work("orders")
    await shop.app.letters.replay(item, reason="fixed", delay="5m")
    (why,) = (await shop.app.explain(item)).why
    assert (why.kind, why.text) == ("delayed", "it was replayed with a delay, and is due in 5m")


async def test_what_is_over(shop: Shop) -> None:
    shop.error = None
    (item,) = await shop.put("orders")
    await shop.work("orders")
    shop.clock.advance("1m")
    told = await shop.app.explain(item)
    assert (told.state, told.summary, told.next) == ("done", "it is done since 1m", "nothing")
    await shop.app.configure("orders", keep="1h", reason="x")
    assert (await shop.app.explain(item)).next == "it is removed in 59m, as the queue keeps it so long"
    (other,) = await shop.put("orders")
    await shop.app.cancel(other, reason="twice")
    assert (await shop.app.explain(other)).summary == "it was cancelled 0ms ago by ann: twice"
