"""Looking, amending and pruning on Redis: indexes give what `matches` gives, and nothing is changed unseen."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from redrive.core import codec
from redrive.core.acts import (
    Archive,
    Cancel,
    Discard,
    Replay,
    Restore,
)
from redrive.core.filters import parse
from redrive.core.item import Item, Terms
from redrive.core.select import EVERYTHING, And, Ids, Match, Selection, matches, pins_dead
from redrive.core.verbs import (
    DocumentWrite,
    NewEntry,
    QueueChange,
    WorkerFacts,
)
from redrive.errors import NotFound, StoreCorrupt, StoreUnavailable
from redrive.stores import audit
from redrive.stores.base import PAGE_LIMIT
from redrive.stores.redis import amend, search
from redrive.stores.redis.session import Session
from redrive.stores.redis.shelf import DAY
from redrive.testing.conformance.kit import QUEUE, SECOND, World, act, dead, failure, finished, ids, new, news
from tests.stores.redis_office_kit import *  # noqa: F403 - the fixtures are meant
from tests.stores.redis_office_kit import Server

FILTERS = (
    "state:dead",
    "state:ready",
    "state:leased",
    "state:done",
    "state:cancelled",
    "state:ready queue:emails",
    "state:leased queue:emails",
    "state:done queue:sms",
    "state:cancelled queue:emails",
    "state:done cause:c1",
    "queue:sms",
    "disposition:open",
    "disposition:trash queue:sms",
    "cause:c1",
    "cause:c1 queue:emails",
    "cause:c1 queue:emails disposition:archived",
    "cause:nobody",
    "error:Timeout",
    "error:net.Timeout",
    "error:other.Timeout",
    "error:net.*",
    "category:timeout queue:sms",
    "category:bug",
    "rule:special",
    "reason:max_attempts",
    "-state:dead",
    "-cause:c1 state:dead",
    "died<=1m",
    "died<65s",
    "died>65s",
    "died>=40s died<=60s queue:sms",
    "died>50s died>60s disposition:open",
    "-died>65s state:dead",
    "age>60s",
    "crashes>=1",
)


async def _populate(world: World) -> list[Item]:
    """Every state, disposition, and way to die, in two queues; some of one instant and some apart."""
    for queue in ("emails", "sms"):
        await world.put(*news(2, queue=queue), new(queue=queue, delay=10 * SECOND))
        await world.done(queue)
        for number, error in enumerate(("net.Timeout", "other.Timeout", "Timeout", "app.Bug")):
            for cause in ("c1", "c2"):
                await _letter(world, queue, error, cause, rule="special" if number == 0 else "default")
            if number:
                world.tick(10 * SECOND)
        unwanted = new(queue=queue)
        await world.put(unwanted)
        await world.store.amend(Ids((unwanted.id,)), Cancel(), act())
        await world.suspect(1, queue)
        await world.lease(1, queue=queue, worker=f"holder of {queue}")
    letters = (await world.store.find(Match("state", "=", "dead"))).items
    await world.store.amend(Ids(ids(letters[::3])), Archive(), act())
    await world.store.amend(Ids(ids(letters[1::3])), Discard(), act())
    return list((await world.store.find(EVERYTHING, PAGE_LIMIT)).items)


async def _letter(world: World, queue: str, error: str, cause: str, rule: str) -> None:
    made = new(queue=queue)
    await world.put(made)
    item = await world.grab(made.id, queue)
    category = "bug" if error.endswith("Bug") else "timeout"
    await world.finish(dead(item, why=replace(failure(cause, error), category=category, rule=rule)))


def _expected(items: Sequence[Item], selection: Selection, now: int) -> list[str]:
    chosen = [item for item in items if matches(selection, item, now)]
    if pins_dead(selection):
        chosen.sort(key=lambda item: (item.letter.died_at if item.letter else 0, item.seq), reverse=True)
    else:
        chosen.sort(key=lambda item: item.seq, reverse=True)
    return [item.id for item in chosen]


async def _pages(world: World, selection: Selection, limit: int, *, oldest: bool = False) -> list[Item]:
    found: list[Item] = []
    cursor = None
    while True:
        page = await world.store.find(selection, limit, cursor, oldest=oldest)
        found += page.items
        cursor = page.next
        if cursor is None:
            return found


async def test_every_filter_gives_what_matches_gives(world: World) -> None:
    items = await _populate(world)
    by_id = {item.id: item for item in items}
    empty: list[str] = []
    for text in FILTERS:
        selection = parse(text)
        expected = _expected(items, selection, world.clock.now())
        for limit in (1, 3, 1000):
            found = await _pages(world, selection, limit)
            assert [item.id for item in found] == expected, (text, limit)
            assert found == [by_id[item.id] for item in found], text
        oldest = await _pages(world, selection, 2, oldest=True)
        assert oldest == [by_id[item_id] for item_id in expected[::-1]], text
        assert list((await world.store.ids(selection)).ids) == expected, text
        assert list((await world.store.ids(selection, oldest=True)).ids) == expected[::-1], text
        empty += [] if expected else [text]
    assert empty == ["state:done cause:c1", "cause:nobody"]


async def test_the_oldest_are_the_first_that_match(world: World) -> None:
    items = await _populate(world)
    session = await _session(world)
    for text in FILTERS:
        selection = parse(text)
        expected = sorted(
            [item for item in items if matches(selection, item, world.clock.now())], key=lambda item: item.seq
        )
        found = await search.oldest(session, selection, 3, count_all=True)
        assert [candidate.item.id for candidate in found.candidates] == list(ids(expected[:3])), text
        assert found.matching == len(expected), text


async def test_large_indexes_are_walked_as_small_ones_are_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to the same items: of what is few all is read at once, of what is many a chunk at a time."""
    items = await _populate(world)
    session = await _session(world)
    monkeypatch.setattr(search, "FEW", 1)
    monkeypatch.setattr(search, "CHUNK", 2)
    for text in FILTERS:
        selection = parse(text)
        expected = tuple(_expected(items, selection, world.clock.now()))
        assert ids(await _pages(world, selection, 3)) == expected, text
        assert ids(await _pages(world, selection, 3, oldest=True)) == expected[::-1], text
        found = await search.oldest(session, selection, 1000)
        numbers = [candidate.item.seq for candidate in found.candidates]
        assert numbers == sorted(numbers), text
        assert len(numbers) == len(expected), text


