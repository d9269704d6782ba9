"""Tags, moves, trash and imports on PostgreSQL: what others may do meanwhile, and what must cost nothing."""

from __future__ import annotations

import asyncio

import pytest

from redrive.core import codec
from redrive.core.acts import (
    Discard,
    Move,
    Replay,
    Skip,
    Skipped,
    Tag,
)
from redrive.core.decide import Charge, ToReady
from redrive.core.item import Failure, History, Item, Letter, NewItem, Terms
from redrive.core.select import Ids
from redrive.core.states import Disposition, State
from redrive.core.verbs import QueueChange, Settlement
from redrive.stores.base import Store
from redrive.stores.checks import KEEPS_BACK
from redrive.stores.postgres import PostgresStore
from tests.stores.postgres_hot_kit import *  # noqa: F403 - the fixtures are meant
from tests.stores.postgres_hot_kit import Open, asking, finished, gone, news
from tests.stores.postgres_kit import act, behind, died, failure, letters, rows, somebody_waits

WHY = Failure("app.Broken", "it broke", "error", "default", "c1")


async def buried(store: PostgresStore, item_id: str, key: str = "k") -> None:
    """A letter under an order key of q."""
    await store.put([NewItem(item_id, "q", b"{}", terms=Terms(order_key=key))])
    (item,) = (await store.lease(asking(1, f"n-{item_id}"))).items
    await store.settle([died(item, failure())])


def foreign(item_id: str, *tags: str) -> History:
    letter = Letter("max_attempts", 9, Disposition.OPEN, WHY)
    return History(Item(item_id, "q", b"{}", 1, State.DEAD, 1, 1, 1, ended_at=9, letter=letter, tags=tags))


async def disposition_of(store: Store, item_id: str) -> Disposition | None:
    letter = (await store.get(item_id)).item.letter
    return None if letter is None else letter.disposition


# --- tags ---


async def test_items_without_tags_are_never_looked_for_among_the_tags(unused: str, opened: Open) -> None:
    await (await opened(where=unused)).close()
    await gone(unused)
    scans = (
        "select seq_scan + coalesce(idx_scan, 0) from pg_stat_user_tables "
        "where schemaname = current_schema() and relname = 'tag'"
    )
    before = await rows(unused, scans)
    store = await opened(where=unused)
    await store.put(news(30))
    items = (await store.lease(asking(20))).items
    await store.settle(finished(items[:10]), asking(5, "again"))
    await store.reclaim("r", ["q"], 1_000, 10, force=True)
    await store.get(items[0].id)
    await store.close()
    await gone(unused)
    assert await rows(unused, scans) == before


async def test_what_has_no_tag_left_says_so(url: str, opened: Open) -> None:
    store = await opened()
    await store.put(news(2))
    both = Ids(("i-00000", "i-00001"))
    await store.amend(both, Tag(add=("a", "b")), act("1"))
    await store.amend(Ids(("i-00000",)), Tag(remove=("a", "b")), act("2"))
    await store.amend(both, Tag(remove=("a",)), act("3"))
    assert await rows(url, "select ties from course order by seq") == [(0,), (128,)]
    assert [item.tags for item in (await store.lease(asking())).items] == [(), ("b",)]
    assert (await store.check()).findings == ()


@pytest.mark.parametrize("terms", [None, Terms(order_key="k", policy="slow"), Terms()])
async def test_tags_come_with_every_lease_beside_the_terms(opened: Open, terms: Terms | None) -> None:
    store = await opened()
    await store.put([NewItem("i", "q", b"{}", terms=terms)])
    tags = ('"a"', "\\b", "naïve", "{}")
    await store.amend(Ids(("i",)), Tag(add=tags), act())
    first = (await store.lease(asking(1, "a"))).items
    again = (await store.lease(asking(1, "a"))).items
    taken = await store.reclaim("r", ["q"], 1_000, 1, force=True)
    await store.settle([Settlement("i", 2, ToReady(0, Charge.ERROR))])
    retried = (await store.lease(asking(1, "b"))).items
    seen = [(item.tags, item.terms) for item in (*first, *again, *taken, *retried)]
    assert seen == [(tuple(sorted(tags)), None if terms == Terms() else terms)] * 4


async def test_terms_with_tags_are_read_as_terms_too(url: str, opened: Open) -> None:
    """The tags are one more field in the JSON of the terms."""
    store = await opened()
    bound = Terms(order_key="k", after=(), policy="slow")
    await store.put([NewItem("bound", "q", b"{}", terms=bound), NewItem("plain", "q", b"{}")])
    await store.amend(Ids(("bound", "plain")), Tag(add=("a",)), act())
    given = await rows(
        url, "select terms from lease(null, 'w', 'n', 0, '{q}', '{9}', '{30000}', '{2}', '{-1}', '{0}', '{-1}', '{0}')"
    )
    assert [codec.decode(terms, Terms) for (terms,) in given] == [bound, Terms()]


