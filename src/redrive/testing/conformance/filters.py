"""What a store does not compile: texts and payloads. And texts that were written to be taken for something else."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redrive.core.acts import Archive, Reserve, Tag
from redrive.core.filters import parse, render
from redrive.core.item import Terms
from redrive.core.select import EVERYTHING, And, Ids, Match, Not, Or, Path, Selection, Text, matches
from redrive.core.verbs import QueueChange
from redrive.errors import BadFilter, ConfigError
from redrive.stores import residue
from redrive.stores.base import PAGE_LIMIT
from redrive.testing.conformance.find import LETTERS, flat, pages
from redrive.testing.conformance.hostile import HOSTILE
from redrive.testing.conformance.kit import QUEUE, SECOND, TTL, World, act, dead, failed, failure, ids, new, news

DECLINED = Text("DECLINED")
QUEUED = Match("queue", "=", QUEUE)


async def test_filter_by_text_finds_errors_and_payloads(world: World) -> None:
    by_payload, by_text, by_type, other = [
        new(payload=body) for body in (b'{"note": "card declined"}', b"1", b"{", b'{"note": "fine"}')
    ]
    await world.put(by_payload, by_text, by_type, other)
    whys = {by_text.id: failure(text="Declined by the bank"), by_type.id: failure(error="shop.DeclinedError")}
    for item in await world.lease(4):
        await world.finish(dead(item, why=whys.get(item.id, failure())))
    found = flat(await pages(world, And((LETTERS, DECLINED)), 2))
    assert set(found) == {by_payload.id, by_text.id, by_type.id}
    assert flat(await pages(world, And((LETTERS, Not(DECLINED))), 2)) == [other.id]
    assert flat(await pages(world, And((QUEUED, DECLINED)), 2)) == [by_type.id, by_text.id, by_payload.id]
    either = Or((Match("errors", ">", 5), Match("reason", "=", "unheard of"), DECLINED))
    assert set(flat(await pages(world, And((QUEUED, either)), 2))) == set(found)
    text_alone = Match("text", "glob", "Declined*")
    assert flat(await pages(world, text_alone, 2)) == [by_text.id]


async def test_filter_by_payload_needs_an_indexed_companion(world: World) -> None:
    (item,) = news(1)
    await world.put(item)
    amount = Path(("n",), ">", 1)
    for alone in (amount, DECLINED, Not(DECLINED), Or((QUEUED, DECLINED)), And((amount, DECLINED))):
        with pytest.raises(BadFilter, match="add queue:, state:"):
            await world.store.find(alone)
        with pytest.raises(BadFilter, match="add queue:, state:"):
            await world.store.ids(alone)
    for companion in (QUEUED, Match("state", "=", "ready"), Ids((item.id,)), Match("age", ">=", 0)):
        assert (await world.store.find(And((companion, DECLINED)))).items == ()


async def test_filter_of_an_act_is_never_a_payload(world: World) -> None:
    letter = await world.letter()
    for selection in (And((LETTERS, DECLINED)), And((LETTERS, Path((), "=", 1))), Match("text", "glob", "*")):
        with pytest.raises(ConfigError, match="find the ids first"):
            await world.store.amend(selection, Archive(), act())
        with pytest.raises(ConfigError, match="find the ids first"):
            await world.store.prune(selection, 10, act())
    assert await world.item(letter.id) == letter


async def test_filter_looks_at_no_more_than_its_bound(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is rare is found over several pages, some of them empty, none of them without end."""
    bodies = [b'{"n": %d}' % number for number in range(12)]
    items = [new(payload=body) for body in bodies]
    await world.put(*items)
    for scan, chunk in ((5, 2), (12, 5)):
        for module in _bounded():
            monkeypatch.setattr(module, "SCAN_LIMIT", scan)
        monkeypatch.setattr(residue, "CHUNK", chunk)
        for wanted in (Path(("n",), "=", 0), Path(("n",), "<", 3)):
            selection = And((QUEUED, wanted))
            expected = [item.id for item in items[::-1] if matches(selection, await world.item(item.id), 0)]
            assert expected
            for limit in (1, 2, 3):
                found = await pages(world, selection, limit)
                assert flat(found) == expected
                assert all(len(page) <= limit for page in found)
                assert await _listed(world, selection, limit) == expected
        assert (await world.store.find(And((QUEUED, DECLINED)), 5)).scanned == min(scan, 12)


async def _listed(world: World, selection: Selection, limit: int) -> list[str]:
    """By `ids`, over all pages."""
    page = await world.store.ids(selection, limit)
    found = [*page.ids]
    while page.next is not None:
        page = await world.store.ids(selection, limit, page.next)
        found += page.ids
    return found


