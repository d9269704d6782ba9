"""`settle_letters`: how work on a letter ends, what becomes of those who wait for it, and who is not heard."""

from __future__ import annotations

import pytest
from msgspec import structs

from redrive.core.acts import Archive, Replay
from redrive.core.decide import Charge, Decision, ToCancelled, ToDead, ToDone, ToReady
from redrive.core.item import Dedupe, Ending, Terms
from redrive.core.select import EVERYTHING, Ids, Match
from redrive.core.states import State
from redrive.core.verbs import (
    Entry,
    Extended,
    NewEntry,
    QueueChange,
    Settlement,
    Verdict,
)
from redrive.errors import ConfigError
from redrive.testing.conformance.kit import (
    PARKED,
    SECOND,
    TTL,
    WORKER,
    World,
    act,
    dead,
    ended,
    failure,
    held,
    ids,
    new,
    news,
    verdicts,
)
from redrive.testing.conformance.letter_leases import applied, leased, over, settle
from redrive.testing.conformance.order import BLOCK, PARK, SKIP, A, broken_line
from redrive.testing.conformance.steps import cut_off


async def test_letter_done_is_over(world: World) -> None:
    letter, other = await world.letter(), await world.letter()
    (given,) = await leased(world, letter)
    world.tick(SECOND)
    record, child = ended(given, Ending.DONE, note="sent after all"), new(queue="replies")
    await applied(world, Settlement(letter.id, given.deliveries, ToDone(b"sent"), record, (child,)))
    now = world.clock.now()
    history = await world.store.get(letter.id)
    assert history.item == structs.replace(
        given, state=State.DONE, result=b"sent", ended_at=now, lease_until=None, letter=None
    )
    assert history.attempts[-1] == record
    counts = await world.count()
    assert (counts.done, counts.open, counts.leased, counts.ready) == (1, 1, 0, 0)
    assert [(row.cause, row.count) for row in await world.store.causes()] == [("c1", 1)]
    assert (await world.store.find(Match("state", "=", "dead"))).items == (other,)
    assert (await world.count("replies")).ready == 1
    await world.sound()
    assert ids(await world.store.prune(EVERYTHING, 10, act())) == (letter.id,)


async def test_letter_cancelled_is_over(world: World) -> None:
    letter = await world.letter()
    await world.store.amend(Ids((letter.id,)), Archive(), act())
    (given,) = await leased(world, letter)
    await applied(world, over(given, ToCancelled("superseded: LEASE_LOST")))
    after = await world.item(letter.id)
    assert (after.state, after.letter, after.lease_until) == (State.CANCELLED, None, None)
    counts = await world.count()
    assert (counts.cancelled, counts.open, counts.archived) == (1, 0, 0)
    await world.sound()


@pytest.mark.parametrize("decision", [ToDead("rule", Charge.ERROR, failure("other"), "lab"), ToReady(0, Charge.ERROR)])
async def test_letter_kept_is_the_same_letter_with_one_more_attempt(world: World, decision: Decision) -> None:
    letter = await world.letter()
    (given,) = await leased(world, letter)
    world.tick(SECOND)
    record = ended(given, Ending.FAILED, failure("other"))
    await applied(world, Settlement(letter.id, given.deliveries, decision, record))
    history = await world.store.get(letter.id)
    assert history.item == structs.replace(given, lease_until=None)
    assert history.attempts[-1] == record
    await world.sound()
    (again,) = await leased(world, letter, worker="other")
    assert again.deliveries == given.deliveries + 1


