"""The promises P1 to P8 by name, as far as a store keeps them. What needs a worker is proved with the engine.

What a crash leaves is what another handle finds while the first one is still open: that one has said goodbye to nobody.
Processes are killed in proofs/stores/test_accepted.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from redrive.core.acts import (
    Cancel,
    Discard,
    Replay,
)
from redrive.core.decide import decide
from redrive.core.item import Ending, Item
from redrive.core.outcome import LeaseExpired
from redrive.core.policy import Policy
from redrive.core.select import EVERYTHING, Ids
from redrive.core.states import TERMINAL, State
from redrive.core.verbs import Settlement, Verdict
from redrive.errors import BadStoreURL, StoreCorrupt, StoreUnavailable
from redrive.stores.base import Store
from redrive.stores.memory import MemoryStore
from redrive.stores.sqlite import SqliteStore
from redrive.stores.url import store_from_url
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.kit import (
    QUEUE,
    SECOND,
    TTL,
    World,
    act,
    dead,
    ended,
    failed,
    failure,
    finished,
    ids,
    new,
    news,
    verdicts,
)
from tests.support.stores import EACH, StoreUrl

Found = Callable[[], Awaitable[Store]]


@asynccontextmanager
async def _opened(url: str, clock: FakeClock) -> AsyncIterator[Store]:
    store = await store_from_url(url, clock=clock).open()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture(params=[kind for kind in EACH if kind != "memory"])
def url(request: pytest.FixtureRequest, store_url: StoreUrl) -> str:
    return store_url(request.param)


@pytest.fixture
async def world(url: str) -> AsyncIterator[World]:
    clock = FakeClock()
    async with _opened(url, clock) as store:
        yield World(store, store.open, clock)


@pytest.fixture
async def found(url: str) -> AsyncIterator[Found]:
    """Opens the store as the next process finds it, while the world's handle is still open."""
    async with AsyncExitStack() as stack:
        yield lambda: stack.enter_async_context(_opened(url, FakeClock()))


# --- P1: accepted means kept ---


async def test_p1_what_put_and_settle_accepted_survives_a_crash(world: World, found: Found) -> None:
    made = [new(b"\x00 %d" % n) for n in range(20)]
    await world.put(*made)
    done, retried, died = await world.lease(3)
    children = news(3)
    one, two, three = ([child] for child in children)
    await world.settle(finished(done, follow_ups=one), failed(retried, follow_ups=two), dead(died, follow_ups=three))
    store = await found()
    items = {item.id: item for item in (await store.find(EVERYTHING, 100)).items}
    assert {one.id: items[one.id].payload for one in made} == {one.id: one.payload for one in made}
    assert [items[one.id].state for one in (done, retried, died)] == [State.DONE, State.READY, State.DEAD]
    assert items.keys() == {*ids(made), *ids(children)}


async def test_p1_the_level_in_force_is_shown(url: str) -> None:
    async with _opened(url, FakeClock()) as store:
        assert store.info().durability == "power-loss"


async def test_p1_a_weaker_level_is_shown(path: Path) -> None:
    weaker = await SqliteStore(path, durability="process-crash").open()
    assert weaker.info().durability == "process-crash"
    await weaker.close()
    assert MemoryStore().info().durability == "none"


# --- P2: exactly one end ---


async def test_p2_every_item_ends_in_exactly_one_state(world: World) -> None:
    await world.put(*news(4))
    done, died, retried, released = await world.lease(4)
    await world.finish(finished(done), dead(died), failed(retried), failed(released))
    await world.store.amend(Ids((released.id,)), Cancel(), act())
    await world.finish(finished(await world.lease_one()))
    items = (await world.store.find(EVERYTHING)).items
    assert [item.state in TERMINAL for item in items] == [True] * 4
    count = await world.count()
    assert (count.done, count.open, count.cancelled, count.ready, count.leased) == (2, 1, 1, 0, 0)


async def test_p2_a_lease_that_nobody_ends_is_not_stuck(world: World) -> None:
    item = await world.held()
    world.tick(TTL + 1)
    assert ids(await world.store.reclaim("reaper", [QUEUE], TTL, 10)) == (item.id,)


# --- P3: every extra run is explained ---


async def test_p3_every_extra_delivery_has_its_record(world: World) -> None:
    item = await world.held()
    await world.crashed(item)
    await world.finish(failed(await world.lease_one()))
    last = await world.lease_one()
    await world.finish(finished(last))
    history = await world.store.get(item.id)
    # The reaper's own delivery is no run: its record tells of the run that was lost.
    assert [record.ending.value for record in history.attempts] == ["crashed", "failed", "done"]
    assert history.attempts[-1].delivery == last.deliveries


# --- P4: only the holder's result counts ---


async def test_p4_a_zombie_s_result_does_not_count(world: World) -> None:
    zombie = await world.held()
    await world.crashed(zombie)
    holder = await world.lease_one(worker="w-2")
    assert verdicts(await world.settle(dead(zombie))) == (Verdict.REFUSED,)
    await world.finish(finished(holder, b"right"))
    assert (await world.item(zombie.id)).result == b"right"


# --- P5: a crash is counted at lease time and costs no neighbour its work ---