def _bounded() -> list[object]:
    """Where the bound is known: the reference store reads it for itself."""
    from redrive.stores.memory import _pages

    return [residue, _pages]


async def test_filter_by_payload_and_time_goes_by_the_stores_clock(world: World) -> None:
    first, second = news(2)
    await world.put(first)
    world.tick(10 * SECOND)
    await world.put(second)
    either = Or((Match("age", ">=", 10 * SECOND), Text("nowhere")))
    assert ids((await world.store.find(And((QUEUED, either)))).items) == (first.id,)


async def test_filter_by_tag(world: World) -> None:
    one, two, three = await world.letters(3)
    (item,) = news(1)
    await world.put(item)
    await world.store.amend(Ids((one.id, two.id, item.id)), Tag(("eu",)), act())
    await world.store.amend(Ids((two.id, three.id)), Tag(("us",)), act())
    eu, us = Match("tag", "=", "eu"), Match("tag", "=", "us")
    assert flat(await pages(world, eu, 2)) == [item.id, two.id, one.id]
    assert flat(await pages(world, And((LETTERS, eu)), 1)) == [two.id, one.id]
    assert flat(await pages(world, And((eu, us)), 1)) == [two.id]
    assert flat(await pages(world, And((LETTERS, And((eu, us)))), 1)) == [two.id]
    assert flat(await pages(world, And((LETTERS, Not(eu))), 1)) == [three.id]
    assert flat(await pages(world, Match("tag", "glob", "*u*"), 2)) == [item.id, three.id, two.id, one.id]
    amended = await world.store.amend(And((eu, us)), Archive(), act())
    assert amended.changed == (two.id,)


async def test_filter_by_any_value_leaves_out_what_is_empty(world: World) -> None:
    """`field:*` means that the field has a value, however many stars."""
    plain = await world.letter()
    told = new(kind="refund", release="1.4", terms=Terms(order_key="k"))
    await world.put(told)
    await world.finish(dead(await world.grab(told.id), why=failure(), route="billing"))
    await world.store.amend(Ids((told.id,)), Reserve("r1"), act())
    for field in ("kind", "release", "route", "reserved", "key"):
        for pattern in ("*", "**"):
            some = Match(field, "glob", pattern)
            for among in (EVERYTHING, LETTERS):
                assert flat(await pages(world, And((among, some)), 5)) == [told.id], field
                assert flat(await pages(world, And((among, Not(some))), 5)) == [plain.id], field
    assert set(flat(await pages(world, And((Match("queue", "glob", "*"), Match("error", "glob", "*"))), 5))) == {
        plain.id,
        told.id,
    }


async def test_filter_by_worker_due_and_instants(world: World) -> None:
    now = world.clock.now()
    late, soon = new(), new(delay=5 * SECOND)
    await world.put(late, soon)
    (leased,) = await world.lease(1, worker="w-9")
    world.tick(SECOND)
    assert leased.id == late.id
    cases = {
        Match("worker", "=", "w-9"): {late.id},
        Match("worker", "glob", "*"): {late.id},
        Match("due", "<", 0): {soon.id},
        Match("due", ">=", SECOND): {late.id},
        Match("due_at", "=", now): {late.id},
        Match("due_at", ">", now): {soon.id},
        Match("enqueued_at", ">=", now): {late.id, soon.id},
        Match("enqueued_at", ">", now): set(),
        Match("died_at", ">=", now): set(),
        parse("state:scheduled"): {soon.id},
        parse("state:running"): {late.id},
    }
    for selection, expected in cases.items():
        assert set(flat(await pages(world, selection, 5))) == expected, render(selection)
    world.tick(TTL)
    (again,) = await world.store.reclaim("w-8", [QUEUE], TTL, 1)
    await world.finish(failed(again, delay=SECOND))
    assert flat(await pages(world, parse("state:retrying"), 5)) == [late.id]


async def test_filter_by_hold_shows_who_is_parked(world: World) -> None:
    await world.set(QueueChange(order="park"))
    head, follower = new(terms=Terms(order_key="o")), new(terms=Terms(order_key="o"))
    await world.put(head, follower)
    order, parked = Match("hold", "=", "order"), Match("hold", "=", "parked")
    assert flat(await pages(world, order, 5)) == [follower.id]
    assert flat(await pages(world, parked, 5)) == []
    await world.end(head, dead)
    waits = new(terms=Terms(order_key="o", after=(head.id,)))
    await world.put(waits)
    assert await world.holds(follower, waits) == ["parked:order", "parked:order"]
    for selection in (order, parked, parse("state:blocked"), Match("hold", "glob", "par*")):
        assert flat(await pages(world, selection, 1)) == [waits.id, follower.id], render(selection)
    # It waits for more than its turn.
    assert flat(await pages(world, Match("hold", "=", "after"), 5)) == [waits.id]
    assert flat(await pages(world, Match("hold", "=", "limit"), 5)) == []
    await world.set(QueueChange(order="block"))
    await world.sound()


