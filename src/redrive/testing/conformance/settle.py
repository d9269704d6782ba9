"""`settle`: the only end of a lease, only by its holder; evidence, counters, follow-ups and `then` in one write."""

from __future__ import annotations

from redrive.core.decide import Charge
from redrive.core.states import Disposition, State
from redrive.core.verbs import Settled, Settlement, Verdict, Want
from redrive.testing.conformance.kit import (
    QUEUE,
    SECOND,
    TTL,
    WORKER,
    World,
    after_crash,
    asking,
    dead,
    failed,
    failure,
    finished,
    fresh,
    ids,
    new,
    news,
    next_leases,
    released,
    verdicts,
)


async def test_settle_done(world: World) -> None:
    item = await world.held()
    world.tick(5)
    await world.finish(finished(item, result=b"\x00 result \xff"))
    history = await world.store.get(item.id)
    after = history.item
    assert (after.state, after.result, after.ended_at) == (State.DONE, b"\x00 result \xff", world.clock.now())
    assert (after.worker, after.leased_at, after.lease_until) == (WORKER, item.leased_at, None)
    assert (after.deliveries, after.attempt, after.errors, after.crashes) == (1, 1, 0, 0)
    assert history.attempts == ()


async def test_settle_done_tells_no_result_from_an_empty_one(world: World) -> None:
    await world.put(*news(2))
    none, empty = await world.lease(2)
    await world.finish(finished(none, result=None), finished(empty, result=b""))
    assert ((await world.item(none.id)).result, (await world.item(empty.id)).result) == (None, b"")


async def test_settle_retry_charges_an_error(world: World) -> None:
    item = await world.held()
    world.tick(5)
    settlement = failed(item, delay=7 * SECOND)
    await world.finish(settlement)
    history = await world.store.get(item.id)
    after, now = history.item, world.clock.now()
    assert (after.state, after.due_at, after.lease_until) == (State.READY, now + 7 * SECOND, None)
    assert (after.deliveries, after.attempt, after.errors, after.crashes) == (1, 1, 1, 0)
    assert (after.worker, after.leased_at, after.ended_at, after.letter) == (WORKER, item.leased_at, None, None)
    assert (after.enqueued_at, after.renewed_at) == (item.enqueued_at, item.renewed_at)
    assert history.attempts == (settlement.attempt,)


async def test_settle_crash_charges_a_crash(world: World) -> None:
    item = await world.held()
    await world.finish(after_crash(item, delay=SECOND))
    after = await world.item(item.id)
    assert (after.attempt, after.errors, after.crashes) == (1, 0, 1)
    assert after.due_at == world.clock.now() + SECOND


async def test_settle_release_gives_the_attempt_back(world: World) -> None:
    """Shutdowns and snoozes are recorded but cost nothing; the delivery number does not go back."""
    item = await world.held()
    settlement = released(item)
    await world.finish(settlement)
    history = await world.store.get(item.id)
    after = history.item
    assert (after.attempt, after.errors, after.crashes, after.deliveries) == (0, 0, 0, 1)
    assert history.attempts == (settlement.attempt,)
    again = await world.lease_one()
    assert (again.deliveries, again.attempt) == (2, 1)


async def test_settle_dead_makes_a_letter_with_all_its_evidence(world: World) -> None:
    item = await world.held()
    first = failed(item)
    await world.finish(first)
    item = await world.lease_one(worker="w-2")
    world.tick(5)
    why = failure(cause="c9", text="☃ \x00 '; -- \u202e")
    last = dead(item, reason="max_attempts", why=why)
    await world.finish(last)
    history = await world.store.get(item.id)
    after = history.item
    assert after.letter is not None
    assert (after.letter.reason, after.letter.died_at) == ("max_attempts", world.clock.now())
    assert (after.letter.disposition, after.letter.failure) == (Disposition.OPEN, why)
    assert (after.state, after.ended_at, after.lease_until) == (State.DEAD, world.clock.now(), None)
    assert (after.payload, after.queue, after.enqueued_at) == (item.payload, QUEUE, item.enqueued_at)
    assert (after.deliveries, after.attempt, after.errors, after.crashes) == (2, 2, 2, 0)
    assert (after.worker, after.leased_at) == ("w-2", item.leased_at)
    assert history.attempts == (first.attempt, last.attempt)