# --- moves ---


async def test_a_move_waits_for_who_is_put_behind_the_letter(url: str, opened: Open) -> None:
    store, other = await opened(), await opened()
    await buried(store, "head")
    async with behind(url) as connection:
        async with connection.transaction():
            await store.put([NewItem("next", "q", b"{}", terms=Terms(order_key="k"))], within=connection)
            moving = asyncio.ensure_future(other.amend(Ids(("head",)), Move("r"), act()))
            await somebody_waits(url, connection)
        assert (await moving).skipped == (Skipped("head", *KEEPS_BACK),)
    assert (await store.check()).findings == ()


async def test_a_replay_elsewhere_waits_for_the_line_there_before_it_holds_anything(url: str, opened: Open) -> None:
    """Whoever puts to that line and waits for the letter would otherwise wait for us, and we for them."""
    store, other = await opened(), await opened()
    await buried(store, "head")
    await store.put([NewItem("there", "r", b"{}", terms=Terms(order_key="k"))])
    async with behind(url) as connection, behind(url) as watching:
        async with connection.transaction():
            await connection.execute(b"select 1 from line where queue = 'r' for update")
            replaying = asyncio.ensure_future(other.amend(Ids(("head",)), Replay(queue="r"), act()))
            await somebody_waits(url, connection)
            await watching.execute(b"select 1 from course for update nowait")
        assert (await replaying).changed == ("head",)
    head = (await store.get("head")).item
    assert (head.queue, head.hold) == ("r", "order")
    assert (await store.check()).findings == ()


async def test_a_gap_and_the_head_behind_it_are_discarded_together(url: str, opened: Open) -> None:
    store = await opened()
    await buried(store, "first")
    await store.amend(Ids(("first",)), Skip(), act("skip"))
    await buried(store, "second")
    await store.amend(Ids(("first", "second")), Discard(), act("both"))
    assert await rows(url, "select count(*) from line") == [(0,)]
    await store.put([NewItem("third", "q", b"{}", terms=Terms(order_key="k"))])
    assert (await store.get("third")).item.gap == ""


# --- trash ---


async def test_what_is_taken_from_the_trash_while_it_is_swept_stays(url: str, opened: Open) -> None:
    store = await opened()
    await store.configure("q", QueueChange(keep_trash=0))
    await letters(store, failure())
    await store.amend(Ids(("i000",)), Discard(), act())
    async with behind(url) as connection:
        async with connection.transaction():
            await connection.execute(b"select 1 from course for update")
            sweeping = asyncio.ensure_future(store.sweep(10, act("sweep")))
            await somebody_waits(url, connection)
            await connection.execute(b"update letter set disposition = 'open'")
            await connection.execute(b"insert into counter (queue, trash, open) values ('q', -1, 1)")
            await connection.execute(b"insert into cause values ('c1', 'q', 1)")
        assert (await sweeping).pruned == 0
    assert await disposition_of(store, "i000") is Disposition.OPEN
    assert (await store.check()).findings == ()


# --- letters of another store ---


async def test_the_same_letters_brought_by_two_enter_once(opened: Open) -> None:
    store, other = await opened(), await opened()
    coming = [foreign(f"f-{number:03}", "seen") for number in range(100)]
    ways = (coming, coming[::-1])
    results = await asyncio.gather(*(handle.take_in(way, act()) for handle in (store, other) for way in ways))
    added = [item_id for result in results for item_id in result.added]
    assert sorted(added) == [history.item.id for history in coming]
    assert {len(result.added) + len(result.already) for result in results} == {100}
    assert (await store.tally()).queues[0].open == 100
    assert (await store.check()).findings == ()


async def test_an_id_that_is_pruned_while_it_is_taken_in_stays_taken(url: str, opened: Open) -> None:
    store = await opened()
    await store.put([NewItem("f", "q", b"{}")])
    await store.settle(finished((await store.lease(asking())).items))
    async with behind(url) as connection:
        async with connection.transaction():
            await connection.execute(b"delete from item")
            await connection.execute(b"delete from course")
            await connection.execute(b"insert into tombstone values ('f', 'q', 'done', '', 1, 'a', 'r')")
            await connection.execute(b"insert into counter (queue, done) values ('q', -1)")
            taking = asyncio.ensure_future(store.take_in([foreign("f"), foreign("g")], act()))
            await somebody_waits(url, connection)
        result = await taking
    assert (result.added, result.already) == (("g",), ("f",))
    assert (await store.check()).findings == ()