# --- texts that were written to be taken for something else (S25) ---


async def furnish(world: World) -> None:
    """Items that have some of the hostile texts, so that taking one for a wildcard or an end of text would show."""
    for text in HOSTILE[::13]:
        name = text.replace("\0", "") or "x"
        item = new(payload=json.dumps({"a": text, text: 1}).encode(), queue=name)
        await world.put(item)
        leased = await world.grab(item.id, name)
        await world.finish(dead(leased, why=failure(name, f"shop.{name}", text), route=name))
        tag = "".join(char for char in text if char.isprintable() and not char.isspace() and char != ",")[:100]
        if tag:
            await world.store.amend(Ids((item.id,)), Tag((tag,)), act())


def everywhere(text: str) -> Selection:
    """The text as the value of every field that takes one, as it is and as a pattern, and as a path."""
    fields = ("id", "queue", "cause", "error", "category", "rule", "reason", "route", "key", "tag", "worker", "text")
    parts: list[Selection] = [Match(field, "=", text) for field in fields]
    parts += [Match(field, "glob", f"{text}*") for field in ("queue", "error", "tag", "text")]
    parts += [Path(("a",), "=", text), Path((text,), "=", 1), Path(("a",), "glob", f"*{text}"), Text(text or "x")]
    return And((LETTERS, Or(tuple(parts))))


def compiled(text: str) -> Selection:
    """Without what the evaluator answers for all stores alike."""
    fields = ("id", "queue", "cause", "error", "category", "rule", "reason", "route", "key", "tag", "worker")
    same = [Match(field, "=", text) for field in fields]
    like = [Match(field, "glob", f"{text}*") for field in ("queue", "cause", "error", "tag")]
    return Or((*same, *like))


@pytest.mark.parametrize("name", ["*", "a*", "tag:a", "open:x", "%", "a'b"])
async def test_filter_by_names_that_look_like_patterns(world: World, name: str) -> None:
    """As the only value that can match, so that a store goes by its index of it."""
    letter = await world.letter(name, name)
    await world.letter("a", "a")
    await world.store.amend(Ids((letter.id,)), Tag((name,)), act())
    done = await world.done(name)
    for field, found in (("cause", [letter.id]), ("tag", [letter.id]), ("queue", [done.id, letter.id])):
        named = Match(field, "=", name)
        assert flat(await pages(world, named, 5)) == found
        assert flat(await pages(world, And((LETTERS, named)), 5)) == [letter.id]
        assert flat(await pages(world, And((named, Match("disposition", "=", "open"))), 5)) == [letter.id]
    assert flat(await pages(world, parse(f'state:done queue:"{name.replace("*", chr(92) + "*")}"'), 5)) == [done.id]
    assert (await world.store.amend(Match("tag", "=", name), Archive(), act())).changed == (letter.id,)


async def agree(world: World, selection: Selection) -> None:
    items = (await world.store.find(EVERYTHING, PAGE_LIMIT)).items
    expected = {item.id for item in items if matches(selection, item, world.clock.now())}
    assert set((await world.store.ids(selection)).ids) == expected, render(selection)


@pytest.mark.parametrize("nth", [pytest.param(6, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.prove)])
async def test_filters_take_hostile_texts_as_texts(world: World, nth: int) -> None:
    """Every one of them, or every nth."""
    await furnish(world)
    items = (await world.store.find(EVERYTHING, PAGE_LIMIT)).items
    now = world.clock.now()
    for number, text in enumerate(HOSTILE[::nth]):
        for selection in (compiled(text), everywhere(text)) if number % 7 == 0 else (compiled(text),):
            expected = {item.id for item in items if matches(selection, item, now)}
            assert set((await world.store.ids(selection)).ids) == expected, repr(text)
    await world.sound()


@settings(
    max_examples=15,
    deadline=None,
    # One population serves all examples, which only read.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@pytest.mark.slow
@given(text=st.text(max_size=20) | st.text("'\"\\%_*?[]\0;-{}:,() $&", max_size=12))
async def test_filters_take_any_text_as_text(world: World, text: str) -> None:
    if not (await world.store.find(EVERYTHING, 1)).items:
        await furnish(world)
    await agree(world, compiled(text))
    await agree(world, everywhere(text))