async def test_letter_held_back_is_given_to_nobody_before_its_time(world: World) -> None:
    letter = await world.letter()
    (given,) = await leased(world, letter)
    await applied(world, over(given, ToReady(7 * SECOND, Charge.NOTHING)))
    after = await world.item(letter.id)
    assert after == structs.replace(given, worker="", lease_until=world.clock.now() + 7 * SECOND)
    assert await world.store.extend([held(given)], TTL) == Extended((letter.id,))
    assert await settle(world, over(given)) == [Verdict.ALREADY]
    world.tick(7 * SECOND - 1)
    assert await world.store.lease_letters([letter.id], WORKER, TTL) == ()
    assert await world.item(letter.id) == after
    world.tick(1)
    await leased(world, letter)
    await world.sound()


async def test_letter_held_back_is_nobody_s(world: World) -> None:
    """So that an operator need not wait."""
    letter = await world.letter()
    (given,) = await leased(world, letter)
    await applied(world, over(given, ToReady(7 * SECOND, Charge.NOTHING)))
    assert (await world.store.amend(Ids((letter.id,)), Archive(), act())).changed == (letter.id,)
    assert (await world.item(letter.id)).lease_until is None
    await leased(world, letter)


async def test_letter_settled_again_is_already(world: World) -> None:
    """The reply was lost: nothing is done twice, also in one call."""
    done, kept = await world.letter(), await world.letter()
    one, two = await leased(world, done, kept)
    child = new(queue="replies")
    why = failure("other")
    batch = [
        over(one, follow_ups=[child]),
        Settlement(kept.id, two.deliveries, ToDead("rule", Charge.ERROR, why), ended(two, Ending.FAILED, why)),
    ]
    assert await settle(world, *batch, batch[1]) == [Verdict.APPLIED, Verdict.APPLIED, Verdict.ALREADY]
    before = [await world.store.get(item.id) for item in (done, kept)]
    answers = await (await world.another()).settle_letters(batch)
    assert [answer.verdict for answer in answers] == [Verdict.ALREADY, Verdict.ALREADY]
    assert [await world.store.get(item.id) for item in (done, kept)] == before
    assert (await world.count("replies")).ready == 1


@pytest.mark.parametrize("turns", [0, 1, 2, 4, 8])
async def test_letter_settle_cut_off_is_all_or_none(world: World, turns: int) -> None:
    """Done with its follow-up and its line going on, or the letter it was, in the hands of whoever had it."""
    one, two, _ = await broken_line(world, BLOCK)
    (given,) = await leased(world, one)
    batch = [audited(over(given, follow_ups=[new(queue="replies", item_id="child")]))]
    await cut_off(world, world.store.settle_letters(batch), turns)
    done = (await world.item(one.id)).state is State.DONE
    assert len(await world.store.journal("audit")) == done, "who did it is known whenever it is done"
    assert await world.holds(two) == ["" if done else "order"]
    assert (await world.history("child") is not None) is done
    await world.sound()
    assert await settle(world, *batch) == [Verdict.ALREADY if done else Verdict.APPLIED]
    assert (await world.count("replies")).ready == 1
    assert len(await world.store.journal("audit")) == 1


@pytest.mark.parametrize("turns", [0, 1, 2, 4, 8])
async def test_letter_lease_cut_off_can_be_repeated(world: World, turns: int) -> None:
    letters = await world.letters(3)
    await cut_off(world, world.store.lease_letters(ids(letters), WORKER, TTL), turns)
    given = await leased(world, *letters)
    assert {item.deliveries for item in given} == {2}
    await applied(world, *[over(item) for item in given])
    await world.sound()


async def test_letter_settled_by_whoever_has_it_not_is_refused(world: World) -> None:
    """One refusal never fails the batch, and puts no follow-up."""
    letter, replayed, taken = await world.letters(3)
    one, two = await leased(world, letter, taken)
    world.tick(TTL)
    (newer,) = await leased(world, taken, worker="other")
    await world.store.amend(Ids((replayed.id,)), Replay(), act())
    running = await world.lease_one()
    before = [await world.item(item.id) for item in (replayed, taken)]
    late = new(queue="replies")
    said = await settle(
        world,
        Settlement("nobody", 1, ToDone()),
        over(running),
        over(two, follow_ups=[late]),
        Settlement(letter.id, one.deliveries + 1, ToDone()),
        over(one),
    )
    assert said == [*[Verdict.REFUSED] * 4, Verdict.APPLIED]
    assert [await world.item(item.id) for item in (replayed, taken)] == before
    assert newer.worker == "other"
    assert await world.history(late.id) is None