async def test_settle_dead_charges_what_it_says(world: World) -> None:
    await world.put(*news(3))
    items = await world.lease(3)
    charges = (Charge.ERROR, Charge.CRASH, Charge.NOTHING)
    await world.finish(*(dead(item, charge=charge) for item, charge in zip(items, charges, strict=True)))
    after = [await world.item(item.id) for item in items]
    assert [(it.attempt, it.errors, it.crashes) for it in after] == [(1, 1, 0), (1, 0, 1), (0, 0, 0)]


async def test_settle_dead_evicts_no_letter(world: World) -> None:
    """However many there are, each stays until an operator acts: no trim by rank, by age or by count."""
    made = news(120)
    await world.put(*made)
    await world.finish(*(dead(item) for item in await world.lease(120)))
    world.tick(10 * 365 * 24 * 3_600 * SECOND)
    await world.letter()
    assert (await world.count()).open == 121
    for item in made:
        assert (await world.item(item.id)).letter is not None


async def test_settle_again_is_already(world: World) -> None:
    """The reply was lost; the repeat changes nothing, whatever it says."""
    await world.put(*news(3))
    done, retried, died = await world.lease(3)
    first = [finished(done, b"1"), failed(retried, delay=SECOND), dead(died)]
    await world.finish(*first)
    before = [await world.store.get(item.id) for item in (done, retried, died)]
    world.tick(3)
    assert verdicts(await world.settle(*first)) == (Verdict.ALREADY,) * 3
    other = [dead(done), finished(retried), failed(died)]
    assert verdicts(await world.settle(*other)) == (Verdict.ALREADY,) * 3
    assert [await world.store.get(item.id) for item in (done, retried, died)] == before


async def test_settle_again_as_plainly_done_is_already(world: World) -> None:
    """An engine may have a short way for what is done and leaves nothing: it asks no less."""
    await world.put(*news(3))
    items = done, retried, died = await world.lease(3)
    await world.finish(finished(done))
    await world.finish(failed(retried), dead(died))
    before = [await world.store.get(item.id) for item in items]
    world.tick(3)
    assert verdicts(await world.settle(*(finished(item) for item in items))) == (Verdict.ALREADY,) * 3
    assert [await world.store.get(item.id) for item in items] == before


async def test_settle_of_one_delivery_twice_in_a_call_applies_the_first(world: World) -> None:
    item = await world.held()
    assert verdicts(await world.settle(finished(item, b"1"), dead(item))) == (Verdict.APPLIED, Verdict.ALREADY)
    assert (await world.item(item.id)).result == b"1"
    plain = await world.held()
    assert verdicts(await world.settle(finished(plain), finished(plain))) == (Verdict.APPLIED, Verdict.ALREADY)


async def test_settle_of_two_deliveries_in_a_call_applies_the_current_one(world: World) -> None:
    """A worker that lost an item and got it again may end both runs at once, in any order."""
    for order in ((0, 1), (1, 0)):
        item = await world.held(worker=fresh("w"))
        (taken,) = await world.store.reclaim("operator", [QUEUE], TTL, 1, [item.id], force=True)
        both = [Settlement(item.id, one.deliveries, finished(item).decision) for one in (item, taken)]
        expected = [Verdict.REFUSED, Verdict.APPLIED]
        settled = await world.settle(*(both[place] for place in order))
        assert list(verdicts(settled)) == [expected[place] for place in order]
        assert (await world.item(item.id)).state is State.DONE


async def test_settle_by_a_stale_holder_is_refused_while_the_new_one_runs(world: World) -> None:
    """P4. The state says leased and the id is right: only the delivery number tells the zombie from the holder."""
    item = await world.held()
    world.tick(TTL + 1)
    (lost,) = await world.store.reclaim("reaper", [QUEUE], TTL, 1)
    await world.finish(after_crash(lost))
    again = await world.lease_one(worker=WORKER)
    before = await world.store.get(item.id)
    for stale in (finished(item, b"stale"), failed(item), dead(item), released(item), after_crash(item)):
        (answer,) = (await world.settle(stale)).answers
        assert (answer.id, answer.verdict) == (item.id, Verdict.REFUSED)
        assert answer.reason
        assert await world.store.get(item.id) == before
    await world.finish(finished(again, b"fresh"))
    assert (await world.item(item.id)).result == b"fresh"


