"""Tags, notes, moves, counts, causes, views and carrying over, on every store."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest

from redrive import Item, Policy, Redrive, immediate, keep_output, never
from redrive.core.item import History
from redrive.core.states import Disposition, State
from redrive.errors import BadImport, ConfigError, Conflict, NotFound
from redrive.office import transfer
from redrive.office.records import Record, line_of, record_from
from tests.support.apps import Work, work
from tests.support.stores import StoreUrl

__all__ = ["work"]


@pytest.fixture
async def elsewhere() -> AsyncIterator[Redrive]:
    async with Redrive("memory:", actor="mover", log=False) as app:
        yield app


# -- acts ------------------------------------------------------------------------------------------------------------


async def test_tags_stay_with_the_letter_and_find_it(work: Work) -> None:
    one, two = await work.letters(2)
    office = work.app.letters
    assert (await office.tag([one, two], add=["vip", "eu"])).changed == (one, two)
    await office.tag(one, remove="eu", reason="not from there")
    assert [item.id for item in await office.find("tag:eu")] == [two]
    assert (await office.get(one)).item.tags == ("vip",)
    await office.replay(one, reason="again")
    await work.run()
    history = await office.get(one)
    assert history.item.tags == ("vip",)
    assert [(deed.change, deed.reason) for deed in history.deeds] == [
        ("tag", "tagged"),
        ("tag", "not from there"),
        ("replay", "again"),
    ]


async def test_a_note_is_in_the_history_and_changes_nothing(work: Work) -> None:
    (letter,) = await work.letters(1)
    before = await work.app.get(letter)
    await work.app.letters.note(letter, "asked the customer", actor="ann")
    assert await work.app.get(letter) == before
    (deed,) = (await work.app.letters.get(letter)).deeds
    assert (deed.change, deed.actor, deed.reason) == ("note", "ann", "asked the customer")


async def test_a_moved_letter_belongs_to_its_new_queue(work: Work) -> None:
    one, two = await work.letters(2)
    office = work.app.letters
    assert (await office.move(one, "slow", reason="wrong queue")).changed == (one,)
    assert [item.id for item in await office.find("queue:slow")] == [one]
    assert {row.queue: row.open for row in (await work.app.tally()).queues} == {"emails": 1, "slow": 1}
    assert (await office.move(one, "slow", reason="x")).skipped[0].reason == "it is in slow already"
    assert (await office.replay(two, reason="x", queue="slow")).changed == (two,)
    item = await work.app.get(two)
    assert (item.queue, item.state) == ("slow", State.READY)


async def test_payloads_are_read_as_they_were_put(work: Work) -> None:
    (letter,) = await work.letters(1)
    assert await work.app.letters.payload(letter[:8]) == {"to": "u0"}
    raw = await work.app.enqueue("emails", b"\xff\x00")
    assert await work.app.letters.payload(raw) == b"\xff\x00"


# -- counts ----------------------------------------------------------------------------------------------------------


async def test_counts_and_facets_agree_with_the_letters(work: Work) -> None:
    ids = await work.letters(3)
    work.broken = KeyError("id")
    more = await work.letters(2)
    office = work.app.letters
    await office.archive(ids[0], reason="known")
    await office.tag(more, add="new")
    assert [await office.count(), await office.count("error:KeyError"), await office.count("queue:none")] == [4, 2, 0]
    found = {by: await office.facets(by=by) for by in ("error", "queue", "disposition", "tag", "category", "route")}
    assert {by: [(row.value, row.count) for row in each.facets] for by, each in found.items()} == {
        "error": [("KeyError", 2), ("ValueError", 2)],
        "queue": [("emails", 4)],
        "disposition": [("open", 4), ("archived", 1)],
        "tag": [("new", 2)],
        "category": [("data", 4)],
        "route": [],
    }
    assert all(each.whole for each in found.values())
    by_filter = await office.facets("error:ValueError disposition:open,archived", by="disposition")
    assert [(row.value, row.count) for row in by_filter.facets] == [("open", 2), ("archived", 1)]


async def test_causes_are_told_with_queues_trend_and_a_sample(work: Work) -> None:
    ids = await work.letters(3)
    work.broken = KeyError("id")
    (other,) = await work.letters(1)
    await work.app.letters.move(ids[0], "slow", reason="x")
    first, second = await work.app.letters.causes()
    assert (first.count, first.error, first.queues, first.trend) == (3, "ValueError", ("emails", "slow"), "new")
    assert first.sample in ids
    assert (second.count, second.sample, second.last_hour, second.hour_before) == (1, other, 1, 0)
    assert await work.app.letters.causes("queue:slow") != ()
    (found,) = await work.app.letters.causes("error:KeyError")
    assert found == second
    assert await work.app.letters.cause(first.cause[:6]) == first
    await work.app.letters.archive(other, reason="x")
    assert (await work.app.letters.cause(second.cause)).sample == other
    with pytest.raises(NotFound, match="no cause 'zzzz'"):
        await work.app.letters.cause("zzzz")


# -- views -----------------------------------------------------------------------------------------------------------


async def test_views_are_kept_under_their_names(work: Work) -> None:
    views = work.app.views
    saved = await views.save("timeouts", "error:*Timeout")
    assert (saved.by, await views.get("timeouts"), await views.list()) == ("tester", saved, (saved,))
    assert await views.save("timeouts", "error:*Timeout") == saved
    with pytest.raises(Conflict, match="there is a view 'timeouts' already"):
        await views.save("timeouts", "queue:emails")
    await views.save("timeouts", "queue:emails", replace=True)
    assert (await views.get("timeouts")).filter == "queue:emails"
    with pytest.raises(NotFound) as missing:
        await views.get("timeout")
    assert missing.value.hint == "did you mean 'timeouts'?"
    await views.remove("timeouts")
    assert await views.list() == ()
    words = [msgspec.json.decode(entry.body)["change"] for entry in await work.app.audit.list()]
    assert words == ["view save", "view save", "view remove"]


@pytest.mark.parametrize("name", ["", " ", "a b", "-x", "a/b", "x" * 65, "é\n"])
async def test_a_bad_name_for_a_view_is_refused(elsewhere: Redrive, name: str) -> None:
    with pytest.raises(ConfigError, match=r"name: .* is no name for a view"):
        await elsewhere.views.save(name, "queue:emails")


# -- carrying over ---------------------------------------------------------------------------------------------------


async def exported(app: Redrive, filter: str = "", *, attempts: bool = True) -> list[Record]:
    return [record async for record in app.letters.export(filter, attempts=attempts)]


async def test_what_is_exported_and_imported_is_the_same_letter(work: Work, store_url: StoreUrl) -> None:
    """With its evidence, and from any store to any other."""
    ids = await work.letters(2)
    await work.app.letters.replay(ids[1], reason="again")
    await work.run()
    await work.app.letters.tag(ids[0], add=["vip"])
    await work.app.letters.archive(ids[0], reason="x")
    everywhere = "disposition:open,archived,trash"
    records = await exported(work.app, everywhere)
    async with Redrive(store_url("sqlite"), actor="mover", log=False) as other:
        done = await other.letters.import_(records, reason="moving")
        assert sorted(done.added) == sorted(ids)
        for each in ids:
            assert told(await other.letters.get(each)) == told(await work.app.letters.get(each))
        back = {record.id: record for record in await exported(other, everywhere)}
        assert [line_of(back[record.id]) for record in records] == [line_of(record) for record in records]
        again = await other.letters.import_(records, reason="moving")
        assert (again.added, sorted(again.already)) == ((), sorted(ids))
        assert (await other.letters.replay(ids[1], reason="here")).changed == (ids[1],)


async def test_output_of_attempts_is_carried_over(work: Work, elsewhere: Redrive) -> None:
    outputs = [b"250 OK\r\n", b"\x00\xff"]

    @work.app.handler("outputs", policy=Policy(immediate(), max_attempts=2))
    async def fail(item: Item) -> None:
        keep_output(outputs[item.errors])
        raise OSError("no")

    letter = await work.app.enqueue("outputs")
    await work.run()
    records = [record_from(line_of(record)) for record in await exported(work.app, "queue:outputs")]
    await elsewhere.letters.import_(records, reason="moving")
    assert [attempt.output for attempt in (await elsewhere.letters.get(letter)).attempts] == outputs
    bent = json.loads(line_of(records[0]))
    bent["history"][1]["output"] = "no base64!"
    with pytest.raises(BadImport, match=r"letter 1: history\[1\]\.output: invalid base64"):
        await elsewhere.letters.import_([bent], reason="moving")


def told(history: History) -> object:
    """All but what belongs to a store: its numbers and its own audit."""
    return msgspec.structs.replace(history.item, seq=0), history.attempts, history.omitted


async def test_an_import_is_audited_and_may_be_tried(work: Work, elsewhere: Redrive) -> None:
    ids = await work.letters(2)
    records = await exported(work.app, attempts=False)
    tried = await elsewhere.letters.import_(records, reason="moving", dry_run=True)
    assert (sorted(tried.added), await elsewhere.letters.count()) == (sorted(ids), 0)
    await elsewhere.letters.import_([msgspec.json.decode(line_of(record)) for record in records], reason="moving")
    (deed,) = (await elsewhere.letters.get(ids[0])).deeds
    assert (deed.change, deed.actor, deed.reason) == ("import", "mover", "moving")


Spoil = Callable[[dict[str, object]], object]
SPOILED: list[tuple[Spoil, str]] = [
    (lambda it: it.pop("queue"), "letter 2: queue: it is missing"),
    (lambda it: it.update(queue=" "), "letter 2: queue: it is empty"),
    (
        lambda it: it.update(queue="bad queue\x1b"),
        "letter 2: queue: 'bad queue\\x1b' is not a queue name (use 1 to 128",
    ),
    (lambda it: it.update(id="a b"), "letter 2: id: 'a b' is not an item id (use 1 to 128 printable"),
    (lambda it: it.update(id="x\ny"), "letter 2: id: 'x\\ny' is not an item id"),
    (lambda it: it.update(id="\u202e"), "letter 2: id: '\\u202e' is not an item id"),
    (lambda it: it.update(id="z" * 200), f"letter 2: id: '{'z' * 200}' is not an item id"),
    (lambda it: it.update(order_key="k" * 513), "letter 2: order_key: it has 513 characters"),
    (lambda it: it.update(cause="c" * 513), "letter 2: cause: it has 513 characters"),
    (lambda it: it.update(route="r" * 129), f"letter 2: route: '{'r' * 63}… is not the name of a route"),
    (lambda it: it.update(dedupe_window=-1), "letter 2: dedupe_window: -1.0 is negative"),
    (lambda it: it.update(dedupe_window=1e300), "letter 2: dedupe_window: 1e+300 is longer than 100 years"),
    (lambda it: it.update(attempts="many"), "letter 2: attempts: expected int, got str"),
    (lambda it: it.update(attempts=-1), "letter 2: attempts: -1 is not a count"),
    (lambda it: it.update(died_at="yesterday"), "letter 2: died_at: 'yesterday' is not a time"),
    (lambda it: it.update(state="done"), "letter 2: state: invalid enum value 'done'"),
    (lambda it: it.update(shoe_size=42), "letter 2: shoe_size: there is no such field"),
    (lambda it: it.update(payload="!", payload_encoding="base64"), "letter 2: payload: it is not base64"),
    (lambda it: it.update(payload_flaw="cut off"), "letter 2: payload: it is damaged"),
    (lambda it: it.update(tags=["a b"]), "letter 2: tag"),
    (lambda it: it.update(frames=[{"file": "x"}]), "letter 2: frames[0].line: it is missing"),
    (lambda it: it.update(id="first"), "letter 2: id: letter 1 has it already"),
]


@pytest.mark.parametrize(("spoil", "said"), SPOILED, ids=[said.partition(": ")[2] for _, said in SPOILED])
async def test_one_bad_letter_and_none_is_taken_in(elsewhere: Redrive, spoil: Spoil, said: str) -> None:
    good = msgspec.json.decode(line_of(record("first")))
    bad = msgspec.json.decode(line_of(record("second")))
    spoil(bad)
    with pytest.raises(BadImport) as raised:
        await elsewhere.letters.import_([good, bad], reason="x")
    assert raised.value.faults[0].startswith(said)
    assert (await elsewhere.letters.count(), await elsewhere.audit.list()) == (0, ())


async def test_all_faults_are_told_at_once_but_not_for_ever(elsewhere: Redrive) -> None:
    bad = [msgspec.structs.replace(record(f"i{n}"), queue="", reason="") for n in range(15)]
    with pytest.raises(BadImport, match="30 faults, nothing was taken in") as raised:
        await elsewhere.letters.import_(bad, reason="x")
    assert (len(raised.value.faults), raised.value.more) == (20, 10)


def record(item_id: str, payload: bytes = b"{}") -> Record:
    return Record(
        id=item_id,
        queue="emails",
        died_at="2026-11-15T21:04:05.678Z",
        enqueued_at="2026-11-15T21:04:00Z",
        reason="max_attempts",
        cause="c41fc41fc41f",
        error="ValueError",
        payload=msgspec.Raw(payload),
    )


async def test_every_kind_of_payload_comes_back_byte_for_byte(elsewhere: Redrive) -> None:
    payloads = [
        b'{"a": 1,  "b":[ ]}',
        b"",
        b"\xff\x00",
        b'{\n  "a": 1\n}',
        b'"\xe2\x80\xae"',
        b"[" * 2000,
        b"NaN",
        b'"\xed\xa0\x80"',
        '"ü 😀"'.encode(),
    ]
    async with Redrive("memory:", log=False) as app:
        app.handler("raw", policy=Policy(backoff=never()))(_fail)
        ids = [str(await app.enqueue("raw", payload)) for payload in payloads]
        await app.run(until_idle=True)
        lines = [line_of(each) for each in await exported(app)]
    assert all(line.decode().isprintable() for line in lines)
    await elsewhere.letters.import_([record_from(line) for line in lines], reason="x")
    for item_id, payload in zip(ids, payloads, strict=True):
        assert (await elsewhere.get(item_id)).payload == payload


async def _fail(item: object) -> None:
    raise ValueError("no")


async def test_bad_words_are_said_and_change_nothing(work: Work) -> None:
    (letter,) = await work.letters(1)
    office = work.app.letters
    bad: list[tuple[Callable[[], Awaitable[object]], str]] = [
        (lambda: office.facets(by="colour"), "by: 'colour' divides nothing"),
        (lambda: office.facets(limit=0), "limit: 0 is not a number of rows"),
        (lambda: office.causes(limit=True), "limit: True is not a number of rows"),
        (lambda: office.move(letter, "", reason="x"), "queue"),
        (lambda: office.replay(letter, reason="x", queue="a b\n"), "queue"),
        (lambda: office.tag(letter), "tag"),
        (lambda: office.tag(letter, add="a b"), "tag"),
        (lambda: office.note(letter, " "), "reason: a reason is needed"),
        (lambda: office.import_("x", reason="x"), "letter 1"),  # type: ignore[arg-type]  # what is tried here
    ]
    for call, said in bad:
        with pytest.raises(ConfigError, match=said):
            await call()
    item = await work.app.get(letter)
    assert (item.queue, item.tags, item.letter and item.letter.disposition) == ("emails", (), Disposition.OPEN)
    assert await work.app.audit.list() == ()


def waiting(item_id: str, at: int, *after: str) -> Record:
    enqueued = f"2026-11-15T21:00:{at:02}Z"
    return msgspec.structs.replace(record(item_id), enqueued_at=enqueued, after=after, on_dead="wait", order_key="k")


async def test_whatever_is_waited_for_comes_in_first(elsewhere: Redrive, monkeypatch: pytest.MonkeyPatch) -> None:
    """An export is last-died first; in the order of the file those who wait would have places before the others."""
    monkeypatch.setattr(transfer, "BITE", 1)
    await elsewhere.letters.import_([waiting("c", 3, "b"), waiting("b", 2, "a"), waiting("a", 1)], reason="x")
    assert [(await elsewhere.get(each)).seq for each in "abc"] == sorted(
        [(await elsewhere.get(each)).seq for each in "abc"]
    )
    assert len((await elsewhere.letters.replay(list("cba"), reason="x")).changed) == 3


async def test_letters_that_wait_for_each_other_in_a_ring_are_refused(
    elsewhere: Redrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "BITE", 1)
    with pytest.raises(BadImport, match="letters that wait for each other"):
        await elsewhere.letters.import_([waiting("a", 1, "b"), waiting("b", 2, "a")], reason="x")
    assert await elsewhere.letters.count() == 0