async def test_an_index_is_used(world: World) -> None:
    for number in range(40):
        await world.letter(cause=f"c{number % 10}")
    for _ in range(4):
        await world.letter(queue="sms")
        await world.put(new())
        await world.finish(dead(await world.lease_one(), route="billing"))
    for selection in (
        parse("state:dead route:billing"),
        parse("state:dead route:billing disposition:open"),
        parse("error:SMTPTimeout queue:sms"),
        parse("category:timeout queue:sms disposition:open"),
        parse("cause:c3"),
        parse("cause:c3 queue:emails"),
        parse("cause:c3 state:dead disposition:open reason:max_attempts"),
    ):
        for oldest in (False, True):
            page = await world.store.find(selection, oldest=oldest)
            assert len(page.items) == 4
            assert page.scanned == 4


async def test_a_page_is_whole_whether_it_came_with_its_payloads_or_without(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has no room in the first answer is read behind it, as is all that comes in later ones."""
    made = {one.id: one for one in [new(random.randbytes(6_000)) for _ in range(400)]}
    await world.put(*made.values())
    every_other = And((EVERYTHING, Ids(tuple(made)[::2])))
    read: list[str] = []
    asked = Session.read

    async def told(session: Session, script: str, args: Sequence[Any] = ()) -> Any:
        read.append(script)
        return await asked(session, script, args)

    monkeypatch.setattr(Session, "read", told)
    small = await world.store.find(EVERYTHING, 150)
    assert read == ["find"]
    large = await world.store.find(EVERYTHING, 400)
    assert read == ["find", "find", "rows", "rows"]
    assert [item.id for item in large] == list(reversed(made))
    assert large.items[:150] == small.items
    assert all(item.payload == made[item.id].payload for item in large)
    assert ids((await world.store.find(every_other, 400)).items) == ids(large.items[1::2])


async def test_whoever_is_parked_is_shown_so_by_any_filter(world: World) -> None:
    await world.store.configure(QUEUE, QueueChange(order="park"))
    head, behind = (new(terms=Terms(order_key="k")) for _ in range(2))
    await world.put(head, behind)
    await world.end(head, dead)
    for selection in (EVERYTHING, parse(f"queue:{QUEUE} state:ready"), parse("hold:parked"), Ids((behind.id,))):
        found = {item.id: item.hold for item in await world.store.find(selection)}
        assert found[behind.id] == "parked:order"


async def test_the_time_of_death_is_an_index(world: World) -> None:
    """Of a month of letters only those of the day asked for are read."""
    await world.letters(60)
    for text, count in (("died>50s", 10), ("died<=5s queue:emails", 5), ("died>=30s died<=34s", 5)):
        for oldest in (False, True):
            page = await world.store.find(parse(text), limit=count, oldest=oldest)
            assert (len(page.items), page.next) == (count, None), text
            assert page.scanned <= 2 * count, text


async def test_pages_among_letters_of_one_instant(world: World) -> None:
    """Their place is told by their number alone; what goes meanwhile shifts nobody else's."""
    await world.put(*news(50))
    leased = await world.lease(50)
    await world.finish(*[dead(item) for item in leased])
    expected = list(reversed(ids(leased)))
    seen: list[str] = []
    cursor = None
    while True:
        page = await world.store.find(Match("state", "=", "dead"), 7, cursor)
        seen += ids(page)
        # The page just read, of which the cursor names the last, is dead no more when the next is asked for.
        await world.store.amend(Ids(ids(page)), Replay(), act())
        cursor = page.next
        if cursor is None:
            break
    assert seen == expected


async def test_causes_in_order_whatever_the_locale(world: World) -> None:
    names = ("B", "a", "Ä", "z", "é")
    for cause in names:
        await world.letter(cause=cause)
    await world.letter(cause="often")
    await world.letter(cause="often")
    found = await world.store.causes()
    assert [one.cause for one in found] == ["often", *sorted(names)]
    assert [one.cause for one in await world.store.causes(limit=3)] == ["often", "B", "a"]
    await world.letter(cause="a", queue="sms")
    assert [(one.cause, one.count) for one in await world.store.causes("sms")] == [("a", 1)]


async def test_a_cause_may_have_a_nul(world: World) -> None:
    letter = await world.letter(cause="a\0b")
    await world.letter(cause="a", queue="b")
    for queue in (None, "emails"):
        assert ("a\0b", "emails", 1) in [(one.cause, one.queue, one.count) for one in await world.store.causes(queue)]
    assert [one.queue for one in await world.store.causes("b")] == ["b"]
    assert ids((await world.store.find(Match("cause", "=", "a\0b"))).items) == (letter.id,)
    assert (await world.store.check()).sound


async def test_half_a_character_is_in_no_name(world: World) -> None:
    await world.letter()
    half = "\ud800"
    with pytest.raises(NotFound):
        await world.store.get(half)
    assert await world.store.tombstone(half) is None
    assert await world.store.causes(half) == ()
    assert await world.store.document(half, half) is None
    assert await world.store.journal(half) == ()
    for field in ("queue", "cause", "id", "error"):
        assert (await world.store.find(Match(field, "=", half))).items == ()


async def test_bytes_of_any_kind_beside_the_queue(world: World) -> None:
    body = bytes(range(256))
    (position,) = await world.store.append([NewEntry("topic", body, "ada", 'a "reason" of ☃', "r")])
    (entry,) = await world.store.journal("topic")
    assert (entry.position, entry.body, entry.reason) == (position, body, 'a "reason" of ☃')
    await world.store.write_documents([DocumentWrite("kind", "key", body)])
    document = await world.store.document("kind", "key")
    assert document is not None
    assert document.body == body


async def test_workers_of_yesterday_are_forgotten(world: World, server: Server) -> None:
    facts = WorkerFacts(("emails",))
    await world.store.beat("old", facts, SECOND)
    world.tick(DAY + 1)
    await world.store.beat("new", facts, SECOND)
    assert [beat.worker for beat in await world.store.workers()] == ["new"]
    assert server.client.hkeys(server.key("workers")) == [b"new"]


async def test_a_namespace_that_was_emptied_is_told(
    world: World, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """A flush under running workers must not pass for a quiet day."""
    await world.put(*news(3))
    await world.store.beat("w-1", WorkerFacts(("emails",)), SECOND)
    assert not caplog.records
    for key in server.client.scan_iter(match=server.key("*").replace("{", "\\{").replace("}", "\\}")):
        server.client.delete(key)
    await world.store.beat("w-1", WorkerFacts(("emails",)), SECOND)
    (told,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "was emptied while it was in use" in told


# --- what changes between the look and the act ---


async def _session(world: World) -> Session:
    session: Session = await world.store._here()  # type: ignore[attr-defined]  # noqa: SLF001 - below the verbs
    return session


def _before(
    monkeypatch: pytest.MonkeyPatch, script: str, meanwhile: Callable[[int], Awaitable[object]]
) -> Callable[[], int]:
    """Something happens each time before this script runs. Tells how often it did."""
    run = Session.run
    calls = 0

    async def with_meanwhile(self: Session, name: str, args: Sequence[Any] = ()) -> Any:
        nonlocal calls
        if name == script:
            calls += 1
            monkeypatch.setattr(Session, "run", run)
            try:
                await meanwhile(calls)
            finally:
                monkeypatch.setattr(Session, "run", with_meanwhile)
        return await run(self, name, args)

    monkeypatch.setattr(Session, "run", with_meanwhile)
    return lambda: calls


async def test_amend_looks_again_at_what_has_changed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that matched dies of something else in between: it is not what was meant, and stays."""
    meant, changing = await world.letter("c1"), await world.letter("c1")

    async def dies_anew(call: int) -> None:
        if call == 1:
            await world.replay_dead(changing.id)
            await world.finish(dead(await world.lease_one(), why=failure(cause="c2")))

    calls = _before(monkeypatch, "amend", dies_anew)
    amended = await world.store.amend(parse("cause:c1"), Discard(), act())
    assert calls() == 2
    assert amended.changed == (meant.id,)
    letter = (await world.item(changing.id)).letter
    assert letter is not None
    assert (letter.failure.cause, letter.disposition) == ("c2", "open")


async def test_amend_gives_up_when_it_never_stands_still(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    changing = await world.letter("c1")
    monkeypatch.setattr(amend, "PAUSE", 0)

    async def dies_again(_: int) -> None:
        await world.replay_dead(changing.id)
        await world.finish(dead(await world.lease_one()))

    calls = _before(monkeypatch, "amend", dies_again)
    with pytest.raises(StoreUnavailable, match="nothing was changed"):
        await world.store.amend(parse("cause:c1"), Discard(), act())
    assert calls() == amend.TRIES
    assert (await world.count()).open == 1


async def test_amend_skips_what_was_leased_meanwhile(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that go on taking from the front must not keep an operator from cancelling the rest."""
    items = news(5)
    await world.put(*items)
    _before(monkeypatch, "amend", lambda _: world.lease(2))
    amended = await world.store.amend(parse("state:ready queue:emails"), Cancel(), act())
    assert amended.changed == ids(items[2:])
    assert [(skipped.id, skipped.reason) for skipped in amended.skipped] == [
        (item.id, "it was leased meanwhile") for item in items[:2]
    ]


async def test_amend_names_in_the_audit_what_it_changed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    items = [new(item_id='"quoted", ☃'), *news(3)]
    await world.put(*items)
    _before(monkeypatch, "amend", lambda _: world.store.amend(Ids((items[1].id,)), Cancel(), act()))
    selection = parse("state:ready")
    amended = await world.store.amend(selection, Cancel(), act(reason="too many"))
    (_, entry) = await world.store.journal(audit.TOPIC)
    record = codec.decode(entry.body, audit.AuditRecord)
    assert record == audit.AuditRecord("cancel", selection, amended.changed, Cancel())
    assert amended.changed == (items[0].id, items[2].id, items[3].id)
    assert (entry.actor, entry.reason) == ("ada", "too many")


async def test_a_request_is_known_by_its_id_and_not_by_mention(world: World) -> None:
    letter = await world.letter()
    named = Ids((letter.id,))
    await world.store.amend(named, Archive(), act("first", reason="as asked in second"))
    assert (await world.store.amend(named, Restore(), act("second", actor="first"))).changed == (letter.id,)
    for change, request in ((Archive(), "first"), (Restore(), "second")):
        assert (await world.store.amend(named, change, act(request))).already == (letter.id,)
    assert [deed.request_id for deed in (await world.store.get(letter.id)).deeds] == ["first", "second"]


async def test_prune_leaves_what_was_restored_meanwhile(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = await world.letter(), await world.letter()
    await world.store.amend(Ids((first.id, second.id)), Discard(), act())

    async def restore(call: int) -> None:
        if call == 1:
            await world.store.amend(Ids((first.id,)), Restore(), act())

    _before(monkeypatch, "prune", restore)
    assert ids(await world.store.prune(EVERYTHING, 10, act())) == (second.id,)
    assert await world.store.tombstone(first.id) is None
    assert (await world.item(first.id)).letter is not None
    entry = (await world.store.journal(audit.TOPIC))[-1]
    assert codec.decode(entry.body, audit.AuditRecord).changed == (second.id,)


async def test_prune_goes_on_when_all_it_found_has_changed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty answer says that nothing is left."""
    first = await world.letter()
    await world.store.amend(Ids((first.id,)), Discard(), act())
    second = await world.done()

    async def restore(call: int) -> None:
        if call == 1:
            await world.store.amend(Ids((first.id,)), Restore(), act())

    _before(monkeypatch, "prune", restore)
    assert ids(await world.store.prune(EVERYTHING, 1, act())) == (second.id,)


async def test_prune_takes_all_kinds_by_their_number(world: World) -> None:
    letters = [await world.letter() for _ in range(2)]
    done = await world.done()
    await world.store.amend(Ids((letters[1].id,)), Discard(), act())
    last = await world.done("sms")
    await world.store.amend(Ids((letters[0].id,)), Discard(), act())
    assert ids(await world.store.prune(EVERYTHING, 2, act())) == (letters[0].id, letters[1].id)
    assert ids(await world.store.prune(parse("queue:sms"), 9, act())) == (last.id,)
    assert ids(await world.store.prune(parse("state:cancelled"), 9, act())) == ()
    assert ids(await world.store.prune(parse("disposition:open"), 9, act())) == ()
    assert ids(await world.store.prune(parse("state:done"), 9, act())) == (done.id,)


async def test_a_pruned_letter_leaves_only_its_tombstone_and_its_change(world: World, server: Server) -> None:
    letter = await world.letter()
    await world.store.amend(Ids((letter.id,)), Discard(), act())
    await world.store.prune(EVERYTHING, 1, act())
    left = {key.decode().removeprefix(server.prefix) for key in server.client.scan_iter(server.key("*"))}
    assert left <= {"tombstones", "changes", "queues", "sequence", "journal:audit", "boot", "nonce", "alone"}
    assert (await world.store.check()).sound


async def test_selections_of_both_kinds_by_two_at_once(world: World) -> None:
    """Whatever they change under each other's hands, each item is changed by one of them."""
    letters = [await world.letter(f"c{number % 3}") for number in range(30)]
    other = await world.another()
    answers = await asyncio.gather(
        *[
            handle.amend(selection, Discard(), act())
            for handle in (world.store, other)
            for selection in (parse("state:dead disposition:open"), Ids(ids(letters)), parse("cause:c1"))
        ]
    )
    changed = [item_id for answer in answers for item_id in answer.changed]
    assert sorted(changed) == sorted(ids(letters))
    assert (await world.count()).trash == len(letters)


# --- damage ---


async def test_a_damaged_record_hides_nobody_else(world: World, server: Server) -> None:
    good, bad = await world.letter(), await world.letter()
    server.client.hset(server.key("item"), bad.id, b"\x93\x01\x02\x03")
    assert ids((await world.store.find(EVERYTHING)).items) == (good.id,)
    assert ids((await world.store.find(parse("cause:c1"))).items) == (good.id,)
    with pytest.raises(StoreCorrupt, match=bad.id):
        await world.store.get(bad.id)
    amended = await world.store.amend(Ids((good.id, bad.id)), Archive(), act())
    assert amended.changed == (good.id,)
    assert [skipped.reason for skipped in amended.skipped] == ["its record is damaged"]


async def test_a_damaged_payload_is_shown_with_its_flaw(world: World, server: Server) -> None:
    letter = await world.letter()
    kept = server.client.hget(server.key("body"), letter.id)
    server.client.hset(server.key("body"), letter.id, kept[:-1] + b"?")
    (found,) = (await world.store.find(EVERYTHING)).items
    assert found.payload == letter.payload[:-1] + b"?"
    assert "checksum" in found.flaw
    assert (await world.item(letter.id)).flaw == found.flaw
    await world.store.amend(Ids((letter.id,)), Discard(), act())
    assert ids(await world.store.prune(EVERYTHING, 1, act())) == (letter.id,)


async def test_damaged_evidence_is_shown_as_far_as_it_is_known(world: World, server: Server) -> None:
    letter = await world.letter("c7")
    server.client.hset(server.key("failure"), letter.id, b"{")
    (found,) = (await world.store.find(And((Match("cause", "=", "c7"),)))).items
    assert found.letter is not None
    assert (found.letter.failure.cause, found.letter.failure.type) == ("c7", "SMTPTimeout")
    assert found.flaw
    (cause,) = await world.store.causes()
    assert (cause.cause, cause.error, cause.text) == ("c7", "SMTPTimeout", "")


async def test_results_come_back_as_they_were(world: World) -> None:
    item = await world.held()
    result = b"\0" + bytes(range(256)) * 1000
    await world.finish(finished(item, result))
    assert (await world.item(item.id)).result == result
    assert (await world.store.find(EVERYTHING)).items[0].result == result
