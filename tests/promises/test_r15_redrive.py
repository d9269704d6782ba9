"""R15: letters sent again in bulk, under kills, by the same request twice, by two operators, while some are purged.

Pass: each letter is redriven exactly once per request, whatever happens in between; a redrive that was killed can be
resumed; the history of attempts is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterable

import msgspec
import pytest

from redrive import Policy
from redrive.core.acts import Act
from redrive.core.item import Attempt, Ending, Failure, History, Item, Letter
from redrive.core.states import Disposition, State
from redrive.office import bites
from redrive.stores.base import Store
from redrive.testing.faults import Fault, SimulatedCrash
from tests.support.lab import Lab
from tests.support.rig.survey import survey

LETTERS = 24


@pytest.fixture(autouse=True)
def small_bites(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bulk act of many pages, without a thousand letters for each."""
    monkeypatch.setattr(bites, "PAGE_LIMIT", 5)


WHY = Failure("ValueError", "user 42 has no address", "data", "default:data", "c41fc41fc41f")


def letter(number: int) -> History:
    """With two attempts behind it."""
    attempts = tuple(Attempt(at, at, "w", 1000 * at, 5, Ending.FAILED, WHY) for at in (1, 2))
    item = Item(
        f"letter-{number:06}",
        "mail",
        b'{"n":%d}' % number,
        seq=0,
        state=State.DEAD,
        enqueued_at=1000,
        due_at=1000,
        renewed_at=1000,
        deliveries=2,
        attempt=2,
        errors=2,
        ended_at=5000,
        letter=Letter("max_attempts", 5000, Disposition.OPEN, WHY),
    )
    return History(item, attempts)


async def letters_in(store: Store, count: int) -> list[str]:
    made = [letter(number) for number in range(count)]
    for start in range(0, count, 500):
        await store.take_in(made[start : start + 500], Act("rig", "letters to redrive", f"import-{start}"))
    return [each.item.id for each in made]


async def check_once(store: Store, ids: Iterable[str], *requests: str) -> None:
    """Each was replayed once, by one of the requests, and has its history."""
    for item_id in ids:
        found = await store.get(item_id)
        replays = [deed for deed in found.deeds if deed.change == "replay"]
        assert (found.item.replays, len(replays)) == (1, 1), item_id
        assert replays[0].request_id in requests
        assert [attempt.delivery for attempt in found.attempts[:2]] == [1, 2], "the history of attempts is kept"
    assert (await survey(store)).miscounts == {}


async def audited(store: Store) -> Counter[str]:
    """How often the audit says of an item that it was replayed."""
    told: Counter[str] = Counter()
    after = 0
    while entries := await store.journal("audit", after, 1000):
        after = entries[-1].position
        bodies = [msgspec.json.decode(entry.body) for entry in entries]
        told.update(one for body in bodies if body["change"] == "replay" for one in body["changed"])
    return told


@pytest.mark.parametrize("when", ["before", "after"])
async def test_r15_a_redrive_killed_anywhere_is_resumed_and_doubles_nothing(lab: Lab, when: str) -> None:
    ids = await letters_in(lab.store, LETTERS)
    for bite in range(1, 5):
        dying, store = await lab.faulty()
        held = [store.hold("amend", "before" if when == "before" else "after") for _ in range(bite)]
        sending = asyncio.create_task(dying.letters.replay(ids, reason="fixed", request_id="one"))
        for each in held[:-1]:
            await lab.until(each.reached.is_set)
            each.release()
        await lab.until(held[-1].reached.is_set)
        store.crashed = True
        held[-1].release()
        with contextlib.suppress(SimulatedCrash):
            await sending
    heir = await lab.app()
    done = await heir.letters.replay(ids, reason="fixed", request_id="one")
    assert (sorted([*done.changed, *done.already]), done.skipped) == (ids, ())
    assert done.already, "the killed ones had done something"
    await check_once(lab.store, ids, "one")
    assert await audited(lab.store) == Counter(ids)


