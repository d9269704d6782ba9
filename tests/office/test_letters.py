"""What an operator can do with dead letters, on every store."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from redrive import Redrive
from redrive.core.states import Disposition, State
from redrive.errors import BadFilter, ConfigError, NotFound
from redrive.events import Amended, Event
from redrive.office import bites
from redrive.stores.memory import MemoryStore
from redrive.testing.faults import FaultyStore
from tests.support.apps import Work, work

__all__ = ["work"]


async def test_find_gives_letters_last_died_first_with_their_evidence(work: Work) -> None:
    first, second = [await work.app.enqueue("emails", {"to": name}) for name in ("a", "b")]
    await work.run()
    page = await work.app.letters.find()
    assert [item.id for item in page] == [second, first]
    letter = page.items[0].letter
    assert letter is not None
    assert (letter.reason, letter.disposition) == ("no_retry", Disposition.OPEN)
    assert letter.failure.type == "ValueError"
    assert letter.failure.text == "user 42 has no address"
    assert letter.failure.frames[-1].function == "send"
    assert page.items[0].payload == b'{"to":"b"}'


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("queue:emails", 3),
        ("queue:other", 0),
        ("error:ValueError", 3),
        ("error:*Timeout", 0),
        ("category:data errors>=1", 3),
        ("reason:no_retry age<1h", 3),
        ("age>1h", 0),
        ("-queue:emails", 0),
        ("(queue:other OR error:Value*) attempts=1", 3),
        ("disposition:archived", 0),
    ],
)
async def test_find_by_filter(work: Work, text: str, found: int) -> None:
    await work.letters(3)
    assert len(await work.app.letters.find(text)) == found


async def test_find_by_cause_and_id_prefix(work: Work) -> None:
    ids = await work.letters(2)
    (cause,) = await work.app.causes()
    assert (cause.count, cause.queue, cause.error) == (2, "emails", "ValueError")
    assert len(await work.app.letters.find(f"cause:{cause.cause}")) == 2
    assert [item.id for item in await work.app.letters.find(f"id:{ids[0][:8]}*")] == [ids[0]]


async def test_pages_cover_every_letter_once(work: Work) -> None:
    ids = await work.letters(7)
    seen: list[str] = []
    cursor = None
    while True:
        page = await work.app.letters.find(limit=3, cursor=cursor)
        seen += [item.id for item in page]
        cursor = page.next
        if cursor is None:
            break
    assert sorted(seen) == sorted(ids)
    assert len(seen) == 7


async def test_get_tells_every_attempt_and_act(work: Work) -> None:
    (letter,) = await work.letters(1)
    await work.app.letters.replay([letter], reason="first try")
    await work.run()
    history = await work.app.letters.get(letter[:8])
    assert [attempt.delivery for attempt in history.attempts] == [1, 2]
    assert {attempt.ending for attempt in history.attempts} == {"failed"}
    for attempt in history.attempts:
        assert attempt.worker
        assert attempt.started_at >= history.item.enqueued_at
        assert attempt.failure is not None
        assert attempt.failure.cause
        assert attempt.failure.rule
        assert attempt.failure.category
    (deed,) = history.deeds
    assert (deed.change, deed.actor, deed.reason) == ("replay", "tester", "first try")


async def test_replay_keeps_the_identity_and_gives_a_fresh_budget(work: Work) -> None:
    (letter,) = await work.letters(1)
    work.broken = None
    done = await work.app.letters.replay(letter, reason="fixed")
    assert done.changed == (letter,)
    item = await work.app.get(letter)
    assert (item.state, item.errors, item.attempt, item.replays, item.deliveries) == (State.READY, 0, 0, 1, 1)
    await work.run()
    assert await work.app.wait(letter) == "sent to u0"


async def test_replay_once_makes_the_next_error_final(work: Work) -> None:
    (letter,) = await work.letters(1)
    await work.app.letters.replay(letter, reason="look again", budget="once")
    await work.run()
    history = await work.app.letters.get(letter)
    assert history.item.letter is not None
    assert history.item.letter.reason == "last_chance"


async def test_replay_by_filter_moves_exactly_what_matches(work: Work) -> None:
    ids = await work.letters(3)
    await work.app.letters.archive([ids[0]], reason="known")
    done = await work.app.letters.replay("error:ValueError", reason="all open ones")
    assert sorted(done.changed) == sorted(ids[1:])
    assert (await work.app.get(ids[0])).state is State.DEAD


@pytest.mark.parametrize("how", ["filter", "page", "pace", "dedupe_by", "ids"])
async def test_letters_of_an_order_key_are_replayed_in_the_order_in_which_they_died(
    work: Work, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the number of writes: two bites here."""
    monkeypatch.setattr(bites, "PAGE_LIMIT", 2)
    await work.app.configure("emails", order="skip", reason="the others go on")
    await work.app.enqueue_many("emails", [{"to": name} for name in "abcd"], order_key="one")
    await work.run()
    letters = work.app.letters
    page = await letters.find("queue:emails")
    options: dict[str, Any] = {"pace": {"pace": "1000/s"}, "dedupe_by": {"dedupe_by": "to"}}.get(how, {})
    which: Any = {"page": page, "ids": [item.id for item in page]}.get(how, "queue:emails")
    await letters.replay(which, reason="fixed", **options)
    work.broken = None
    await work.run()
    assert work.handled[4:] == [*("dcba" if how == "ids" else "abcd")], "ids go as they are given"