async def test_settle_by_a_stale_holder_is_refused_while_the_reaper_holds(world: World) -> None:
    item = await world.held()
    world.tick(TTL + 1)
    (lost,) = await world.store.reclaim("reaper", [QUEUE], TTL, 1)
    assert verdicts(await world.settle(dead(item))) == (Verdict.REFUSED,)
    assert await world.item(item.id) == lost


async def test_settle_by_a_stale_holder_changes_nothing_after_the_end(world: World) -> None:
    item = await world.held()
    world.tick(TTL + 1)
    (lost,) = await world.store.reclaim("reaper", [QUEUE], TTL, 1)
    await world.finish(after_crash(lost))
    again = await world.lease_one()
    await world.finish(finished(again, b"fresh"))
    before = await world.store.get(item.id)
    assert verdicts(await world.settle(dead(item))) != (Verdict.APPLIED,)
    assert await world.store.get(item.id) == before


async def test_settle_by_a_stale_holder_is_refused_after_a_replay(world: World) -> None:
    """The fence is never reset: a settle from before the replay cannot end the run after it."""
    item = await world.held()
    await world.finish(dead(item))
    await world.replay_dead(item.id)
    again = await world.lease_one()
    assert again.deliveries > item.deliveries
    assert verdicts(await world.settle(finished(item, b"stale"))) != (Verdict.APPLIED,)
    assert await world.item(item.id) == again


async def test_settle_of_the_unknown_is_refused(world: World) -> None:
    item = await world.held()
    strangers = [
        Settlement("nobody", 1, finished(item).decision),
        Settlement(item.id, item.deliveries + 1, finished(item).decision),
        Settlement(item.id, 0, finished(item).decision),
    ]
    assert verdicts(await world.settle(*strangers)) == (Verdict.REFUSED,) * 3
    assert await world.item(item.id) == item


async def test_settle_of_an_item_never_leased_is_refused(world: World) -> None:
    made = new()
    await world.put(made)
    item = await world.item(made.id)
    assert verdicts(await world.settle(Settlement(made.id, 1, finished(item).decision))) == (Verdict.REFUSED,)
    assert await world.item(made.id) == item


async def test_settle_refuses_one_and_applies_the_others(world: World) -> None:
    """Answers come in order, and one refusal never fails the batch."""
    await world.put(*news(4))
    first, stale, done_before, last = await world.lease(4)
    await world.store.reclaim("operator", [QUEUE], TTL, 1, [stale.id], force=True)
    await world.finish(finished(done_before))
    settled = await world.settle(finished(first), dead(stale), finished(done_before), failed(last))
    assert [answer.id for answer in settled.answers] == [first.id, stale.id, done_before.id, last.id]
    assert verdicts(settled) == (Verdict.APPLIED, Verdict.REFUSED, Verdict.ALREADY, Verdict.APPLIED)
    assert (await world.item(first.id)).state is State.DONE
    assert (await world.item(last.id)).state is State.READY


async def test_settle_after_expiry_counts_while_nobody_took_over(world: World) -> None:
    item = await world.held()
    world.tick(100 * TTL)
    await world.finish(finished(item))
    assert (await world.item(item.id)).state is State.DONE


async def test_settle_of_nothing_is_nothing(world: World) -> None:
    assert await world.store.settle([]) == Settled()


async def test_settle_puts_follow_ups_in_the_same_write(world: World) -> None:
    item = await world.held()
    child, later = new(b"\x00child", queue="replies"), new(delay=SECOND, queue="replies")
    await world.finish(finished(item, follow_ups=[child, later]))
    now = world.clock.now()
    first, second = await world.item(child.id), await world.item(later.id)
    assert (first.payload, first.queue, first.state, first.due_at) == (b"\x00child", "replies", State.READY, now)
    assert second.due_at == now + SECOND
    assert (await world.count("replies")).ready == 2
    assert ids(await world.lease(5, queue="replies")) == (child.id,)


async def test_settle_puts_follow_ups_of_every_decision(world: World) -> None:
    await world.put(*news(3))
    items = await world.lease(3)
    children = news(3, "replies")
    one, two, three = children
    await world.finish(
        finished(items[0], follow_ups=[one]), failed(items[1], follow_ups=[two]), dead(items[2], follow_ups=[three])
    )
    assert ids(await world.lease(5, queue="replies")) == ids(children)