async def test_r15_an_unknown_outcome_is_repeated_and_doubles_nothing(lab: Lab) -> None:
    ids = await letters_in(lab.store, LETTERS)
    app, store = await lab.faulty()
    for fault in (Fault.UNKNOWN, Fault.UNKNOWN_UNDONE, Fault.UNAVAILABLE):
        store.next("amend", fault)
        with pytest.raises(Exception, match="scripted"):
            await app.letters.replay(ids, reason="fixed", request_id="one")
    store.next("amend", Fault.DUPLICATE)
    done = await app.letters.replay(ids, reason="fixed", request_id="one")
    assert sorted([*done.changed, *done.already]) == ids
    await check_once(lab.store, ids, "one")
    assert await audited(lab.store) == Counter(ids)


async def test_r15_the_same_request_sent_twice_at_once_counts_once(lab: Lab) -> None:
    ids = await letters_in(lab.store, LETTERS)
    apps = [await lab.app() for _ in range(2)]
    sent = [app.letters.replay(ids, reason="fixed", request_id="one") for app in apps]
    first, second = await asyncio.gather(*sent)
    assert sorted([*first.changed, *second.changed]) == ids
    assert (set(first.already) | set(second.already)) == set(ids)
    await check_once(lab.store, ids, "one")


async def test_r15_the_same_request_after_they_died_again_sends_nobody(lab: Lab) -> None:
    """The request is remembered with the letter, not only with those that still wait."""
    ids = await letters_in(lab.store, 5)
    app = await lab.app()

    @app.handler("mail", policy=Policy(max_attempts=1))
    async def fail(n: int) -> None:
        raise ValueError(n)

    await app.letters.replay(ids, reason="fixed", request_id="one")
    await lab.drain(app)
    again = await app.letters.replay(ids, reason="fixed", request_id="one")
    assert (again.changed, sorted(again.already)) == ((), ids)
    await check_once(lab.store, ids, "one")


async def test_r15_two_operators_on_overlapping_sets_share_them_without_overlap(lab: Lab) -> None:
    ids = await letters_in(lab.store, LETTERS)
    ann, bob = [await lab.app() for _ in range(2)]
    mine, theirs = ids[:16], ids[8:]
    first, second = await asyncio.gather(
        ann.letters.replay(mine, reason="mine", request_id="ann", actor="ann"),
        bob.letters.replay(theirs[::-1], reason="mine too", request_id="bob", actor="bob"),
    )
    assert sorted([*first.changed, *second.changed]) == ids
    assert not first.already
    assert not second.already
    for done, asked in ((first, mine), (second, theirs)):
        assert sorted([*done.changed, *[one.id for one in done.skipped]]) == sorted(asked)
        assert {one.reason for one in done.skipped} <= {"it is ready, not a dead letter"}
    await check_once(lab.store, ids, "ann", "bob")
    assert await audited(lab.store) == Counter(ids)


async def test_r15_a_letter_purged_meanwhile_is_sent_or_gone_but_never_both(lab: Lab) -> None:
    ids = await letters_in(lab.store, LETTERS)
    sender, purger = [await lab.app() for _ in range(2)]
    doomed = ids[::3]

    async def purge() -> set[str]:
        gone: set[str] = set()
        for each in doomed:
            await purger.letters.discard(each, reason="not wanted")
            gone |= {stone.id for stone in await purger.prune(f"id:{each} state:dead", reason="not wanted")}
        return gone

    done, gone = await asyncio.gather(sender.letters.replay(ids, reason="fixed", request_id="one"), purge())
    sent = set(done.changed)
    assert (sent & gone, sent | gone) == (set(), set(ids))
    assert {one.id for one in done.skipped} == gone
    for each in gone:
        assert await lab.store.tombstone(each) is not None
    await check_once(lab.store, sent, "one")