async def test_a_later_bite_of_a_replay_waits_for_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may carry them out in any order."""
    monkeypatch.setattr(bites, "PAGE_LIMIT", 1)
    store = FaultyStore(MemoryStore())
    async with Redrive(store, log=False) as app:
        work = Work(app)
        await app.configure("emails", order="skip", reason="the others go on")
        await app.enqueue_many("emails", [{"to": name} for name in "ab"], order_key="one")
        await work.run()
        held = store.hold("amend")
        replaying = asyncio.create_task(app.letters.replay("queue:emails", reason="fixed"))
        await held.reached.wait()
        for _ in range(100):
            await asyncio.sleep(0)  # noqa: TID251 - turns of the loop
        held.release()
        await replaying
        work.broken = None
        await work.run()
        assert work.handled[2:] == [*"ab"]


async def test_replay_of_an_archived_letter_by_id(work: Work) -> None:
    (letter,) = await work.letters(1)
    await work.app.letters.archive(letter, reason="later")
    assert (await work.app.letters.replay(letter, reason="now")).changed == (letter,)


async def test_the_same_request_replays_once(work: Work) -> None:
    (letter,) = await work.letters(1)
    first = await work.app.letters.replay(letter, reason="x", request_id="r1")
    await work.run()
    again = await work.app.letters.replay(letter, reason="x", request_id="r1")
    assert (first.changed, again.changed, again.already) == ((letter,), (), (letter,))
    assert (await work.app.get(letter)).replays == 1


async def test_a_request_id_may_be_that_of_several_acts(work: Work) -> None:
    """Also of a replay in the background, a cancel of it, and then a plain replay."""
    (letter,) = await work.letters(1)
    ticket: dict[str, Any] = {"reason": "INC-7", "request_id": "INC-7"}
    await work.app.edit(letter, {"n": 1}, **ticket)
    assert (await work.app.letters.replay(letter, background=True, **ticket)).reserved == (letter,)
    assert (await work.app.letters.replay(letter, **ticket)).skipped[0].code == "reserved"
    await work.app.replays.cancel("INC-7", **ticket)
    assert (await work.app.letters.replay(letter, **ticket)).changed == (letter,)
    assert (await work.app.letters.recall([letter], **ticket)).changed == (letter,)
    assert (await work.app.letters.replay(letter, **ticket)).already == (letter,)


@pytest.mark.parametrize("wrong", ["", "  ", "a\n", "\x1b[2J", "x" * 201, 7])
async def test_a_request_id_is_printed(work: Work, wrong: Any) -> None:
    (letter,) = await work.letters(1)
    for act in (work.app.letters.archive, work.app.edit, work.app.replays.undo):
        args = (letter, 1) if act == work.app.edit else (letter,)
        with pytest.raises(ConfigError, match=r"request_id: .* is not a request id"):
            await act(*args, reason="x", request_id=wrong)
    with pytest.raises(ConfigError, match="and at most 9223372036854775807"):
        await work.app.letters.changes(after=10**23)


async def test_a_delayed_replay_is_not_due_before(work: Work) -> None:
    (letter,) = await work.letters(1)
    await work.app.letters.replay(letter, reason="tomorrow", delay="1d")
    item = await work.app.get(letter)
    assert item.due_at - item.renewed_at == 86_400_000


async def test_recall_takes_a_replay_back(work: Work) -> None:
    first, second, third = await work.letters(3)
    before = [(await work.app.letters.get(one)).item for one in (first, second, third)]
    await work.app.letters.replay([first, second], reason="up again", delay="1h", request_id="r-1")
    await work.app.letters.replay(third, reason="up again", delay="1h")
    recalled = await work.app.letters.recall(request="r-1", reason="not yet")
    assert sorted(recalled.changed) == sorted([first, second])
    assert (await work.app.letters.recall("queue:emails", reason="not yet")).changed == (third,)
    assert [(await work.app.letters.get(one)).item for one in (first, second, third)] == before


async def test_recall_says_what_it_cannot_do(work: Work) -> None:
    first, second = await work.letters(2)
    await work.app.letters.replay(first, reason="up again")
    await work.run()
    skipped = (await work.app.letters.recall([first, second], reason="x")).skipped
    assert ["leased" in skipped[0].reason, "not replayed" in skipped[1].reason] == [True, True]
    for named in (f"id:{first}", f"id:{first} queue:emails"):
        assert [one.code for one in (await work.app.letters.recall(named, reason="x")).skipped] == ["leased_since"]
    assert [one.code for one in (await work.app.unpark(f"id:{second}", reason="x")).skipped] == ["not_parked"]
    for bad in ({}, {"which": first, "request": "r-1"}, {"which": ""}):
        with pytest.raises(ConfigError):
            await work.app.letters.recall(reason="x", **bad)
    with pytest.raises(NotFound, match="no replay has the request id 'r-9'"):
        await work.app.letters.recall(request="r-9", reason="x")


async def test_discard_and_restore(work: Work) -> None:
    (letter,) = await work.letters(1)
    await work.app.letters.discard(letter, reason="spam")
    assert not len(await work.app.letters.find())
    refused = await work.app.letters.replay(letter, reason="oops")
    assert refused.skipped[0].reason == "it is in the trash; restore it first"
    await work.app.letters.restore("disposition:trash", reason="not spam")
    (item,) = await work.app.letters.find()
    assert item.letter is not None
    assert item.letter.failure.text == "user 42 has no address"


async def test_restore_by_filter_looks_where_letters_were_put_away(work: Work) -> None:
    (letter,) = await work.letters(1)
    await work.app.letters.archive(letter, reason="later")
    assert (await work.app.letters.restore("queue:emails", reason="now")).changed == (letter,)


async def test_every_act_is_audited(work: Work) -> None:
    (letter,) = await work.letters(1)
    seen: list[Event] = []
    work.app.events.subscribe(seen.append)
    await work.app.letters.archive(letter, reason="known problem", actor="ann")
    (entry,) = await work.app.letters.audit()
    assert (entry.actor, entry.reason) == ("ann", "known problem")
    assert letter in json.dumps(json.loads(entry.body))
    told = [event for event in seen if isinstance(event, Amended)]
    assert [(event.change, event.changed, event.skipped) for event in told] == [("archive", 1, 0)]


async def test_what_cannot_be_done_is_skipped_with_the_reason(work: Work) -> None:
    waiting = await work.app.enqueue("emails", {"to": "later"}, delay="1h")
    done = await work.app.letters.replay([waiting, "nosuchitem"], reason="x")
    assert done.changed == ()
    assert {skip.id: skip.reason for skip in done.skipped}[waiting] == "it is ready, not a dead letter"
    assert "nosuchitem" in {skip.id for skip in done.skipped}


async def test_bad_input_names_the_field_and_moves_nothing(work: Work) -> None:
    (letter,) = await work.letters(1)
    office = work.app.letters
    with pytest.raises(ConfigError, match="reason: a reason is needed"):
        await office.replay(letter, reason=" ")
    with pytest.raises(ConfigError, match="budget: 'lots' is not a budget"):
        await office.replay(letter, reason="x", budget="lots")
    with pytest.raises(ConfigError, match="filter: it is empty"):
        await office.replay("", reason="x")
    with pytest.raises(ConfigError, match="limit"):
        await office.find(limit=0)
    with pytest.raises(ConfigError, match="cursor"):
        await office.find(cursor="nonsense")
    with pytest.raises(NotFound):
        await office.get("zzzzzzzz")
    with pytest.raises(NotFound, match="at least its first 4 characters"):
        await office.get("ab")
    for unprintable in ("\udcff\udcfe\udcff\udcfe", "abcd\0", "abcd\x1b[2J"):
        with pytest.raises(NotFound, match="can be printed"):
            await office.get(unprintable)
    with pytest.raises(BadFilter) as raised:
        await office.find("queue:emails eror:ValueError")
    assert raised.value.column == 14
    assert "error" in raised.value.hint
    assert (await work.app.get(letter)).state is State.DEAD


async def test_r15_a_paced_replay_sends_no_faster_than_its_pace(work: Work) -> None:
    ids = await work.letters(7)
    done = await work.app.letters.replay(ids, reason="gently", pace="10/s")
    assert (done.reserved, done.changed, done.replayed) == (tuple(ids), (), ())
    assert (await work.app.replays.get(done.replay)).total == 7
    letters = [(await work.app.letters.get(one)).item.letter for one in ids]
    assert {None if letter is None else letter.reserved for letter in letters} == {done.replay}
    skipped = (await work.app.letters.archive(ids[0], reason="x")).skipped
    assert f"reserved for replay {done.replay}" in skipped[0].reason
    await work.run()
    histories = [await work.app.letters.get(one) for one in ids]
    sent = [next(deed.at for deed in history.deeds if deed.change == "replay") for history in histories]
    # Two each 200 ms: the last window comes 600 ms after the first.
    assert (sent == sorted(sent), sent[-1] - sent[0] >= 550) == (True, True)
    assert (await work.app.replays.get(done.replay)).state == "done"


async def test_a_paced_replay_sends_one_letter_of_each_key(work: Work) -> None:
    ids = await work.letters(3)
    done = await work.app.letters.replay(ids, reason="once", background=True, dedupe_by=str_of)
    assert done.reserved == tuple(ids)
    await work.run()
    shown = await work.app.replays.get(done.replay)
    assert (shown.state, shown.sent, shown.skipped) == ("done", 1, 2)


def str_of(payload: object) -> str:
    return type(payload).__name__


async def test_a_pace_that_is_none_is_told_and_nothing_moves(work: Work) -> None:
    ids = await work.letters(2)
    with pytest.raises(ConfigError, match="pace") as told:
        await work.app.letters.replay(ids, reason="x", pace="fast")
    assert told.value.field == "pace"
    assert len(await work.app.letters.find()) == 2


async def test_changes_are_followed_from_the_last_number(work: Work) -> None:
    first, second = await work.letters(2)
    changes = await work.app.letters.changes()
    assert [change.id for change in changes] == [first, second]
    assert changes[0].item == (await work.app.letters.get(first)).item
    last = changes[-1].number
    assert await work.app.letters.changes(after=last) == ()
    await work.app.letters.archive(first, reason="known")
    (change,) = await work.app.letters.changes(after=last)
    assert (change.id, change.number > last) == (first, True)
    for wrong in (-1, True, "1"):
        with pytest.raises(ConfigError, match="after: must be 0 or more"):
            await work.app.letters.changes(after=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="limit"):
        await work.app.letters.changes(limit=0)
