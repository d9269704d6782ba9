"""What was not sent did not happen; what was sent and not answered may have; and nothing is ever sent twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis

from redrive.core.states import State
from redrive.core.verbs import Verdict
from redrive.errors import OutcomeUnknown, StoreUnavailable
from redrive.stores.base import Store
from redrive.stores.redis import RedisStore, scripts
from redrive.stores.redis.session import Session
from redrive.stores.url import store_from_url
from redrive.testing.conformance.kit import PATIENCE, SECOND, asking, dead, finished, ids, new, news
from tests.stores.redis_office_kit import *  # noqa: F403 - the fixtures are meant
from tests.stores.redis_office_kit import hastily
from tests.support.links.conditions import BlackHole, CutReply, CutRequest, Latency, Refuse, Sliced
from tests.support.links.link import Link
from tests.support.rest import turns
from tests.support.rig.patience import eventually
from tests.support.servers.redis import private_redis

pytestmark = pytest.mark.slow


@pytest.fixture
def link(address: str) -> Iterator[Link]:
    with Link.to(address) as link:
        yield link


@pytest.fixture
async def store(address: str, link: Link) -> AsyncIterator[Store]:
    store = await store_from_url(f"{link.through(address)}&timeout=20s&pool=2").open()
    yield store
    link.heal()
    await store.close()


def mark(script: str) -> bytes:
    return scripts.load()[script].sha


def runs(client: Any) -> int:
    """How many scripts the server has run."""
    stats: dict[str, Any] = client.info("commandstats")
    return int(stats["cmdstat_evalsha"]["calls"])


async def test_an_answer_that_is_lost_leaves_it_open_and_is_asked_for_once() -> None:
    """A client library would ask again by itself, and nobody would know."""
    made = news(3)
    with private_redis() as server, Link.to(server.url()) as link, redis.Redis.from_url(server.url()) as client:
        store = await store_from_url(link.through(server.url())).open()
        await store.put([new()])
        before = runs(client)
        link.set(CutReply(mark("put"), times=1))
        with pytest.raises(OutcomeUnknown) as raised:
            await store.put(made)
        assert "repeat it with the same ids" in raised.value.hint
        assert runs(client) == before + 1
        assert (await store.put(made)).already == ids(made)
        await store.close()


async def test_leases_whose_answer_was_lost_are_given_again_for_the_same_nonce(store: Store, link: Link) -> None:
    made = news(3)
    await store.put(made)
    request = asking(2)
    await store.lease(asking(1, queue="none"))
    link.set(CutReply(mark("lease"), times=1))
    with pytest.raises(OutcomeUnknown):
        await store.lease(request)
    items = (await store.lease(request)).items
    assert (ids(items), [item.deliveries for item in items]) == (ids(made[:2]), [1, 1])


async def test_a_settle_whose_answer_was_lost_has_ended_already(store: Store, link: Link) -> None:
    await store.put(news(2))
    items = (await store.lease(asking(2))).items
    await store.settle([])
    link.set(CutReply(mark("settle"), times=1))
    with pytest.raises(OutcomeUnknown):
        await store.settle([finished(item) for item in items])
    answers = (await store.settle([finished(item) for item in items])).answers
    assert [answer.verdict for answer in answers] == [Verdict.ALREADY, Verdict.ALREADY]


async def test_letters_whose_answer_was_lost_are_given_again_and_have_ended_already(store: Store, link: Link) -> None:
    made = news(2)
    await store.put(made)
    leased = (await store.lease(asking(2))).items
    # The server knows both scripts from here on.
    await store.settle_letters([finished(item) for item in leased])
    await store.lease_letters(ids(made), "w", SECOND)
    await store.settle([dead(item) for item in leased])
    link.set(CutReply(mark("lease_letters"), times=1))
    with pytest.raises(OutcomeUnknown):
        await store.lease_letters(ids(made), "w", 60 * SECOND)
    items = await store.lease_letters(ids(made), "w", 60 * SECOND)
    assert [(item.id, item.deliveries) for item in items] == [(one.id, 2) for one in made]
    link.set(CutReply(mark("settle_letters"), times=1))
    with pytest.raises(OutcomeUnknown):
        await store.settle_letters([finished(item) for item in items])
    answers = await store.settle_letters([finished(item) for item in items])
    assert [answer.verdict for answer in answers] == [Verdict.ALREADY, Verdict.ALREADY]


async def test_a_request_that_never_arrives_has_not_happened_whatever_is_said(store: Store, link: Link) -> None:
    made = news(2)
    await store.put([new()])
    link.set(CutRequest(mark("put"), times=1))
    with pytest.raises(OutcomeUnknown):
        await store.put(made)
    assert (await store.put(made)).added == ids(made)


async def test_where_nobody_listens_nothing_is_sent(store: Store, link: Link) -> None:
    link.set(Refuse())
    link.reset()
    for _ in range(3):
        with pytest.raises((StoreUnavailable, OutcomeUnknown)):
            await store.put([new()])
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await store.put([new()])
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await store.tally()
    link.heal()
    await store.put([new()])


async def test_nobody_waits_for_ever_for_a_line_that_swallows_everything(store: Store, link: Link) -> None:
    await store.put([new()])
    link.set(BlackHole())
    async with hastily(store):
        with pytest.raises(OutcomeUnknown, match="no answer in time"):
            await store.put([new()])
        with pytest.raises(StoreUnavailable):
            await store.tally()
    link.heal()
    link.reset()
    made = new()
    await store.put([made])
    assert (await store.get(made.id)).item.state is State.READY


async def test_an_answer_that_comes_too_late_is_nobody_s(store: Store, link: Link) -> None:
    """Least of all of whoever asks next."""
    await store.tally()
    await store.workers()
    link.set(Latency(0.3))
    async with hastily(store):
        with pytest.raises(StoreUnavailable, match="no answer in time"):
            await store.tally()
    link.heal()
    assert await store.workers() == ()
    assert (await store.tally()).queues == ()


async def test_what_is_read_over_a_lost_line_did_not_happen(store: Store, link: Link) -> None:
    await store.tally()
    link.set(CutReply(mark("tally"), times=1))
    with pytest.raises(StoreUnavailable):
        await store.tally()
    await store.tally()


@pytest.mark.parametrize(("size", "piece"), [(5_000, 997), (20, 1)])
async def test_answers_in_pieces_are_put_together(store: Store, link: Link, size: int, piece: int) -> None:
    made = [new(b"x" * size) for _ in range(20)]
    link.set(Sliced(piece))
    await store.put(made)
    assert ids((await store.lease(asking(20))).items) == ids(made)


async def test_a_cancelled_caller_hears_of_it_when_what_was_sent_has_ended(store: Store, link: Link) -> None:
    made = news(2)
    await store.lease(asking(1, queue="none"))
    link.set(BlackHole())
    taken = link.counts.taken
    putting = asyncio.ensure_future(store.put(made))
    await eventually(lambda: link.counts.taken > taken, limit=PATIENCE, what="it is on its way")
    putting.cancel()
    await turns(asyncio.get_running_loop(), rest=False)
    assert not putting.done(), "what was sent has not ended"
    link.heal()
    await asyncio.wait({putting}, timeout=PATIENCE)
    assert putting.cancelled()
    assert (await store.put(made)).already == ids(made)


# --- scripts, on a server of their own: on the other one somebody else would load them meanwhile ---


@pytest.fixture
async def alone() -> AsyncIterator[tuple[RedisStore, Link, Any]]:
    """A store, the link to its server, and the server without redrive."""
    with private_redis() as server, Link.to(server.url()) as link, redis.Redis.from_url(server.url()) as client:
        store = store_from_url(link.through(server.url()))
        assert isinstance(store, RedisStore)
        await store.open()
        yield store, link, client
        link.heal()
        await store.close()


async def test_a_script_that_is_flushed_as_soon_as_it_is_loaded_is_loaded_again(
    alone: tuple[RedisStore, Link, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else's SCRIPT FLUSH may come between the two."""
    store, _, client = alone
    load, loads = Session._load, 0  # noqa: SLF001 - there is no other place between the two

    async def loaded(self: Session, *given: Any) -> None:
        nonlocal loads
        await load(self, *given)
        loads += 1
        if loads < 3:
            await asyncio.to_thread(client.script_flush)

    monkeypatch.setattr(Session, "_load", loaded)
    client.script_flush()
    made = news(2)
    assert (await store.put(made)).added == ids(made)
    assert loads == 3


async def test_a_line_that_is_cut_while_a_script_is_loaded_has_not_run_it(
    alone: tuple[RedisStore, Link, Any],
) -> None:
    store, link, client = alone
    await store.put([new()])
    client.script_flush()
    link.set(CutReply(b"SCRIPT", times=1))
    made = new()
    with pytest.raises(StoreUnavailable):
        await store.put([made])
    assert (await store.put([made])).added == (made.id,)