async def test_letter_is_not_ended_by_settle(world: World) -> None:
    """That one is for items: it would move the counters of what runs."""
    letter = await world.letter()
    (given,) = await leased(world, letter)
    assert verdicts(await world.settle(over(given))) == (Verdict.ALREADY,)
    assert await world.item(letter.id) == given
    await world.sound()


async def test_letter_that_nobody_leased_is_not_settled(world: World) -> None:
    letter = await world.letter()
    assert await settle(world, over(letter)) == [Verdict.ALREADY]
    assert await world.item(letter.id) == letter


@pytest.mark.parametrize("decision", [ToDone(), ToCancelled()], ids=["done", "cancelled"])
async def test_letter_over_puts_its_follow_ups(world: World, decision: Decision) -> None:
    """Once, and not those of whoever has lost it."""
    one, two = await world.letters(2)
    given, lost = await leased(world, one, two)
    world.tick(TTL)
    await leased(world, two, worker="other")
    child, late = news(2, "replies")
    batch = [over(given, decision, [child]), over(lost, decision, [late])]
    assert await settle(world, *batch) == [Verdict.APPLIED, Verdict.REFUSED]
    assert await settle(world, *batch) == [Verdict.ALREADY, Verdict.REFUSED]
    assert ids(await world.lease(5, queue="replies")) == (child.id,)
    assert await world.history(late.id) is None
    await world.sound()


@pytest.mark.parametrize("decision", [ToDead("rule", Charge.ERROR, failure()), ToReady(0, Charge.ERROR)], ids=repr)
async def test_letter_has_follow_ups_only_when_over(world: World, decision: Decision) -> None:
    letter = await world.letter()
    (given,) = await leased(world, letter)
    with pytest.raises(ConfigError) as caught:
        await world.store.settle_letters([over(given, decision, [new()])])
    assert caught.value.field == "follow_ups"
    assert await world.item(letter.id) == given


# --- who did it ---


def audited(settlement: Settlement, said: str = "worked") -> Settlement:
    return structs.replace(settlement, audit=NewEntry("audit", said.encode(), "ada", "a reason ☃", "r-1"))


async def test_letter_s_audit_is_in_the_journal_with_its_end(world: World) -> None:
    """Of each that is applied, in their order, whether it is over or stays a letter."""
    letters = await world.letters(4)
    one, two, three, four = await leased(world, *letters)
    world.tick(SECOND)
    kept = ToDead("rule", Charge.ERROR, failure())
    await applied(
        world,
        audited(over(one), "\x00 one"),
        over(two),
        audited(over(three, kept), "three"),
        audited(over(four, ToCancelled()), "four"),
    )
    found = await world.store.journal("audit")
    now, places = world.clock.now(), [entry.position for entry in found]
    assert places == sorted(set(places))
    assert found == tuple(
        [
            Entry(place, now, "audit", said, "ada", "a reason ☃", "r-1")
            for place, said in zip(places, (b"\x00 one", b"three", b"four"), strict=True)
        ]
    )
    assert await (await world.another()).journal("audit") == found
    await world.sound()


async def test_letter_s_audit_says_nothing_of_what_was_not_done(world: World) -> None:
    """A repeat, one that came too late, and one that nobody knows leave no entry."""
    one, two = await leased(world, *await world.letters(2))
    world.tick(TTL)
    await leased(world, two, worker="other")
    batch = [audited(over(one), "one"), audited(over(two), "two"), audited(Settlement("nobody", 1, ToDone()), "nobody")]
    assert await settle(world, *batch, batch[0]) == [
        Verdict.APPLIED,
        Verdict.REFUSED,
        Verdict.REFUSED,
        Verdict.ALREADY,
    ]
    assert await settle(world, *batch) == [Verdict.ALREADY, Verdict.REFUSED, Verdict.REFUSED]
    assert [entry.body for entry in await world.store.journal("audit")] == [b"one"]


