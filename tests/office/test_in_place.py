"""Letters worked on where they lie: what becomes of each, who has it, and what a crash leaves behind."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Sequence

import pytest
from msgspec.structs import replace

from redrive import Cancel, Halt, Policy, Redrive, Retry, Snooze, blocking, never
from redrive.app.internals import store_of
from redrive.core.item import Item
from redrive.core.states import Disposition, State
from redrive.errors import ConfigError
from redrive.events import Amended, Event, Finished
from redrive.stores.memory import MemoryStore
from redrive.testing.clock import FakeClock
from redrive.testing.faults import Fault, FaultyStore
from tests.support.apps import Work, work

__all__ = ["work"]

WHY = "the server is back"


async def answer(item: Item) -> str:
    return f"did {json.loads(item.payload)['to']}"


async def lent(app: Redrive, letter: str) -> tuple[Item, ...]:
    """To somebody else, if it can be had."""
    return await store_of(app).lease_letters([letter], "ann", 600_000)  # people have only `work`


async def test_what_returns_is_done_with_its_result_and_what_raises_stays_a_letter(work: Work) -> None:
    ids = await work.letters(4)
    before = await work.app.get(ids[1])

    async def deliver(item: Item) -> str:
        if item.id == ids[1]:
            raise LookupError("still no address")
        if item.id == ids[2]:
            raise Cancel("superseded: it was told already")
        return await answer(item)

    done = await work.app.letters.work("queue:emails", deliver, reason=WHY)
    assert (done.done, done.left, done.skipped, done.halted) == ((ids[0], ids[3]), (), (), "")
    assert [(each.id, each.reason) for each in done.kept] == [(ids[1], "LookupError: still no address")]
    assert [(each.id, each.reason) for each in done.cancelled] == [(ids[2], "superseded: it was told already")]
    assert await work.app.wait(ids[0]) == "did u0"
    kept = await work.app.history(ids[1])
    assert (kept.item.state, kept.item.letter) == (State.DEAD, before.letter)
    assert (kept.item.attempt, kept.item.errors, kept.item.deliveries) == (1, 1, 2)
    assert [attempt.ending for attempt in kept.attempts] == ["failed", "failed"]
    assert kept.attempts[1].failure is not None
    assert (kept.attempts[1].failure.type, kept.attempts[1].failure.text) == ("LookupError", "still no address")
    assert kept.attempts[1].note == f"in place by tester: {WHY}"
    gone = await work.app.history(ids[2])
    assert (gone.item.state, gone.attempts[-1].ending) == (State.CANCELLED, "cancelled")
    assert gone.attempts[-1].note.endswith("superseded: it was told already")
    assert await work.app.letters.count() == 1
    assert (await work.app.check()).findings == ()


async def audited(app: Redrive) -> list[tuple[str, str, list[str], dict[str, int]]]:
    """Who, why, which are letters no more, and what became of how many; of each entry about work in place."""
    entries = [each for each in await app.audit.list() if b'"work"' in each.body]
    bodies = [json.loads(each.body) for each in entries]
    assert {body["change"] for body in bodies} <= {"work"}
    assert len({each.request_id for each in entries}) <= 1, "one call is one request"
    said = zip(entries, bodies, strict=True)
    return [(each.actor, each.reason, body["changed"], body["settings"]) for each, body in said]


async def test_each_letter_is_in_the_audit_once_and_told_to_subscribers(work: Work) -> None:
    ids = await work.letters(4)
    told: list[Event] = []
    work.app.events.subscribe(told.append)

    async def deliver(item: Item) -> str:
        if item.id == ids[2]:
            raise LookupError("still no address")
        if item.id == ids[3]:
            raise Cancel("it was told already")
        return await answer(item)

    await work.app.letters.work(ids, deliver, reason=WHY, actor="ann")
    assert await audited(work.app) == [
        ("ann", WHY, [ids[0]], {"done": 1}),
        ("ann", WHY, [ids[1]], {"done": 1}),
        ("ann", WHY, [ids[3]], {"cancelled": 1}),
        ("ann", WHY, [], {"kept": 1}),
    ]
    assert [event.state for event in told if isinstance(event, Finished)] == ["done", "done", "cancelled"]
    (amended,) = [event for event in told if isinstance(event, Amended)]
    assert (amended.change, amended.changed, amended.skipped) == ("work", 3, 1)


async def test_what_is_done_is_in_the_audit_while_the_work_goes_on(work: Work) -> None:
    """So that a process that is killed leaves no deed without its entry."""
    ids = await work.letters(3)
    seen: list[list[str]] = []

    async def deliver(item: Item) -> str:
        seen.append([one for _, _, changed, _ in await audited(work.app) for one in changed])
        return await answer(item)

    await work.app.letters.work(ids, deliver, reason=WHY)
    assert seen == [[], ids[:1], ids[:2]]


async def test_nothing_there_is_nothing_done(work: Work) -> None:
    done = await work.app.letters.work("queue:emails", answer, reason=WHY)
    assert (done.done, done.kept, done.left) == ((), (), ())
    assert await work.app.audit.list() == ()


async def test_halt_stops_early_and_leaves_all_as_it_was(work: Work) -> None:
    ids = await work.letters(3)
    before = [await work.app.get(each) for each in ids]

    async def refuse(item: Item) -> None:
        raise Halt("nobody answers")

    done = await work.app.letters.work("queue:emails", refuse, reason=WHY)
    assert (done.halted, done.left, done.done, done.kept) == ("nobody answers", tuple(ids), (), ())
    for each in before:
        history = await work.app.history(each.id)
        assert history.item.letter == each.letter
        assert len(history.attempts) == 1
    assert (await work.app.letters.replay(ids, reason="again")).changed == tuple(ids), "they were let go"
    assert not [entry for entry in await work.app.audit.list() if b'"work"' in entry.body]


async def test_what_somebody_else_has_is_skipped_and_named(work: Work) -> None:
    ids = await work.letters(3)
    await work.app.letters.discard(ids[1], reason="spam")
    (held,) = await lent(work.app, ids[0])
    done = await work.app.letters.work([*ids, "unknown"], answer, reason=WHY)
    assert done.done == (ids[2],)
    why = {each.id: each.reason for each in done.skipped}
    assert re.fullmatch("it is leased by ann for another [0-9ms]+; repeat this if it is a letter then", why.pop(ids[0]))
    assert why == {ids[1]: "it is in the trash; restore it first", "unknown": "no such item"}
    assert (await work.app.get(ids[0])).deliveries == held.deliveries


async def test_a_dry_run_touches_nothing(work: Work) -> None:
    ids = await work.letters(3)
    await lent(work.app, ids[0])
    before = [await work.app.get(each) for each in ids]
    done = await work.app.letters.work("queue:emails", answer, reason=WHY, dry_run=True, limit=2)
    assert (done.left, [each.id for each in done.skipped]) == ((ids[1],), [ids[0]])
    assert [await work.app.get(each) for each in ids] == before


async def test_two_at_once_share_the_letters_and_none_is_worked_twice(work: Work) -> None:
    ids = await work.letters(12)
    calls: list[str] = []

    async def deliver(item: Item) -> None:
        calls.append(item.id)
        await asyncio.sleep(0)  # noqa: TID251 - lets the other one act

    one, two = await asyncio.gather(
        *(work.app.letters.work("queue:emails", deliver, reason=WHY, concurrency=3) for _ in range(2))
    )
    assert sorted(calls) == sorted(ids) == sorted([*one.done, *two.done])


async def test_an_archived_letter_stays_archived_unless_it_is_done(work: Work) -> None:
    ids = await work.letters(2)
    await work.app.letters.archive(ids, reason="later")

    async def deliver(item: Item) -> None:
        if item.id == ids[0]:
            raise ValueError("no")

    done = await work.app.letters.work("disposition:archived", deliver, reason=WHY)
    assert (done.done, [each.id for each in done.kept]) == ((ids[1],), [ids[0]])
    letter = (await work.app.get(ids[0])).letter
    assert letter is not None
    assert letter.disposition is Disposition.ARCHIVED


# -- in memory: what the stores have no part in ----------------------------------------------------------------------


class Lab(Work):
    def __init__(self, app: Redrive, clock: FakeClock, store: FaultyStore) -> None:
        super().__init__(app)
        self.clock = clock
        self.store = store


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    clock = FakeClock()
    store = FaultyStore(MemoryStore(clock=clock))
    app = Redrive(store, actor="tester", log=False, clock=clock)
    async with app:
        yield Lab(app, clock, store)


async def test_a_lease_is_prolonged_while_the_function_runs(lab: Lab) -> None:
    (letter,) = await lab.letters(1)
    go_on = asyncio.Event()

    async def slow(item: Item) -> None:
        await go_on.wait()

    working = asyncio.create_task(lab.app.letters.work(letter, slow, reason=WHY, ttl="30s"))
    await lab.clock.tick("5m")
    assert await lent(lab.app, letter) == ()
    go_on.set()
    assert (await working).done == (letter,)


async def test_whoever_loses_the_lease_says_so_and_changes_nothing(lab: Lab) -> None:
    (letter,) = await lab.letters(1)
    go_on = asyncio.Event()

    async def slow(item: Item) -> None:
        await go_on.wait()

    working = asyncio.create_task(lab.app.letters.work(letter, slow, reason=WHY, ttl="30s"))
    await lab.clock.tick("1s")
    lab.clock.advance("10m")  # as if the machine had slept
    (stolen,) = await lent(lab.app, letter)
    await lab.clock.tick("30s")
    done = await working
    assert (done.done, [each.reason for each in done.skipped]) == ((), ["its lease was lost"])
    assert (await lab.app.get(letter)).deliveries == stolen.deliveries


async def test_a_result_that_comes_too_late_is_refused_and_told(lab: Lab) -> None:
    (letter,) = await lab.letters(1)

    async def outlived(item: Item) -> str:
        lab.clock.advance("10m")  # as above, and nobody noticed yet
        await lent(lab.app, letter)
        return "too late"

    done = await lab.app.letters.work(letter, outlived, reason=WHY, ttl="30s")
    assert (done.done, [each.id for each in done.skipped]) == ((), [letter])
    assert (await lab.app.get(letter)).state is State.DEAD


async def test_being_cancelled_lets_go_of_what_is_in_hand(lab: Lab) -> None:
    ids = await lab.letters(3)
    begun = asyncio.Event()

    async def slow(item: Item) -> None:
        if item.id == ids[0]:
            return
        begun.set()
        await asyncio.Event().wait()

    working = asyncio.create_task(lab.app.letters.work("queue:emails", slow, reason=WHY))
    await begun.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert (await lab.app.get(ids[0])).state is State.DONE
    assert (await lab.app.letters.replay(ids[1:], reason="again")).changed == tuple(ids[1:])
    assert [(changed, became) for _, _, changed, became in await audited(lab.app)] == [([ids[0]], {"done": 1})]


async def test_being_cancelled_while_letters_are_lent_gives_them_back(lab: Lab) -> None:
    ids = await lab.letters(2)
    hold = lab.store.hold("lease_letters", "after")
    working = asyncio.create_task(lab.app.letters.work("queue:emails", answer, reason=WHY, concurrency=2))
    await hold.reached.wait()
    working.cancel()
    await lab.clock.tick("1s")
    hold.release()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert (await lab.app.letters.replay(ids, reason="again")).changed == tuple(ids)


async def test_a_keeper_that_cannot_reach_the_store_asks_again(lab: Lab) -> None:
    (letter,) = await lab.letters(1)
    go_on = asyncio.Event()

    async def slow(item: Item) -> None:
        await go_on.wait()

    lab.store.fail("extend", times=9)
    working = asyncio.create_task(lab.app.letters.work(letter, slow, reason=WHY, ttl="60s"))
    await lab.clock.tick("5m")
    assert await lent(lab.app, letter) == ()
    go_on.set()
    assert (await working).done == (letter,)


async def test_pace_is_kept(lab: Lab) -> None:
    await lab.letters(4)
    at: list[int] = []

    async def note(item: Item) -> None:
        at.append(lab.clock.now())

    working = asyncio.create_task(lab.app.letters.work("queue:emails", note, reason=WHY, pace="6/min", concurrency=4))
    await lab.clock.tick("1m")
    await working
    assert [each - at[0] for each in at] == [0, 10_000, 20_000, 30_000]


async def test_no_more_at_once_than_asked_for_and_progress_is_told(lab: Lab) -> None:
    await lab.letters(7)
    running = most = 0
    told: list[tuple[int, int]] = []

    async def busy(item: Item) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)  # noqa: TID251 - lets the others act
        running -= 1

    done = await lab.app.letters.work(
        "queue:emails", busy, reason=WHY, concurrency=3, limit=6, on_progress=lambda *so_far: told.append(so_far)
    )
    assert (most, len(done.done), done.left) == (3, 6, ())
    assert told == [(reached, 6) for reached in range(1, 7)]


async def test_a_plain_function_runs_in_a_thread(lab: Lab) -> None:
    ids = await lab.letters(2)
    names: set[str] = set()

    def plain(item: Item) -> str:
        names.add(threading.current_thread().name)
        if item.id == ids[0]:
            raise StopIteration("enough")
        return "done"

    done = await lab.app.letters.work("queue:emails", plain, reason=WHY, concurrency=2)
    assert (done.done, [each.reason for each in done.kept]) == ((ids[1],), ["StopIteration: enough"])
    assert threading.main_thread().name not in names


async def test_not_now_puts_a_letter_off(lab: Lab) -> None:
    ids = await lab.letters(2)

    async def later(item: Item) -> None:
        if item.id == ids[0]:
            raise Snooze("10m", note="the server asked for it")
        raise Retry("busy", after="20m")

    done = await lab.app.letters.work("queue:emails", later, reason=WHY)
    assert [each.reason for each in done.kept] == ["the server asked for it", "redrive.Retry: busy"]
    again = await lab.app.letters.work("queue:emails", answer, reason=WHY)
    assert [each.reason for each in again.skipped] == ["it was put off and is not due yet"] * 2
    lab.clock.advance("10m")
    assert (await lab.app.letters.work("queue:emails", answer, reason=WHY)).done == (ids[0],)


async def test_whoever_has_a_reason_takes_early_what_was_put_off(lab: Lab) -> None:
    off, held = await lab.letters(2)

    async def later(item: Item) -> None:
        raise Snooze("10m")

    await lab.app.letters.work(off, later, reason=WHY)
    await lent(lab.app, held)
    would = await lab.app.letters.work("queue:emails", answer, reason=WHY, early=True, dry_run=True)
    done = await lab.app.letters.work("queue:emails", answer, reason=WHY, early=True)
    assert (would.left, done.done) == ((off,), (off,))
    until = "for another 10m; repeat this if it is a letter then"
    assert [each.reason for each in done.skipped] == [f"it is leased by ann {until}"]
    assert would.skipped == done.skipped


async def test_a_damaged_payload_is_never_handled(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    (letter,) = await lab.letters(1)
    lend = lab.store.lease_letters

    async def damaged(ids: Sequence[str], worker: str, ttl: int, *, early: bool) -> tuple[Item, ...]:
        given = await lend(ids, worker, ttl, early=early)
        return tuple([replace(item, flaw="its checksum is wrong") for item in given])

    monkeypatch.setattr(lab.store, "lease_letters", damaged)
    done = await lab.app.letters.work(letter, answer, reason=WHY)
    assert [each.id for each in done.kept] == [letter]
    assert "its checksum is wrong" in done.kept[0].reason


async def test_a_result_that_cannot_be_kept_keeps_the_letter(lab: Lab) -> None:
    (letter,) = await lab.letters(1)

    async def strange(item: Item) -> object:
        return object()

    done = await lab.app.letters.work(letter, strange, reason=WHY)
    assert [each.id for each in done.kept] == [letter]
    assert "PayloadNotSerialisable" in done.kept[0].reason


async def test_a_store_that_comes_back_costs_nothing(lab: Lab) -> None:
    ids = await lab.letters(3)
    calls: list[str] = []

    async def count(item: Item) -> None:
        calls.append(item.id)

    lab.store.fail("settle_letters", Fault.UNKNOWN, times=2)
    lab.store.fail("lease_letters", times=2)
    working = asyncio.create_task(lab.app.letters.work("queue:emails", count, reason=WHY))
    await lab.clock.tick("1m")
    assert (await working).done == tuple(ids)
    assert calls == ids


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"reason": " "}, "reason"),
        ({"ttl": "10ms"}, "ttl"),
        ({"ttl": "soon"}, "ttl"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": True}, "concurrency"),
        ({"pace": "0/s"}, "pace"),
        ({"limit": 0}, "limit"),
        ({"function": "mail"}, "function"),
    ],
)
async def test_bad_input_is_refused_before_anything_is_lent(lab: Lab, options: dict[str, object], field: str) -> None:
    (letter,) = await lab.letters(1)
    given = {"function": answer, "reason": WHY} | options
    with pytest.raises(ConfigError) as raised:
        await lab.app.letters.work(letter, **given)  # type: ignore[arg-type]
    assert raised.value.field == field
    assert (await lab.app.get(letter)).deliveries == 1


def test_it_works_without_a_loop() -> None:
    app = blocking.Redrive("memory:", actor="tester", log=False)

    @app.handler("mail", policy=Policy(backoff=never()))
    def fail(n: int) -> None:
        raise ValueError(f"no {n}")

    def deliver(item: Item) -> str:
        if app.letters.payload(item.id) == {"n": 1}:
            raise Cancel("not any more")
        return "done"

    with app:
        ids = app.enqueue_many("mail", [{"n": number} for number in range(3)])
        app.run(until_idle=True)
        done = app.letters.work((each for each in ids), deliver, reason=WHY, concurrency=2)
        assert (sorted(done.done), [each.id for each in done.cancelled]) == (sorted([ids[0], ids[2]]), [ids[1]])
        assert app.wait(ids[0]) == "done"


async def test_an_empty_filter_is_not_taken_for_all(lab: Lab) -> None:
    with pytest.raises(ConfigError, match="empty"):
        await lab.app.letters.work("", answer, reason=WHY)
