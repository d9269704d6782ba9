"""Pages of `find` and `ids` on PostgreSQL: nothing is left out, and an index serves them, however many there are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from redrive.core.acts import Archive, Tag
from redrive.core.decide import ToDone
from redrive.core.item import NewItem, Terms
from redrive.core.select import EVERYTHING, And, Ids, Match, Not, Or, Selection, glob_match, matches
from redrive.core.verbs import (
    LeaseRequest,
    Settlement,
    Want,
)
from redrive.stores.postgres import PostgresStore, find, named
from redrive.stores.postgres.session import Session
from redrive.stores.url import store_from_url
from redrive.testing.clock import FakeClock
from tests.stores.postgres_hot_kit import session_of
from tests.stores.postgres_kit import DEAD, OPEN, act, failure, letters
from tests.support.stores import fresh_store


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with fresh_store("postgres", tmp_path) as url:
        yield url


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    store = store_from_url(url, clock=FakeClock())
    assert isinstance(store, PostgresStore)
    yield await store.open()
    await store.close()


# --- pages ------------------------------------------------------------------------------------------------------------

TAGS = ("rare", "past", "half", "nobody's")
READY = Match("state", "=", "ready")
LEASED = Match("state", "=", "leased")
LIVE: dict[str, Selection] = {
    "ready": READY,
    "leased": LEASED,
    "ready or leased": Or((READY, LEASED)),
    "ready and leased": And((READY, LEASED)),
    "waiting for their turn": Match("hold", "=", "order"),
    "of a parked line": Match("hold", "=", "parked"),
    "waiting for others": Match("hold", "=", "after"),
    "with any hold": Match("hold", "glob", "*"),
    "with one of two": Or((Match("hold", "=", "order"), Match("hold", "=", "limit"))),
    "with no hold": And((READY, Not(Match("hold", "glob", "*")))),
    "of an order key": And((READY, Match("key", "=", "k7"))),
    "due": And((READY, Match("due_at", "<=", 90_000))),
    "enqueued since": And((READY, Match("enqueued_at", ">=", 91_000))),
    "of a worker": And((LEASED, Match("worker", "=", "w1"))),
    "of no worker": And((LEASED, Match("worker", "=", "nobody"))),
    "tried before": And((READY, Match("errors", ">", 0))),
    "with a tag": And((READY, Match("tag", "=", "live"))),
    "with a tag of many others": And((Match("tag", "=", "half"), LEASED)),
    "with nobody's tag": And((READY, Match("tag", "=", "nobody's"))),
    "with a tag like this": And((READY, Match("tag", "glob", "li*"))),
    "with a tag like that": And((READY, Match("tag", "glob", "ha*"))),
    "by their ids": And((READY, Ids(("0c4d6d0b5ac3ba5f3fd0b8ab8d43b3e7", "c4ca4238a0b923820dcc509a6f75849b")))),
    "by how their ids begin": And((Match("id", "glob", "c4*"), READY)),
}
"""Items that are still to be worked on. They lie among 60,000 others of which nearly all are done."""
IN_A_QUEUE = ("ready", "leased", "ready or leased", "waiting for their turn", "with a tag of many others")
SERVED: dict[str, Selection] = {
    "open": And((DEAD, OPEN)),
    "queue": And((DEAD, OPEN, Match("queue", "=", "q3"))),
    "cause": And((DEAD, OPEN, Match("cause", "=", "c7"))),
    "a cause of long ago": And((DEAD, OPEN, Match("cause", "=", "old"))),
    "cause and queue": And((DEAD, OPEN, Match("cause", "=", "c7"), Match("queue", "=", "q7"))),
    "error": And((DEAD, OPEN, Match("error", "=", "E3"))),
    "error with its module": And((DEAD, OPEN, Match("error", "=", "app.E3"))),
    "category": And((DEAD, OPEN, Match("category", "=", "timeout"))),
    "a category of long ago": And((DEAD, OPEN, Match("category", "=", "rare"))),
    "a cause of many, long ago": And((DEAD, OPEN, Match("cause", "=", "past"))),
    "an error of many, long ago": And((DEAD, OPEN, Match("error", "=", "Past"))),
    "with its module": And((DEAD, OPEN, Match("error", "=", "app.Past"))),
    "a category of many, long ago": And((DEAD, OPEN, Match("category", "=", "past"))),
    "a queue of many, long ago": And((DEAD, OPEN, Match("queue", "=", "past"))),
    "a cause in a queue, long ago": And((DEAD, OPEN, Match("cause", "=", "past"), Match("queue", "=", "past"))),
    "an error in a queue": And((DEAD, OPEN, Match("error", "=", "E3"), Match("queue", "=", "q3"))),
    "an error that its queue never had": And((DEAD, OPEN, Match("error", "=", "E3"), Match("queue", "=", "past"))),
    "a category in a queue": And((DEAD, OPEN, Match("category", "=", "timeout"), Match("queue", "=", "q3"))),
    "one that its queue never had": And((DEAD, OPEN, Match("category", "=", "timeout"), Match("queue", "=", "past"))),
    "a route": And((DEAD, OPEN, Match("route", "=", "new"))),
    "a route of many, long ago": And((DEAD, OPEN, Match("route", "=", "past"))),
    "with more to ask": And((And((DEAD, Match("cause", "=", "past"))), Match("errors", "<", 3), And((OPEN,)))),
    **{f"letters with the tag {tag}": And((DEAD, OPEN, Match("tag", "=", tag))) for tag in TAGS},
    **{f"items with the tag {tag}": Match("tag", "=", tag) for tag in TAGS},
    **{f"{tag} of a cause": And((DEAD, OPEN, Match("cause", "=", "c7"), Match("tag", "=", tag))) for tag in TAGS},
    "without a tag": And((DEAD, OPEN, Not(Match("tag", "=", "half")))),
    "since an instant": And((DEAD, OPEN, Match("died_at", ">=", 5_990))),
    "nobody's error": And((DEAD, OPEN, Match("error", "=", "Nobodys"))),
    "counters of an item": And((DEAD, OPEN, Match("errors", "<", 3))),
    "part of an id": And((DEAD, Match("id", "glob", "c4ca4238*"))),
    "part of any id": Match("id", "glob", "c4ca4238*"),
    "an id among others": And((DEAD, Match("id", "=", "c4ca4238a0b923820dcc509a6f75849b"), Match("errors", "<", 3))),
    "one of two ids": Or((Match("id", "=", "c4ca4238a0b923820dcc509a6f75849b"), Match("id", "glob", "c81e"))),
    "a letter's id": And((DEAD, OPEN, Ids(("c4ca4238a0b923820dcc509a6f75849b",)))),
    "an id": Ids(("c4ca4238a0b923820dcc509a6f75849b",)),
    "all": EVERYTHING,
    **{f"live: {name}": selection for name, selection in LIVE.items()},
    **{f"live: {name}, in a queue": And((LIVE[name], Match("queue", "=", "idle"))) for name in IN_A_QUEUE},
    **{f"live: {name}, in none": And((Match("queue", "=", "none"), LIVE[name])) for name in IN_A_QUEUE},
}


@pytest.mark.parametrize(
    "names",
    [
        (OPEN,),
        (OPEN, Match("cause", "=", "c1")),
        (OPEN, Match("cause", "=", "c1"), Match("queue", "=", "q")),
        (OPEN, Match("error", "=", "E")),
        (OPEN, Match("error", "=", "app.E")),
        (OPEN, Match("category", "=", "data"), Match("errors", ">", 0)),
        (OPEN, Match("queue", "=", "q"), DEAD),
        (OPEN, Match("queue", "=", "q"), Match("queue", "=", "other")),
        (OPEN, Match("queue", "=", "q"), Match("category", "=", "data")),
        (OPEN, Match("queue", "=", "q"), Match("error", "=", "E")),
        (OPEN, Match("error", "=", "app.E"), Match("queue", "=", "q")),
        (OPEN, Match("disposition", "=", "archived")),
        (OPEN, Match("died", "<=", 0), Match("cause", "=", "c1")),
    ],
)
async def test_pages_by_name_leave_nothing_out(store: PostgresStore, names: tuple[Match, ...]) -> None:
    """All died at the same instant, so only their numbers tell pages apart; and others lie between them."""
    kinds = (failure(), failure("app.E"), failure("other.E"), failure(cause="c0"), failure(cause="c2", category="net"))
    ids = await letters(store, *[kinds[number % 5] for number in range(40)])
    await store.amend(Ids(tuple(ids[::7])), Archive(), act())
    now = (await store.tally()).at
    everything = (await store.find(EVERYTHING)).items
    expected = [item.id for item in everything if matches(And(names), item, now)]
    assert await _paged(store, And(names), oldest=False) == expected
    assert await _paged(store, And(names), oldest=True) == expected[::-1]
    assert (await store.ids(And(names))).ids == tuple(expected)
    assert (await store.ids(And(names), oldest=True)).ids == tuple(expected[::-1])


@pytest.mark.parametrize("walked", [1, 10_000])
async def test_pages_of_live_items_leave_nothing_out(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, walked: int
) -> None:
    """Whether they are met on the way, or read by their own indexes and sorted."""
    monkeypatch.setattr(find, "WALKED", walked)
    ids = [f"i{number:02}" for number in range(40)]
    terms = [Terms(order_key=f"k{number % 3}") if number % 4 == 0 else None for number in range(40)]
    queues = ["idle" if number % 3 else "q" for number in range(40)]
    made = zip(ids, queues, terms, strict=True)
    await store.put([NewItem(item_id, queue, b"", terms=term) for item_id, queue, term in made])
    await store.amend(Ids(tuple(ids[::5])), Tag(add=("live",)), act("tags"))
    wanted = (Want("idle", 12, 30_000, 3), Want("q", 4, 30_000, 3))
    items = (await store.lease(LeaseRequest("w1", wanted, "n"))).items
    await store.settle([Settlement(item.id, item.deliveries, ToDone()) for item in items[::2]])
    now = (await store.tally()).at
    session = await session_of(store)
    everything = (await store.find(EVERYTHING)).items
    assert {item.state for item in everything} == {"ready", "leased", "done"}
    for name, selection in (case for case in SERVED.items() if case[0].startswith("live: ")):
        expected = [item.id for item in everything if matches(selection, item, now)]
        assert await _paged(store, selection, oldest=False, limit=7) == expected, name
        assert await _paged(store, selection, oldest=True, limit=7) == expected[::-1], name
        acted = await _acted_on(session, selection)
        assert acted == sorted(item.seq for item in everything if item.id in expected), name
    assert len(await _paged(store, LIVE["waiting for their turn"], oldest=True)) > 3


async def _acted_on(session: Session, selection: Selection) -> list[int]:
    return await session.write(lambda tx: find.oldest(session, tx, selection, 100))


async def _paged(store: PostgresStore, selection: Selection, *, oldest: bool, limit: int = 3) -> list[str]:
    found: list[str] = []
    cursor = None
    while True:
        page = await store.find(selection, limit, cursor, oldest=oldest)
        found += [item.id for item in page.items]
        cursor = page.next
        if cursor is None:
            return found


@pytest.mark.parametrize("begin", ["a", "é", "\ud7ff", "a\U0010ffff", "\U0010ffff", "_", "%", "\\"])
@pytest.mark.parametrize("few", [0, 100])
async def test_ids_by_how_they_begin(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, begin: str, few: int
) -> None:
    """Whether they are few or many, and whatever comes behind that begin."""
    monkeypatch.setattr(named, "FEW_NAMED", few)
    tails = ("", "b", "bc", "\U0010ffff", "\U0010ffffb")
    others = ("b", "\ue000", "B", "\U0010fffe", "ab", "zz")
    ids = list(dict.fromkeys([begin + tail for tail in tails] + list(others)))
    await store.put([NewItem(one, "q", b"") for one in ids])
    for pattern in (f"{begin}*", f"{begin}*c", f"{begin}*b*", begin):
        expected = [one for one in ids if glob_match(pattern, one)]
        selection = Match("id", "glob", pattern)
        assert (await store.ids(selection, oldest=True)).ids == tuple(expected)
        assert (await store.ids(And((selection, Match("queue", "=", "nobody"))))).ids == ()
        assert len(await store.prune(selection, 100, act())) == 0
        amended = await store.amend(selection, Tag(add=("seen",)), act(pattern), expect=len(expected))
        assert sorted(amended.changed) == sorted(expected)