# --- what waits for it ---


@pytest.mark.parametrize("decision", [ToDone(), ToCancelled()], ids=["done", "cancelled"])
@pytest.mark.parametrize("change", [BLOCK, PARK, SKIP], ids=["block", "park", "skip"])
async def test_letter_over_lets_its_order_key_go_on(world: World, change: QueueChange, decision: Decision) -> None:
    one, two, three = await broken_line(world, change)
    (given,) = await leased(world, one)
    held_before = "" if change is SKIP else PARKED if change is PARK else "order"
    assert await world.holds(two) == [held_before]
    await applied(world, over(given, decision))
    assert await world.holds(two, three) == ["", "order"]
    await world.sound()
    assert await world.drain() == (two.id, three.id)
    late = new(terms=A)
    await world.put(late)
    assert (await world.item(late.id)).gap == ""
    assert await world.drain() == (late.id,)


async def test_letter_kept_keeps_its_order_key_back(world: World) -> None:
    one, two, _ = await broken_line(world, BLOCK)
    (given,) = await leased(world, one)
    await applied(world, over(given, ToDead("rule", Charge.ERROR, failure())))
    assert await world.holds(two) == ["order"]
    assert await world.blocked_by(two.id) == (one.id,)


async def test_letter_done_frees_those_who_wait_for_it(world: World) -> None:
    letter = await world.letter()
    patient = new(terms=Terms(after=(letter.id,)))
    await world.put(patient)
    (given,) = await leased(world, letter)
    assert await world.holds(patient) == ["after"]
    await applied(world, over(given))
    await world.sound()
    assert await world.drain() == (patient.id,)


async def test_letter_cancelled_takes_those_along_who_were_to_die(world: World) -> None:
    letter = await world.letter()
    patient, mortal = new(terms=Terms(after=(letter.id,))), new(terms=Terms(after=(letter.id,), on_dead="die"))
    await world.put(patient, mortal)
    assert (await world.store.amend(Ids((mortal.id,)), Replay(), act())).changed == (mortal.id,)
    (given,) = await leased(world, letter)
    await applied(world, over(given, ToCancelled()))
    assert await world.holds(patient) == ["after"]
    assert (await world.item(mortal.id)).state is State.DEAD
    await world.sound()


@pytest.mark.parametrize("twin", [False, True])
async def test_letter_done_has_its_dedupe_key_for_the_rest_of_the_window(world: World, *, twin: bool) -> None:
    terms = Terms(dedupe=Dedupe("d", window=60 * SECOND))
    first, second, third = new(terms=terms), new(terms=terms), new(terms=terms)
    await world.put(first)
    await world.end(first, dead)
    if twin:
        await world.put(second)
    (given,) = await leased(world, first)
    await applied(world, over(given))
    (told,) = (await world.store.put([third])).duplicates
    assert (told.id, told.of) == (third.id, second.id if twin else first.id)
    await world.sound()


async def test_letter_has_no_place_under_its_limit_key(world: World) -> None:
    await world.set(QueueChange(max_per_key=1))
    terms = Terms(limit_key="k")
    letter, *others = [new(terms=terms) for _ in range(3)]
    await world.put(letter)
    await world.end(letter, dead)
    await world.put(*others)
    (running,) = await world.lease(5)
    (given,) = await leased(world, letter)
    assert await world.holds(others[1]) == ["limit"]
    await applied(world, over(given))
    assert await world.holds(others[1]) == ["limit"]
    await world.sound()
    assert running.id == others[0].id
    assert await world.lease(5) == ()