async def test_p5_a_crash_was_counted_before_it_happened(world: World, found: Found) -> None:
    held = await world.held()
    item = (await (await found()).get(held.id)).item
    assert (item.deliveries, item.attempt, item.state) == (1, 1, State.LEASED)


async def test_p5_poison_dies_alone_after_exactly_max_crashes(world: World) -> None:
    """Each worker that holds the poison dies, with whatever else it holds. The store and `decide` do the rest."""
    policy = Policy(max_crashes=3)
    poison, *healthy = news(5)
    await world.put(poison, *healthy)
    crashes = 0
    for turn in range(50):
        world.tick(3_600 * SECOND)
        leases = await world.lease(10, worker=f"w-{turn}", max_crashes=policy.max_crashes)
        if not leases:
            break
        if poison.id not in ids(leases):
            await world.finish(*(finished(item) for item in leases))
            continue
        crashes += 1
        world.tick(TTL + 1)
        lost = await world.store.reclaim("reaper", [QUEUE], TTL, 100)
        await world.finish(*(judged(item, policy) for item in lost))
    letter = await world.item(poison.id)
    assert letter.letter is not None
    assert (letter.letter.reason, letter.crashes, crashes) == ("max_crashes", 3, 3)
    assert {(await world.item(item.id)).state for item in healthy} == {State.DONE}


def judged(item: Item, policy: Policy) -> Settlement:
    outcome = LeaseExpired(failure(cause="crash"))
    decision = decide(item, outcome, policy, roll=0.5, age=0)
    return Settlement(item.id, item.deliveries, decision, ended(item, Ending.CRASHED, outcome.failure))


# --- P6: letters stay, and go back once per request ---


async def test_p6_a_letter_stays_until_an_audited_act(world: World) -> None:
    letter = await world.letter()
    world.tick(100 * 365 * 24 * 3_600 * SECOND)
    assert await world.store.prune(EVERYTHING, 100, act()) == ()
    assert await world.item(letter.id) == letter
    await world.store.amend(Ids((letter.id,)), Discard(), act("discard-1"))
    await world.store.prune(EVERYTHING, 100, act("prune-1"))
    assert [entry.request_id for entry in await world.store.journal("audit")] == ["discard-1", "prune-1"]
    assert await world.store.tombstone(letter.id) is not None


async def test_p6_a_replay_and_its_record_survive_a_crash_together(world: World, found: Found) -> None:
    letter = await world.letter()
    await world.store.amend(Ids((letter.id,)), Replay(), act("request-1"))
    store = await found()
    history = await store.get(letter.id)
    assert (history.item.state, history.item.replays) == (State.READY, 1)
    assert [deed.request_id for deed in history.deeds] == ["request-1"]
    assert [entry.request_id for entry in await store.journal("audit")] == ["request-1"]
    assert (await store.amend(Ids((letter.id,)), Replay(), act("request-1"))).already == (letter.id,)


# --- P7: never early ---


async def test_p7_a_retry_is_not_early_even_over_a_restart(url: str) -> None:
    clock = FakeClock()
    async with _opened(url, clock) as store:
        world = World(store, store.open, clock)
        item = await world.held()
        await world.finish(failed(item, delay=60 * SECOND))
    clock.advance(60 * SECOND - 1)
    async with _opened(url, clock) as store:
        world = World(store, store.open, clock)
        assert await world.lease(5) == ()
        world.tick(1)
        assert ids(await world.lease(5)) == (item.id,)


async def test_p7_a_clock_set_back_puts_nothing_off_and_starts_nothing_early(world: World) -> None:
    item = await world.held()
    await world.finish(failed(item, delay=60 * SECOND))
    world.clock.jump_wall(-3_600 * SECOND)
    world.tick(60 * SECOND - 1)
    assert await world.lease(5) == ()
    world.tick(1)
    assert ids(await world.lease(5)) == (item.id,)


# --- P8: no silent fallback ---


async def test_p8_a_store_that_is_not_there_refuses(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "missing folder" / "redrive.db")
    with pytest.raises(StoreUnavailable):
        await store.open()
    with pytest.raises(StoreUnavailable):
        await store.put([new()])
    assert not (tmp_path / "missing folder").exists()


async def test_p8_a_store_that_was_not_opened_refuses(url: str) -> None:
    for store in (store_from_url(url), MemoryStore()):
        with pytest.raises(StoreUnavailable):
            await store.put([new()])


async def test_p8_damaged_data_is_refused_and_left(path: Path) -> None:
    damaged = b"this is not a database, it is a diary" * 1_000
    path.write_bytes(damaged)
    with pytest.raises(StoreCorrupt):
        await SqliteStore(path).open()
    assert path.read_bytes() == damaged


@pytest.mark.parametrize(
    "url", ["", "redis-but-misspelt://x", "sqlite://", "sqlite:///", "memory:/path", "/just/a/path"]
)
def test_p8_an_unusable_url_is_refused(url: str) -> None:
    with pytest.raises(BadStoreURL):
        store_from_url(url)


async def test_p8_what_one_handle_accepted_is_in_the_file(url: str) -> None:
    made = new()
    async with _opened(url, FakeClock()) as store, _opened(url, FakeClock()) as other:
        await store.put([made])
        assert (await other.get(made.id)).item.id == made.id
