"""What describes an item beside its payload: release, schema, trace, headers."""

from __future__ import annotations

import pytest
from msgspec import structs

from redrive.core.acts import SetPolicy, Tag
from redrive.core.item import Dedupe, Ending, History, NewItem, Terms
from redrive.core.select import And, Ids, Match
from redrive.stores.base import HEADERS_LIMIT, HEADERS_SIZE, NAME_LIMIT, TRACE_LIMIT
from redrive.testing.conformance.kit import World, act, dead, ended, failed, finished, fresh, ids, names, new, refusal

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
HEADERS = (("content-type", "text/plain"), ("Ünï", "☃ with, signs; = and \n lines"), ("empty", ""))
ALL = Terms(schema=3, trace=TRACE, headers=HEADERS)


async def test_fields_are_kept(world: World) -> None:
    made = new(terms=ALL, release="1.4.2")
    await world.put(made, plain := new())
    item = await world.item(made.id)
    assert (item.terms, item.release) == (ALL, "1.4.2")
    assert (item.schema, item.trace, item.headers, item.revision) == (3, TRACE, dict(HEADERS), 0)
    bare = await world.item(plain.id)
    assert (bare.terms, bare.release, bare.headers, bare.schema) == (None, "", {}, 0)
    first, second = await world.lease(2)
    assert (first.terms, first.release, second.terms, second.release) == (ALL, "1.4.2", None, "")


@pytest.mark.parametrize(
    "other",
    [
        Terms(order_key="k"),
        Terms(limit_key="k", policy="slow"),
        Terms(dedupe=Dedupe("d", window=5), on_dead="die"),
        Terms(schema=1),
        Terms(trace=TRACE),
        Terms(headers=HEADERS),
    ],
)
async def test_fields_stay_with_other_terms(world: World, other: Terms) -> None:
    both = structs.replace(other, headers=(*HEADERS, ("more", "x")))
    made = [new(terms=other, release="r"), new(terms=structs.replace(both, order_key="", dedupe=None), kind="b")]
    await world.put(*made)
    expected = {item.id: item.terms for item in made}
    for one in made:
        assert (await world.item(one.id)).terms == expected[one.id]
    given = await world.lease(2)
    assert {item.id: item.terms for item in given} == expected
    await world.finish(*(failed(item) for item in given))
    again = await world.lease(2)
    assert {item.id: item.terms for item in again} == expected
    await world.finish(*(finished(item) for item in again))
    assert [(await world.item(one.id)).terms for one in made] == [one.terms for one in made]
    await world.sound()


async def test_fields_stay_when_tags_and_policy_change(world: World) -> None:
    await world.put(made := new(terms=ALL, release="1.4.2", kind="refund"))
    one = Ids((made.id,))
    await world.store.amend(one, SetPolicy("slow"), act())
    await world.store.amend(one, Tag(add=("eu", "us")), act())
    assert (await world.item(made.id)).terms == structs.replace(ALL, policy="slow")
    await world.store.amend(one, Tag(remove=("eu", "us")), act())
    await world.store.amend(one, SetPolicy(""), act())
    item = await world.item(made.id)
    assert (item.terms, item.tags, item.kind, item.release) == (ALL, (), "refund", "1.4.2")
    assert (await world.lease_one()).terms == ALL
    await world.sound()


async def test_fields_release_is_found(world: World) -> None:
    old, late = new(release="1.4.1"), new(release="1.4.2", kind="refund")
    await world.put(old, late, new())
    assert ids((await world.store.find(Match("release", "=", "1.4.1"))).items) == (old.id,)
    assert ids((await world.store.find(Match("release", "glob", "1.4*"))).items) == (late.id, old.id)
    await world.finish(*(dead(item) for item in await world.lease(3)))
    letters = And((Match("state", "=", "dead"), Match("release", "=", "1.4.2"), Match("kind", "=", "refund")))
    assert ids((await world.store.find(letters)).items) == (late.id,)


async def test_fields_release_of_an_attempt(world: World) -> None:
    await world.put(made := new())
    item = await world.lease_one()
    settlement = failed(item)
    attempt = structs.replace(ended(item, Ending.FAILED), release="1.4.2")
    await world.finish(structs.replace(settlement, attempt=attempt))
    (kept,) = (await world.store.get(made.id)).attempts
    assert kept.release == "1.4.2"


async def test_fields_are_taken_in(world: World) -> None:
    await world.put(made := new(terms=ALL, release="1.4.2", kind="refund"))
    item = await world.lease_one()
    settlement = dead(item)
    assert settlement.attempt is not None
    attempt = structs.replace(settlement.attempt, release="1.4.3")
    await world.finish(structs.replace(settlement, attempt=attempt))
    history = await world.store.get(made.id)
    copy = structs.replace(history.item, id=fresh())
    await world.store.take_in([History(copy, history.attempts)], act())
    taken = await world.store.get(copy.id)
    assert (taken.item.terms, taken.item.release, taken.item.kind) == (ALL, "1.4.2", "refund")
    assert taken.attempts[0].release == "1.4.3"
    await world.sound()


def headed(*headers: tuple[str, str]) -> NewItem:
    return new(terms=Terms(headers=headers))


@pytest.mark.parametrize(
    ("field", "made"),
    [
        ("kind", new(kind="a\0b")),
        ("kind", new(kind="k" * (NAME_LIMIT + 1))),
        ("release", new(release="\ud800")),
        ("release", new(release="r" * (NAME_LIMIT + 1))),
        ("trace", new(terms=Terms(trace="t" * (TRACE_LIMIT + 1)))),
        ("schema", new(terms=Terms(schema=-1))),
        ("headers", headed(("a", "1"), ("b", "2"), ("a", "3"))),
        ("headers", headed(("", "1"))),
        ("headers", headed(("a", "\0"))),
        ("headers", headed(*[(f"h{number}", "") for number in range(HEADERS_LIMIT + 1)])),
        ("headers", headed(("a", "x" * HEADERS_SIZE))),
    ],
)
async def test_fields_that_are_refused(world: World, field: str, made: NewItem) -> None:
    error = await refusal(world.store.put([new(item_id="good"), made]), made)
    assert names(error, field, made.kind, made.release)
    assert await world.history("good") is None


async def test_fields_as_large_as_they_may_be(world: World) -> None:
    names_of = [f"h{number:02}" for number in range(HEADERS_LIMIT)]
    each = HEADERS_SIZE // HEADERS_LIMIT - 3
    terms = Terms(trace="t" * TRACE_LIMIT, headers=tuple((name, "x" * each) for name in names_of))
    await world.put(made := new(terms=terms, kind="k" * NAME_LIMIT, release="r" * NAME_LIMIT))
    assert (await world.lease_one()).terms == terms
    item = await world.item(made.id)
    assert (len(item.kind), len(item.release)) == (NAME_LIMIT, NAME_LIMIT)