async def test_settle_puts_no_follow_ups_of_the_refused(world: World) -> None:
    item = await world.held()
    await world.store.reclaim("operator", [QUEUE], TTL, 1, [item.id], force=True)
    child = new(queue="replies")
    assert verdicts(await world.settle(finished(item, follow_ups=[child]))) == (Verdict.REFUSED,)
    assert await world.history(child.id) is None
    assert await world.lease(5, queue="replies") == ()


async def test_settle_puts_no_follow_ups_twice(world: World) -> None:
    item = await world.held()
    child, other = new(queue="replies"), new(queue="replies")
    await world.finish(finished(item, follow_ups=[child]))
    repeated = finished(item, follow_ups=[child, other])
    assert verdicts(await world.settle(repeated)) == (Verdict.ALREADY,)
    assert await world.history(other.id) is None
    assert (await world.count("replies")).ready == 1


async def test_settle_leaves_follow_ups_that_are_already_there(world: World) -> None:
    item = await world.held()
    child = new(b"first", queue="replies")
    await world.put(child)
    await world.finish(finished(item, follow_ups=[new(b"second", queue="replies", item_id=child.id)]))
    assert (await world.item(child.id)).payload == b"first"
    assert (await world.count("replies")).ready == 1


async def test_settle_then_leases_the_next(world: World) -> None:
    made = news(4)
    await world.put(*made)
    first = await world.lease_one()
    settled = await world.settle(finished(first), then=asking(2))
    assert verdicts(settled) == (Verdict.APPLIED,)
    leases = next_leases(settled)
    assert ids(leases.items) == ids(made[1:3])
    assert all(item.state is State.LEASED and item.deliveries == 1 for item in leases.items)


async def test_settle_without_then_leases_nothing(world: World) -> None:
    await world.put(*news(2))
    first = await world.lease_one()
    assert (await world.settle(finished(first))).leases is None
    assert (await world.count()).leased == 0


async def test_settle_then_sees_what_the_settlements_did(world: World) -> None:
    """One write: what is ready again and what follows are there for the next lease."""
    item = await world.held()
    child = new()
    settled = await world.settle(failed(item, follow_ups=[child]), then=asking(5))
    leases = next_leases(settled)
    assert set(ids(leases.items)) == {item.id, child.id}
    assert {it.id: it.deliveries for it in leases.items} == {item.id: 2, child.id: 1}


async def test_settle_then_adds_nothing_to_what_has_ended(world: World) -> None:
    item = await world.held()
    settled = await world.settle(finished(item, follow_ups=[new(queue="replies")]), then=asking(1))
    assert verdicts(settled) == (Verdict.APPLIED,)
    after = await world.item(item.id)
    assert (after.state, after.result, after.letter, after.worker) == (State.DONE, None, None, WORKER)


async def test_settle_then_leases_although_all_were_refused(world: World) -> None:
    made = new()
    await world.put(made)
    settled = await world.settle(Settlement("nobody", 1, finished(await world.item(made.id)).decision), then=asking(5))
    assert verdicts(settled) == (Verdict.REFUSED,)
    assert ids(next_leases(settled).items) == (made.id,)


async def test_settle_then_repeated_gives_the_same(world: World) -> None:
    """The whole write is repeated after an unknown outcome: nothing is settled twice, nothing leased twice."""
    await world.put(*news(4))
    first = await world.lease_one()
    request = asking(2)
    settled = await world.settle(failed(first, delay=SECOND), then=request)
    again = await world.settle(failed(first, delay=SECOND), then=request)
    assert verdicts(again) == (Verdict.ALREADY,)
    assert next_leases(again).items == next_leases(settled).items
    assert (await world.item(first.id)).errors == 1
    assert (await world.count()).leased == 2


async def test_settle_then_serves_several_queues(world: World) -> None:
    item = await world.held()
    mail, call = new(queue="mails"), new(queue="calls")
    await world.put(mail, call)
    wants = [Want("mails", 5, TTL, 3), Want("calls", 5, TTL, 3)]
    settled = await world.settle(finished(item), then=asking(wants=wants))
    assert ids(next_leases(settled).items) == (mail.id, call.id)
